#!/usr/bin/env python3
"""Writes the files that are generated and checked in: compiled plans and JSON Schemas.

CI fails while one of them is out of date.

    tools/update_generated.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from planner import compile_plan, dump_plan, load_deployment
from planner.documents.schema import schema_text

PLANS = Path(__file__).resolve().parent.parent / "plans"


def generated() -> Iterator[tuple[Path, str]]:
    """Every generated file and what belongs in it."""
    for deployment in sorted((PLANS / "deployments").glob("*.yaml")):
        yield PLANS / "compiled" / deployment.name, dump_plan(compile_plan(load_deployment(deployment)))
    for kind in ("deployment", "plan"):
        yield PLANS / "schemas" / f"{kind}.schema.json", schema_text(kind)


def main() -> None:
    """Write what differs, and drop plans whose deployment is gone."""
    wanted = dict(generated())
    (PLANS / "compiled").mkdir(exist_ok=True)
    for stale in set((PLANS / "compiled").glob("*.yaml")) - set(wanted):
        stale.unlink()
        print(f"dropped {stale.relative_to(PLANS.parent)}")
    for path, text in wanted.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(PLANS.parent)}")


if __name__ == "__main__":
    main()
