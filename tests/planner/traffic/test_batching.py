"""The model of continuous batching, against one that takes every step by itself."""

from __future__ import annotations

from collections import Counter, deque

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from planner.traffic import batching as module
from planner.traffic.batching import Batching, ReplayError, Run, replay, replayed
from planner.traffic.trace import Trace

MS = 1_000_000

requests = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 60), st.integers(1, 30)), min_size=1, max_size=25
)
batchings = st.builds(
    Batching,
    max_num_seqs=st.integers(1, 6),
    step_time=st.sampled_from((1.0, 7.0, 25.0)),
    prefill_rate=st.sampled_from((100, 20_000)),
    chunk=st.sampled_from((1, 3, 16, 1000)),
    rate=st.sampled_from((0.25, 1.0, 3.0)),
    query_len=st.sampled_from((1, 3)),
    tokens_per_step=st.sampled_from((1.0, 2.5)),
)


def trace_of(rows: list[tuple[int, int, int]]) -> Trace:
    """Requests of (arrival in ms, prompt, output)."""
    rows = sorted(rows, key=lambda row: row[0])
    first = rows[0][0]
    return Trace([(at - first) * MS for at, _, _ in rows], [row[1] for row in rows], [row[2] for row in rows])


def step_by_step(trace: Trace, server: Batching) -> list[tuple[int, int]]:
    """When each step with decode begins and how many decodes it has; written as the model is told."""
    waiting = deque(
        [server.scaled(at), prompt, output]
        for at, prompt, output in zip(trace.arrivals, trace.prompts, trace.outputs, strict=True)
    )
    prompts: deque[list[int]] = deque()
    decoding: list[float] = []
    now, steps = 0, []
    while waiting or prompts or decoding:
        if not prompts and not decoding:
            now = max(now, waiting[0][0])
        while waiting and waiting[0][0] <= now and len(prompts) + len(decoding) < server.max_num_seqs:
            prompts.append(waiting.popleft())
        if decoding:
            steps.append((now, len(decoding)))
        room = server.chunk - len(decoding) * server.query_len
        prefilled, first_tokens = 0, []
        while prompts and prefilled < room:
            taken = min(prompts[0][1], room - prefilled)
            prefilled += taken
            prompts[0][1] -= taken
            if prompts[0][1] == 0:
                first_tokens.append(prompts.popleft()[2] - 1)
        decoding = [left - server.tokens_per_step for left in decoding if left > server.tokens_per_step]
        decoding += [left for left in first_tokens if left]
        now += round(server.step_time * MS) + prefilled * 1_000_000_000 // server.prefill_rate
    return steps


def unrolled(runs: list[Run]) -> list[tuple[int, int]]:
    return [(run.start + run.duration * step, run.decodes) for run in runs for step in range(run.steps)]


@given(requests, batchings)
def test_runs_are_the_steps_of_the_model(rows: list[tuple[int, int, int]], server: Batching) -> None:
    trace = trace_of(rows)
    assert unrolled(list(replay(trace, server))) == step_by_step(trace, server)


@given(requests, batchings)
def test_every_generated_token_is_counted_once_and_no_step_is_too_wide(
    rows: list[tuple[int, int, int]], server: Batching
) -> None:
    server = evolve(server, tokens_per_step=1.0)
    runs = list(replay(trace_of(rows), server))
    # A prompt's last step yields the first token.
    assert sum(run.steps * run.decodes for run in runs) == sum(output - 1 for *_, output in rows)
    assert all(1 <= run.decodes <= server.max_num_seqs for run in runs)


