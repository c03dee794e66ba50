"""Plans that fuzzing found to end verification in an error instead of in findings."""

from __future__ import annotations

import pytest

from planner import load_plan
from planner.verify import verify

HEADER = "apiVersion: graphplan/v1\nkind: Plan\n"
RESOLVED = "target: {runner: v2, cudagraph_mode: FULL, max_num_seqs: 4, max_num_batched_tokens: 8}"


@pytest.mark.parametrize(
    "text",
    [
        f"resolved: {{{RESOLVED}}}\ngraphs: {{}}\n",
        (
            f"deployment: {{device: {{compute_capability: new}}}}\nresolved: {{{RESOLVED}}}\n"
            "graphs: {target: []}\n"
        ),
    ],
    ids=["resolved family without graphs", "device that nothing compiles for"],
)
def test_a_plan_written_by_hand_gets_findings_whatever_stands_around_its_graphs(text: str) -> None:
    assert isinstance(verify(load_plan(HEADER + text)), tuple)
