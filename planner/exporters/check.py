"""Checking an export before it is printed: its text is imported and planned again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from attrs import evolve, frozen

from planner.compile import compile_plan
from planner.describe import counted, label, size_runs
from planner.descriptors import PlanEntry
from planner.documents.deployment import Deployment
from planner.documents.plan import Plan
from planner.engines.lookup import is_decode
from planner.errors import DocumentError, ExportError, PlanError
from planner.exporters.exported import ARGS, CONFIG, Exported
from planner.importers.imported import Completion
from planner.importers.launches import Launch
from planner.importers.source import COMMANDS, import_launch
from planner.importers.words import Word

Graphs = Mapping[str, Sequence[PlanEntry]]


@frozen
class Checked:
    """The plan of an export's text, and how many graphs it captures beyond what was to be exported."""

    plan: Plan
    beyond: tuple[str, ...]


def imported_again(exported: Exported, form: str, original: Deployment) -> Deployment:
    """What the importer makes of the text of an export.

    The model, the device and what else the server finds by itself are those of ``original``.

    Raises:
        DocumentError: the engine would refuse the text.
        ExportError: it has no such form of a setting.
    """
    text = exported.text(form)
    name = f"export.{'yaml' if form == CONFIG else 'json'}"
    words = shlex.split(text) if form == ARGS else ["--config", name]
    launch = Launch(
        engine=exported.engine,
        name="",
        words=tuple(map(Word, words)),
        env={name: Word(value) for name, value in exported.env.items()},
        where=Word(""),
        files={} if form == ARGS else {name: text},
        # Paths are those of the server's machine.
        is_contained=True,
    )
    again = import_launch(launch, Completion(), COMMANDS[exported.engine]).deployment
    return _with_facts(again, original)


def _with_facts(deployment: Deployment, original: Deployment) -> Deployment:
    model, speculative = original.model, deployment.speculative
    if speculative is not None and original.speculative is not None:
        speculative = evolve(
            speculative,
            config=original.speculative.config,
            attention_support=original.speculative.attention_support,
        )
    return evolve(
        deployment,
        name=original.name,
        engine=evolve(
            deployment.engine,
            name=original.engine.name,
            version=original.engine.version,
            usage=original.engine.usage,
        ),
        model=evolve(
            deployment.model,
            config=model.config,
            num_kv_blocks=model.num_kv_blocks,
            attention_support=model.attention_support,
            attention_backends=model.attention_backends,
            varlen_max_query_len=model.varlen_max_query_len,
        ),
        parallel=evolve(deployment.parallel, is_moe_model=original.parallel.is_moe_model),
        speculative=speculative,
        device=original.device,
        capture=original.capture,
    )


def planned_again(exported: Exported, form: str, original: Deployment) -> Plan:
    """The plan of what the importer makes of the text of an export.

    Raises:
        ExportError: the engine would not start with it, or has no such form of a setting.
    """
    try:
        return compile_plan(imported_again(exported, form, original))
    except DocumentError as error:
        raise ExportError(
            f"{exported.engine} would refuse its setting: {error.message}",
            fields=(error.key or "deployment",),
        ) from None
    except ExportError:
        raise
    except PlanError as error:
        raise ExportError(
            f"{exported.engine} would not start: {error.message}", fields=error.fields
        ) from None


def checked(exported: Exported, form: str, deployment: Deployment, graphs: Graphs) -> Checked:
    """Plans the text of an export, which was made of ``deployment``, and compares its graphs with ``graphs``.

    Raises:
        ExportError: the engine would not start with it, or would not capture one of ``graphs``.
    """
    plan = planned_again(exported, form, deployment)
    for family, entries in graphs.items():
        captured = set(plan.graphs.get(family, ()))
        missing = [entry for entry in entries if entry not in captured]
        if missing:
            raise _inexpressible(exported.engine, family, missing)
    return Checked(plan, tuple(_beyond(exported.engine, plan, graphs)))


def _inexpressible(engine: str, family: str, missing: Sequence[PlanEntry]) -> ExportError:
    first = missing[0]
    more = f" and {counted(len(missing) - 1, 'other')}" if len(missing) > 1 else ""
    prologue = f" with {first.prologue.kind}" if first.prologue is not None else ""
    return ExportError(
        f"{engine} captures no graph of {label(first)}{prologue}{more} by the plan's settings; "
        f"{_cause(first)}",
        fields=(f"graphs.{family}",),
    )


def _cause(entry: PlanEntry) -> str:
    """Where an engine takes such an entry from, which no capture size asks for."""
    if entry.prologue is not None:
        return "a prologue follows from speculative.method in the plan's deployment, not from sizes"
    if entry.num_active_loras:
        return "cases of LoRA follow from lora in the plan's deployment, not from sizes"
    if entry.num_ubatches > 1:
        return "microbatches follow from parallel in the plan's deployment, not from sizes"
    if (entry.uniform_token_count or 1) > 1:
        return "requests of several tokens follow from speculative in the plan's deployment, not from sizes"
    return "its graphs follow from sizes and a mode; leave the graph out, or change the plan's deployment"


def _beyond(engine: str, plan: Plan, graphs: Graphs) -> Iterator[str]:
    """What the engine captures and ``graphs`` do not have."""
    for family, entries in plan.graphs.items():
        wanted = set(graphs.get(family, ()))
        extra = sorted((entry for entry in entries if entry not in wanted), key=_order)
        for shape, group in groupby(extra, key=_shape):
            sizes = [entry.num_tokens for entry in group]
            yield (
                f"{engine} captures {counted(len(sizes), 'graph')} of {family} beyond the plan: {shape}, "
                f"{size_runs(sizes)} tokens"
            )


def _shape(entry: PlanEntry) -> str:
    parts = [str(entry.mode)]
    if is_decode(entry):
        parts.append(f"requests of {entry.uniform_token_count}")
    if entry.num_active_loras:
        parts.append(counted(entry.num_active_loras, "LoRA"))
    if entry.num_ubatches > 1:
        parts.append(f"{entry.num_ubatches} microbatches")
    return ", ".join(parts)


def _order(entry: PlanEntry) -> tuple[str, int]:
    return _shape(entry), entry.num_tokens
