"""``planner capture``: captures a plan on this machine, and proves every graph."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from planner.cli.answers import record, to_json
from planner.cli.blocks import Block, Row
from planner.cli.capture_summary import MIB, outcome_json, summary
from planner.cli.files import naming, read_plan, shown_name
from planner.cli.options import count, examples, not_empty, number
from planner.cli.render import is_terminal, show
from planner.cli.streams import write_stderr, write_stdout
from planner.documents.digest import is_edited
from planner.documents.plan import Plan
from planner.errors import MachineError

if TYPE_CHECKING:
    from executor.capturing import Outcome, StandIn
    from executor.check import CheckReport
    from executor.guide import Progress

A_CONFIG = not_empty("the name of a config.json")

ALL = 1.0
"""The share of traffic that waits for all entries, also those without any."""

IDLE = {
    "check": frozenset(
        {"device", "memory_budget", "directory", "cold", "ready_after", "materialize", "prove"}
    ),
    "cold": frozenset({"ready_after", "materialize", "prove"}),
}
"""Options that another one leaves nothing to do."""


@click.command(
    "capture",
    epilog=examples(
        "planner capture plan.yaml --device cpu --shrink",
        "planner capture plan.yaml --device cuda",
        "planner capture plan.yaml --model config.json --device cuda --memory-budget 2048 --json",
        "planner capture plan.yaml --cache /var/cache/graphplan --ready-after 0.99",
        "planner capture plan.yaml --cache /var/cache/graphplan --materialize",
        "planner capture plan.yaml --shrink --check     # needs no GPU",
    ),
)
@click.argument("plan", metavar="PLAN")
@click.option(
    "--model",
    metavar="CONFIG",
    callback=A_CONFIG,
    help="The model's config.json; by default the plan's own model.",
)
@click.option(
    "--draft",
    metavar="CONFIG",
    callback=A_CONFIG,
    help="The DFlash drafter's config.json; by default the plan's.",
)
@click.option(
    "--device",
    type=click.Choice(("cuda", "cpu")),
    default="cuda",
    show_default=True,
    help="Where to capture; on a CPU, a tape of operations takes the place of a graph.",
)
@click.option("--shrink", is_flag=True, help="A few small layers of the same kind, to try a plan anywhere.")
@click.option(
    "--dtype",
    type=click.Choice(("auto", "float32", "bfloat16", "float16")),
    default="auto",
    show_default=True,
    help="Type of weights; auto is bfloat16 on a GPU and float32 on a CPU.",
)
@click.option(
    "--seed",
    metavar="N",
    type=count(0),
    default="0",
    show_default=True,
    help="Seed of the random weights.",
)
@click.option("--memory-budget", type=count(1), metavar="MIB", help="What all graphs may take, in MiB.")
@click.option(
    "--cache",
    "directory",
    metavar="DIR",
    callback=not_empty("a directory"),
    help="Use what this cache knows, and keep what is new.",
)
@click.option("--cold", is_flag=True, help="Leave the cache of --cache alone.")
@click.option(
    "--ready-after",
    metavar="SHARE",
    type=number(0, 1),
    help="Serving begins once this share, from 0 to 1, of the traffic that the cache has recorded has its "
    "graphs; by default once all entries have.",
)
@click.option(
    "--materialize",
    is_flag=True,
    help="Experimental, GPU only: keep the graphs themselves in the cache, and rebuild those that it has "
    "without running the model.",
)
@click.option(
    "--prove",
    type=click.Choice(("all", "sample", "none")),
    help="Which rebuilt graphs are compared with eager on poisoned memory before they serve; by default all.",
)
@click.option("--check", is_flag=True, help="Only look for what would break a capture; on the CPU.")
@click.option("--json", "as_json", is_flag=True, help="Print everything that was measured as JSON.")
@click.pass_context
def command(ctx: click.Context, /, plan: str, as_json: bool, check: bool, **options: Any) -> None:
    """Capture the graphs of PLAN on this machine, replay each, and compare it with eager.

    The model is a stand-in: the shape of CONFIG with random weights, run in plain PyTorch. That tells
    whether every graph of the plan can be had here, and what the capture costs.

    With --materialize the graphs themselves are kept beside the record, and the next start puts them together
    again without running the model; each is compared with eager before it serves, and what cannot be rebuilt
    is captured, with the reason.

    With --cache the capture is recorded, and the next one in the same circumstances goes by the record: it
    loads kernels ahead instead of running warm-up forwards, captures the most used graphs first, and leaves
    out those that failed. A cache that is broken or of another machine is told and never stops a capture.
    What is read of a cache is verified, and only that: planner cache check reads all of it.

    Exits with 1 if an entry could not be captured or differs from eager, and with 3 if the machine has
    no GPU or no PyTorch.
    """
    _refuse_idle(options)
    _require_torch()
    document = read_plan(plan)
    for note in _notes(ctx, document):
        write_stderr(f"planner: note: {note}\n")
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


def _refuse_idle(options: Mapping[str, Any]) -> None:
    """Refuses options that mean nothing without another one.

    Raises:
        UsageError: one is given, and not the other.
    """
    if options["prove"] is not None and not options["materialize"]:
        raise click.UsageError("--prove is about graphs that are rebuilt; give --materialize as well")
    if options["materialize"] and options["device"] == "cpu":
        raise click.UsageError("--materialize needs a GPU: graphs of --device cpu are not rebuilt")
    if options["directory"] is None:
        given = {
            "--cold": options["cold"],
            "--ready-after": options["ready_after"] is not None,
            "--materialize": options["materialize"],
        }
        for option in (name for name, is_given in given.items() if is_given):
            raise click.UsageError(f"{option} is about a cache; name one with --cache DIR")


def _notes(ctx: click.Context, plan: Plan) -> Iterator[str]:
    """What somebody who reads the results should know of how they came about."""
    switch = "check" if ctx.params["check"] else "cold" if ctx.params["cold"] else None
    idle = () if switch is None else tuple(_given(ctx, IDLE[switch]))
    if idle:
        yield f"without effect with --{switch}: {', '.join(idle)}"
    if is_edited(plan):
        yield (
            f"{shown_name(ctx.params['plan'])} was changed after it was compiled: its graphs are captured as "
            "they stand, which need not be those that its engine would capture; planner check says more"
        )


def _given(ctx: click.Context, names: Collection[str]) -> Iterator[str]:
    """Those of the options ``names`` that the user gave, but the CPU, which is what a check runs on."""
    for option in ctx.command.params:
        name = option.name or ""
        is_given = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if is_given and name in names and ctx.params[name] != "cpu":
            yield option.opts[0]


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
        share = options["ready_after"]
        warmth = Warmth(
            cache=cache,
            ready_after=ALL if share is None else share,
            materialize=options["materialize"],
            verify=options["prove"] or "all",
        )
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
    from executor.check import CheckReport, check_factory
    from executor.check.report import merged

    parts = Rig.build(plan, stand_in, "cpu").parts()
    reports = [check_factory(part.create_forward_fn, part.manager.entries) for part in parts]
    return CheckReport(
        findings=merged(finding for report in reports for finding in report.findings),
        num_operations=max(report.num_operations for report in reports),
    )


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
