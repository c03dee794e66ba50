"""Exports started as a user would start them, and imported from that; nothing of the exporter's own check."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from attrs import evolve

from planner.descriptors import PlanEntry
from planner.documents.deployment import Deployment
from planner.documents.plan import Plan
from planner.exporters.exported import ARGS, CONFIG, Exported
from planner.importers.imported import Completion
from planner.importers.source import COMMANDS, import_text
from planner.queries import Query, ask

MODEL = "somebody/some-model"


def started(exported: Exported, form: str, folder: Path) -> Deployment:
    """The import of the command line that starts a server with the export, in one of its forms."""
    if form == ARGS:
        line = exported.command(str(exported.settings.get("model-path", MODEL)))
    else:
        file = folder / ("export.yaml" if form == CONFIG else "export.json")
        file.write_text(exported.text(form), encoding="utf-8")
        env = "".join(f"{name}={value} " for name, value in exported.env.items())
        model = "" if "model-path" in exported.settings else MODEL
        line = f"{env}{COMMANDS[exported.engine]} {model} --config {file.name}"
    completion = Completion(env={"HF_HOME": "/nonexistent"}, folder=folder)
    return import_text(line, completion, path=None).deployment


def of_the_same_model(again: Deployment, original: Deployment) -> Deployment:
    """``again`` with the model and the device of ``original``, and with what a server finds out by them."""
    speculative = again.speculative
    if speculative is not None and original.speculative is not None:
        speculative = evolve(
            speculative,
            config=original.speculative.config,
            attention_support=original.speculative.attention_support,
        )
    model = evolve(
        again.model,
        config=original.model.config,
        num_kv_blocks=original.model.num_kv_blocks,
        attention_support=original.model.attention_support,
        attention_backends=original.model.attention_backends,
        varlen_max_query_len=original.model.varlen_max_query_len,
    )
    engine = evolve(again.engine, name=original.engine.name, version=original.engine.version)
    parallel = evolve(again.parallel, is_moe_model=original.parallel.is_moe_model)
    return evolve(
        again,
        name=original.name,
        engine=engine,
        model=model,
        parallel=parallel,
        speculative=speculative,
        device=original.device,
    )


def answers(plan: Plan, family: str) -> list[object]:
    """What dispatch answers below, at and above the size of each graph."""
    table = plan.dispatch_table(family)
    return [ask(table, query) for entry in plan.entries(family) for query in _queries(entry)]


def _queries(entry: PlanEntry) -> Iterator[Query]:
    count = entry.uniform_token_count or 1
    reqs = entry.num_tokens // count
    for around in (max(reqs - 1, 1), reqs, reqs + 1):
        yield Query(
            num_tokens=around * count,
            num_reqs=around,
            uniform_token_count=entry.uniform_token_count,
            num_active_loras=entry.num_active_loras,
            uniform_decode=entry.uniform_token_count is not None,
        )


def assert_same_plan(found: Plan, expected: Plan) -> None:
    """Both capture the same graphs in the same order, and dispatch every batch in the same way."""
    assert dict(found.graphs) == dict(expected.graphs)
    assert found.resolved == expected.resolved
    for family in expected.graphs:
        assert answers(found, family) == answers(expected, family)