@given(requests, batchings, st.integers(1, 9))
def test_time_spans_have_the_steps_that_begin_in_them(
    rows: list[tuple[int, int, int]], server: Batching, blocks: int
) -> None:
    trace = trace_of(rows)
    span = server.scaled(trace.span)
    expected = [Counter[int]() for _ in range(blocks)]
    for start, decodes in unrolled(list(replay(trace, server))):
        expected[min(start * blocks // span, blocks - 1) if span else 0][decodes] += 1
    while expected and not expected[-1]:
        expected.pop()
    found = replayed(trace, server, blocks=blocks)
    spans = found.blocks or ((found.rows,) if found.rows else ())
    assert [{row.num_reqs: row.count for row in rows} for rows in spans] == expected


def test_a_step_lasts_its_time_and_that_of_its_prefill() -> None:
    trace = trace_of([(0, 200, 3), (0, 100, 2)])
    server = Batching(step_time=25, prefill_rate=20_000, chunk=250)
    # 250 tokens of prefill, then 50 more beside the first request's decode, then its last and the second's.
    assert list(replay(trace, server)) == [
        Run(37_500_000, 25_000_000 + 2_500_000, 1, 1),
        Run(65_000_000, 25_000_000, 1, 2),
    ]


def test_a_quarter_of_the_rate_is_four_times_the_time_between_arrivals() -> None:
    trace = trace_of([(0, 1, 2), (1000, 1, 2)])
    starts = [run.start for run in replay(trace, Batching(rate=0.25, prefill_rate=1_000_000_000))]
    assert starts == [25_000_001, 4_025_000_001]


def test_a_decode_request_takes_its_query_length_of_the_chunk_and_counts_its_tokens() -> None:
    trace = trace_of([(0, 4, 9), (0, 4, 9)])
    found = replayed(trace, Batching(chunk=8, query_len=4, tokens_per_step=4))
    assert [(row.num_reqs, row.num_tokens, row.count) for row in found.rows] == [(2, 8, 2)]


def test_long_outputs_take_no_longer_than_short_ones() -> None:
    trace = trace_of([(0, 10, 10_000_000), (5, 10, 10_000_000)])
    assert sum(run.steps for run in replay(trace, Batching())) == 10_000_000


LONGEST = 10_000_000


@pytest.mark.parametrize(
    ("number", "output", "server"),
    [
        (50, 10, Batching(chunk=1)),
        (50, 10, Batching(chunk=9, step_time=0.001, prefill_rate=1)),
        (20_000, LONGEST, Batching()),
    ],
    ids=["chunks of 1", "chunks of 9, slow prefill", "20,000 of the longest"],
)
def test_long_prompts_in_small_chunks_are_not_replayed_chunk_by_chunk(
    number: int, output: int, server: Batching
) -> None:
    trace = Trace([second * MS for second in range(number)], [LONGEST] * number, [output] * number)
    runs = list(replay(trace, server))
    assert len(runs) <= 3 * number
    assert sum(run.steps * run.decodes for run in runs) == number * (output - 1)


@given(
    st.lists(
        st.tuples(st.integers(0, 900), st.integers(0, 2_000), st.integers(1, 90)), min_size=1, max_size=6
    ),
    batchings,
)
def test_prefill_in_bulk_is_prefill_step_by_step(rows: list[tuple[int, int, int]], server: Batching) -> None:
    trace = trace_of(rows)
    assert unrolled(list(replay(trace, server))) == step_by_step(trace, server)


@given(requests, batchings)
def test_there_are_no_more_runs_than_changes_of_the_batch(
    rows: list[tuple[int, int, int]], server: Batching
) -> None:
    # A request arrives, has its prompt done, and ends.
    assert len(list(replay(trace_of(rows), server))) <= 3 * len(rows)


def test_a_replay_that_takes_too_long_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_RUNS", 100)
    trace = trace_of([(100 * number, 5, 2) for number in range(60)])
    with pytest.raises(ReplayError) as caught:
        list(replay(trace, Batching()))
    assert str(caught.value) == (
        "the batch changes more than 100 times, after which 50 of 60 requests have their first token; "
        "give a part of the trace"
    )


def test_nothing_served_is_an_empty_histogram() -> None:
    assert replayed(Trace((), (), ()), Batching()).rows == ()
