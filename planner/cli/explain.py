"""``planner explain``: which graph serves one batch, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from planner.cli.answers import dispatch_answer, record, to_json
from planner.cli.blocks import Block, Row, attention_text, decision_blocks, heading
from planner.cli.files import naming, read_plan, shown_name
from planner.cli.options import count, examples, family_option, output_format
from planner.cli.render import show
from planner.cli.streams import write_stdout
from planner.describe import counted, label
from planner.documents.data import plain
from planner.documents.deployment import Json
from planner.explain import Explanation, explain
from planner.policies.compare import UnderPolicy, under_other_policies
from planner.queries import Query


@click.command(
    "explain",
    epilog=examples(
        "planner explain plan.yaml --num-reqs 5 --num-tokens 80 --uniform-token-count 16",
        "planner explain plan.yaml --num-reqs 5 --num-tokens 600",
        "planner compile deployment.yaml -q | planner explain - --num-reqs 1 --num-tokens 1",
    ),
)
@click.argument("source", metavar="PLAN")
@click.option("--num-reqs", type=count(1), required=True, metavar="R", help="Requests of the batch.")
@click.option(
    "--num-tokens", type=count(1), required=True, metavar="T", help="Tokens of all requests together."
)
@click.option(
    "--uniform-token-count", type=count(1), metavar="U", help="Tokens of each request, if all have the same."
)
@click.option("--uniform-decode", is_flag=True, help="Each request has the family's decode query length.")
@click.option("--num-active-loras", type=count(0), default="0", metavar="L", help="Active LoRA adapters.")
@click.option(
    "--max-query-len",
    type=count(1),
    metavar="Q",
    help="Tokens of the longest request, if none is in prefill.",
)
@click.option("--num-ubatches", type=count(1), default="1", metavar="N", help="Microbatches of the step.")
@family_option
@output_format("text", "json")
def command(source: str, family: str, form: str, **batch: int | bool | None) -> None:
    """Explain what PLAN does with one batch.

    Shows the graph that serves it, the padding, every graph that dispatch looks at and why it fits
    or not, the decisions that led there, and what other policies would have it run in. - reads the
    plan from standard input.
    """
    plan = read_plan(source)
    with naming(source):
        explanation = explain(plan, Query(**batch), family)  # type: ignore[arg-type]
    others = tuple(under_other_policies(plan, explanation.query, family))
    if form == "json":
        write_stdout(to_json({**as_json(explanation), "other_policies": _others_json(others, explanation)}))
    else:
        blocks = summary(explanation, plan.name or shown_name(source))
        show((*blocks, *_other_blocks(others, explanation)))


def _other_blocks(others: Sequence[UnderPolicy], explanation: Explanation) -> Iterator[Block]:
    """What the batch would run in if another policy had chosen the sizes."""
    rows = []
    for other in others:
        graph = "none: it runs eagerly" if other.entry is None else label(other.entry)
        tokens = other.padding(explanation.query.num_tokens)
        padding = f"{counted(tokens, 'token')} of padding" if tokens else "no padding"
        rows.append(Row((str(other.policy), graph, "" if other.entry is None else padding)))
    if rows:
        yield Block(tuple(rows), title="under other policies")


def _others_json(others: Sequence[UnderPolicy], explanation: Explanation) -> Json:
    return {
        str(other.policy): {
            "entry": plain(other.entry),
            "padding_tokens": other.padding(explanation.query.num_tokens),
        }
        for other in others
    }


def summary(explanation: Explanation, name: str) -> Iterator[Block]:
    """The explanation for a person."""
    yield heading(f"{name}: family {explanation.family}, runner {explanation.runner}")
    yield Block(tuple(_facts(explanation)))
    if explanation.candidates:
        yield Block(tuple(_candidate_rows(explanation)), title="graphs looked at, in this order")
    yield from decision_blocks(explanation.decisions)


def _facts(explanation: Explanation) -> Iterator[Row]:
    entry = explanation.entry
    yield Row(("batch", _batch_text(explanation.query)))
    if entry is None:
        yield Row(("graph", "none: it runs eagerly, unpadded"), "warning")
    else:
        yield Row(("graph", label(entry)), "good")
        yield Row(("padding", _padding_text(explanation)))
        if entry.prologue is not None:
            yield Row(
                ("prologue", f"{entry.prologue.kind}, {entry.prologue.num_context_tokens} context tokens")
            )
    for note in explanation.notes:
        yield Row(("note", note))
    active, case = explanation.query.num_active_loras, explanation.lora_case
    if active != case and entry is not None:
        yield Row(("LoRA", f"{active} active, served by the graph captured for {case}"))
    if explanation.attention_support is not None:
        text = attention_text(explanation.attention_support, explanation.limiting_groups)
        yield Row(("attention", text))


def _batch_text(query: Query) -> str:
    requests = counted(query.num_reqs or 0, "request")
    if query.uniform_token_count is not None:
        requests += f" of {query.uniform_token_count}"
    elif query.max_query_len is not None:
        requests += f" of up to {query.max_query_len}"
    pieces = f", {query.num_ubatches} microbatches" if query.num_ubatches > 1 else ""
    return f"{requests}, {counted(query.num_tokens, 'token')}{pieces}"


def _padding_text(explanation: Explanation) -> str:
    tokens, reqs = explanation.padding_tokens, explanation.padding_reqs
    if not tokens and not reqs:
        return "none"
    text = f"{counted(tokens, 'token')} ({explanation.padding_share:.1%} of the graph)"
    return f"{text}, {counted(reqs, 'request')}" if reqs else text


def _candidate_rows(explanation: Explanation) -> Iterator[Row]:
    is_served = False
    for candidate in explanation.candidates:
        if candidate.obstacles:
            verdict, style = "; ".join(candidate.obstacles), None
        elif is_served:
            verdict, style = "fits too, but comes later", None
        else:
            verdict, style, is_served = "serves", "good", True
        yield Row((label(candidate.entry), verdict), style)
    if not is_served:
        yield Row(("eager", "what is left"), "warning")


def as_json(explanation: Explanation) -> Json:
    """The explanation for a program."""
    return {
        "family": explanation.family,
        "runner": str(explanation.runner),
        "batch": record(explanation.query),
        "answer": dispatch_answer(explanation.answer),
        "entry": plain(explanation.entry),
        "padding": {
            "num_tokens": explanation.padding_tokens,
            "share": round(explanation.padding_share, 6),
            "num_reqs": explanation.padding_reqs,
        },
        "lora_case": explanation.lora_case,
        "candidates": [
            {
                "entry": plain(candidate.entry),
                "fits": not candidate.obstacles,
                "obstacles": list(candidate.obstacles),
            }
            for candidate in explanation.candidates
        ],
        "attention_support": plain(explanation.attention_support),
        "limiting_groups": [record(group) for group in explanation.limiting_groups],
        "notes": list(explanation.notes),
        "decisions": [record(decision) for decision in explanation.decisions],
    }
