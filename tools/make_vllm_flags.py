"""Write planner/importers/vllm-0.33-flags.json from a listing of the flags of ``vllm serve``.

Usage: python tools/make_vllm_flags.py FLAGS.json

The listing has, for each option, its ``spellings``, ``negative`` ones, ``nargs``, ``type``, whether
it is ``json``, its ``choices`` and the ``config_field`` that it fills.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parent.parent / "planner/importers/vllm-0.33-flags.json"


def main(listing: Path) -> None:
    """Read ``listing`` and write the table, one option a line."""
    options = json.loads(listing.read_text(encoding="utf-8"))["options"]
    rows = [json.dumps(compact(option), sort_keys=True) for option in options if option["spellings"]]
    TARGET.write_text("[\n" + ",\n".join(rows) + "\n]\n", encoding="utf-8")


def compact(option: dict[str, Any]) -> dict[str, Any]:
    """One option without what is at its default."""
    known: dict[str, Any] = {"spellings": option["spellings"]}
    if option["boolean"] or option["nargs"] == 0:
        known["values"] = "none"
    elif option["nargs"] in ("?", "+"):
        known["values"] = {"?": "optional", "+": "many"}[option["nargs"]]
    if option["negative"]:
        known["negative"] = option["negative"]
    if option["json"]:
        known["json"] = True
    if option["type"]:
        known["type"] = option["type"]
    if option["choices"]:
        known["choices"] = option["choices"]
    if option["config_field"]:
        # Words after the name say how the field is filled.
        known["field"] = option["config_field"].split(" ")[0]
    return known


if __name__ == "__main__":
    main(Path(sys.argv[1]))
