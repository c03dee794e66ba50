"""``planner capture``: captures a plan on this machine, and proves every graph."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

from planner.cli.answers import record, to_json
from planner.cli.blocks import Block, Row
from planner.cli.files import naming, read_plan, shown_name
from planner.cli.options import count, examples
from planner.cli.render import is_terminal, show
from planner.cli.streams import write_stderr, write_stdout
from planner.describe import counted, label
from planner.documents.plan import TARGET, Plan
from planner.errors import MachineError

if TYPE_CHECKING:
    from executor.capturing import FamilyOutcome, Outcome, StandIn
    from executor.check import CheckReport
    from executor.guide import Progress
    from executor.restart import Restart

MIB = 2**20

NAMED = 5
"""Entries that a message names before it counts the others."""

SHARE = click.FloatRange(0, 1)


@click.command(
    "capture",
    epilog=examples(
        "planner capture plan.yaml --device cpu --shrink",
        "planner capture plan.yaml --device cuda",
        "planner capture plan.yaml --model config.json --device cuda --memory-budget 2048 --json",
        "planner capture plan.yaml --cache /var/cache/graphplan --ready-after 0.99",
        "planner capture plan.yaml --shrink --check     # needs no GPU",
    ),
)
@click.argument("plan", metavar="PLAN")
@click.option("--model", metavar="CONFIG", help="The model's config.json; by default the plan's own model.")
@click.option("--draft", metavar="CONFIG", help="The DFlash drafter's config.json; by default the plan's.")
@click.option("--device", type=click.Choice(("cuda", "cpu")), default="cuda", show_default=True)
@click.option("--shrink", is_flag=True, help="A few small layers of the same kind, to try a plan anywhere.")
@click.option(
    "--dtype",
    type=click.Choice(("auto", "float32", "bfloat16", "float16")),
    default="auto",
    show_default=True,
    help="Type of weights; auto is bfloat16 on a GPU and float32 on a CPU.",
)
@click.option("--seed", type=count(0), default="0", show_default=True, help="Seed of the random weights.")
@click.option("--memory-budget", type=count(1), metavar="MIB", help="What all graphs may take, in MiB.")
@click.option("--cache", "directory", metavar="DIR", help="Use what this cache knows, and keep what is new.")
@click.option("--cold", is_flag=True, help="Leave the cache alone.")
@click.option(
    "--ready-after",
    type=SHARE,
    default=1.0,
    metavar="SHARE",
    help="Serving begins once this share of the recorded traffic has its graphs; by default all entries.",
)
@click.option("--check", is_flag=True, help="Only look for what would break a capture; on the CPU.")
@click.option("--json", "as_json", is_flag=True, help="Print everything that was measured as JSON.")
@click.pass_context
def command(ctx: click.Context, /, plan: str, as_json: bool, check: bool, **options: Any) -> None:
    """Capture the graphs of PLAN on this machine, replay each, and compare it with eager.

    The model is a stand-in: the shape of CONFIG with random weights, run in plain PyTorch. That tells
    whether every graph of the plan can be had here, and what the capture costs.

    With --cache the capture is recorded, and the next one in the same circumstances goes by the record: it
    loads kernels ahead instead of running warm-up forwards, captures the most used graphs first, and leaves
    out those that failed. A cache that is broken or of another machine is told and never stops a capture.

    Exits with 1 if an entry could not be captured or differs from eager, and with 3 if the machine has
    no GPU or no PyTorch.
    """
    _require_torch()
    document = read_plan(plan)
    with naming(shown_name(plan)):
        stand_in = _stand_in(document, options, check=check)
        if check:
            found = _checked(document, stand_in)
            _show_check(found, as_json)
            ctx.exit(int(not found.ok))
        outcome = _captured(document, stand_in, options, quiet=as_json)
    if as_json:
        write_stdout(to_json(outcome_json(outcome)))
    else:
        show(tuple(summary(outcome)))
    ctx.exit(int(not outcome.ok))


def _require_torch() -> None:
    if find_spec("torch") is None:
        raise MachineError("capture needs PyTorch: pip install 'graphplan[executor]'")


def _stand_in(plan: Plan, options: Mapping[str, Any], *, check: bool) -> StandIn:
    import torch

    from executor.capturing import DTYPES, StandIn
    from executor.models.config import read_config

    on_cpu = check or options["device"] == "cpu"
    if not on_cpu and not torch.cuda.is_available():
        raise MachineError("PyTorch finds no GPU here; --device cpu captures on the CPU")
    dtype = ("float32" if on_cpu else "bfloat16") if options["dtype"] == "auto" else options["dtype"]
    configs = {name: options[name] and read_config(options[name]) for name in ("model", "draft")}
    return StandIn.of_plan(
        plan, **configs, shrink=options["shrink"], dtype=DTYPES[dtype], seed=options["seed"]
    )


def _captured(plan: Plan, stand_in: StandIn, options: Mapping[str, Any], *, quiet: bool) -> Outcome:
    from cache.safe import SafeCache
    from executor.capturing import Warmth, capture_plan
    from executor.guide import CaptureOptions

    budget, directory = options["memory_budget"], options["directory"]
    warmth = None
    if directory is not None and not options["cold"]:
        cache = SafeCache(directory, warn=lambda line: write_stderr(f"planner: warning: {line}\n"))
        warmth = Warmth(cache=cache, ready_after=options["ready_after"])
    with _progress(quiet=quiet) as progress:
        return capture_plan(
            plan,
            stand_in,
            options["device"],
            memory_budget=None if budget is None else budget * MIB,
            options=CaptureOptions(progress=progress, inspect=True),
            warmth=warmth,
        )


def _checked(plan: Plan, stand_in: StandIn) -> CheckReport:
    from executor.capturing import Rig
    from executor.check import check_factory

    rig = Rig.build(plan, stand_in, "cpu")
    return check_factory(rig.target.create_forward_fn, plan.entries(TARGET))


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Progress | None]:
    """A bar on a terminal; nothing where nobody looks."""
    if quiet or not is_terminal(sys.stderr):
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bars

    with Bars(console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, Any] = {}

        def progress(what: str, done: int, total: int, _: object) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done)

        yield progress


def summary(outcome: Outcome) -> Iterator[Block]:
    """A table for each family, and what the whole took."""
    for family in outcome.families:
        report = family.report
        yield Block(
            tuple(_rows(family)),
            title=f"{report.family} on {report.device}: {len(report.captured)} of {len(report.records)} "
            f"entries in {report.seconds:.2f} s, {report.num_bytes / MIB:.1f} MiB",
            numbers=frozenset({1, 2, 3, 4}),
        )
        if family.restart is not None:
            yield Block(tuple(Row((line,)) for line in _restart(family, family.restart)), title="restart")
    for name in outcome.left_out:
        yield Block((Row((f"{name}: not captured, as the reference models have no such family",)),))


def _restart(family: FamilyOutcome, restart: Restart) -> Iterator[str]:
    """What the cache was good for."""
    if not restart.is_warm:
        yield f"cold, {restart.reason}" if restart.reason else "cold"
        return
    warm_ups = sum(made.num_warmups for made in family.report.records)
    loaded, left_out = family.preloaded.made, family.preloaded.left_out
    yield (
        f"warm: ready after {family.ready_seconds:.2f} s, {counted(loaded, 'call')} loaded kernels ahead"
        f"{f', {left_out} could not' if left_out else ''}; {counted(warm_ups, 'warm-up forward')}"
    )
    record = restart.record
    if record is not None and restart.num_bytes is not None:
        yield (
            f"the graphs take {restart.num_bytes / MIB:.1f} MiB by the record, so no trial capture "
            f"({record.seconds:.2f} s when it was cold) is needed to size the KV cache"
        )
    if family.differing:
        names = ", ".join(label(entry) for entry in family.differing[:NAMED])
        more = len(family.differing) - NAMED
        yield (
            f"warning: other graphs than the record has, in the same circumstances: {names}"
            f"{f' and {more} more' if more > 0 else ''}; something changed that no fingerprint shows"
        )


def _rows(family: FamilyOutcome) -> Iterator[Row]:
    verdicts = {verdict.entry: verdict for verdict in family.verdicts}
    yield Row(("", "ms", "KiB", "nodes", "error", ""))
    for made in family.report.records:
        name = label(made.entry)
        if made.error is not None:
            yield Row((name, "-", "-", "-", "-", f"{made.error}; {made.fix}"), style="error")
            continue
        verdict = verdicts.get(made.entry)
        measured = (f"{made.seconds * 1e3:.1f}", f"{made.num_bytes / 1024:.0f}", str(made.num_nodes or "-"))
        if verdict is None:
            yield Row((name, *measured, "-", ""))
        elif verdict.ok:
            yield Row((name, *measured, f"{verdict.error:.0e}", ""))
        else:
            why = "differs from eager" if verdict.repeats else "differs from its own second replay"
            yield Row((name, *measured, f"{verdict.error:.0e}", why), style="error")


def outcome_json(outcome: Outcome) -> Mapping[str, Any]:
    """Everything that was measured, as JSON has it."""
    families = []
    for family in outcome.families:
        found = dict(family.report.as_json())
        verdicts = {verdict.entry: verdict for verdict in family.verdicts}
        for made, entry in zip(family.report.records, found["entries"], strict=True):
            verdict = verdicts.get(made.entry)
            if verdict is not None:
                entry["verified"] = {"error": verdict.error, "repeats": verdict.repeats, "ok": verdict.ok}
        if family.restart is not None:
            found["restart"] = {
                "warm": family.restart.is_warm,
                "reason": family.restart.reason,
                "ready_seconds": family.ready_seconds,
                "preloaded_calls": family.preloaded.made,
                "recorded_bytes": family.restart.num_bytes,
                "differing": [label(entry) for entry in family.differing],
            }
        families.append(found)
    return {"ok": outcome.ok, "families": families, "left_out": list(outcome.left_out)}


def _show_check(found: CheckReport, as_json: bool) -> None:
    if as_json:
        write_stdout(to_json({"ok": found.ok, "findings": [record(each) for each in found.findings]}))
        return
    rows = [
        Row(
            (f"{each.severity}  {each.code}", f"{each.file}:{each.line}: {each.message}\nfix: {each.fix}"),
            style=each.severity,
        )
        for each in found.findings
    ]
    title = f"capture check: {len(rows) or 'no'} findings in {found.num_operations} operations"
    show((Block(tuple(rows), title=title),))
