"""Plans that a careless hand wrote: every mistake has its finding, and right ones have none."""

from __future__ import annotations

import pytest

from planner import Plan, load_plan
from planner.documents.plan import Finding, Severity
from planner.verify import verify

GOOD = """
- {mode: PIECEWISE, num_tokens: 16}
- {mode: PIECEWISE, num_tokens: 8}
- {mode: FULL, num_tokens: 8, num_reqs: 4, uniform_token_count: 2}
- {mode: FULL, num_tokens: 4, num_reqs: 2, uniform_token_count: 2}
- {mode: FULL, num_tokens: 2, num_reqs: 1, uniform_token_count: 2}
"""


def by_hand(entries: str, *, deployment: str = "{}", resolved: str = "{}", family: str = "target") -> Plan:
    indented = entries.replace("\n-", "\n  -")
    return load_plan(
        f"apiVersion: graphplan/v1\nkind: Plan\ndeployment: {deployment}\nresolved: {resolved}\n"
        f"graphs:\n  {family}:{indented}"
    )


def findings(plan: Plan, *severities: str) -> dict[str, Finding]:
    """By code; of two with one code the first."""
    wanted = severities or (Severity.ERROR, Severity.WARNING)
    return {found.code: found for found in reversed(verify(plan)) if found.severity in wanted}


def test_a_good_plan_by_hand_has_no_findings_but_its_number_of_graphs() -> None:
    plan = by_hand(GOOD)
    assert not findings(plan)
    assert set(findings(plan, Severity.INFO)) == {"graph-count"}


@pytest.mark.parametrize(
    ("entry", "code", "message"),
    [
        (
            "- {mode: FULL, num_tokens: 2, num_reqs: 1, uniform_token_count: 2}",
            "duplicate-entry",
            "FULL 2 tokens, 1 request of 2 appears 2 times; only one is ever replayed",
        ),
        (
            "- {mode: FULL, num_tokens: 2, num_reqs: 1, uniform_token_count: 1}",
            "duplicate-descriptor",
            "FULL 2 tokens, 1 request of 2 and FULL 2 tokens, 1 request of 1 have the same batch descriptor",
        ),
        (
            "- {mode: PIECEWISE, num_tokens: 4}",
            "capture-order",
            "PIECEWISE 4 tokens is captured after FULL 2 tokens, 1 request of 2",
        ),
        ("- {mode: FULL, num_tokens: 1}", "impossible-entry", "FULL 1 token: a FULL graph needs num_reqs"),
        (
            "- {mode: FULL, num_tokens: 1, num_reqs: 3}",
            "impossible-entry",
            "FULL 1 token, 3 requests: 3 requests have at least 3 tokens",
        ),
        (
            "- {mode: FULL, num_tokens: 1, num_reqs: 1, uniform_token_count: 2}",
            "impossible-entry",
            "FULL 1 token, 1 request of 2: 1 requests of 2 are 2 tokens",
        ),
        (
            "- {mode: PIECEWISE, num_tokens: 1, num_reqs: 1}",
            "impossible-entry",
            "PIECEWISE 1 token, 1 request: a PIECEWISE graph serves any number of requests",
        ),
    ],
)
def test_a_wrong_entry_is_named(entry: str, code: str, message: str) -> None:
    assert f"graphs.target: {message}" in findings(by_hand(f"{GOOD}{entry}\n"))[code].message


TARGET = (
    "{target: {runner: v2, cudagraph_mode: FULL_AND_PIECEWISE, max_num_seqs: 4, max_num_batched_tokens: 64, "
    "decode_query_len: 2, uniform_query_lens: [2], cudagraph_capture_sizes: [8, 16], "
    "max_cudagraph_capture_size: 16%s}}"
)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            "- {mode: FULL, num_tokens: 12, num_reqs: 6, uniform_token_count: 2}",
            "FULL 12 tokens, 6 requests of 2 is never replayed: no more than 4 requests run at once",
        ),
        (
            "- {mode: FULL, num_tokens: 9, num_reqs: 3, uniform_token_count: 3}",
            "FULL 9 tokens, 3 requests of 3 is never replayed: a decode request has 2 tokens here, never 3",
        ),
        (
            "- {mode: PIECEWISE, num_tokens: 128}\n- {mode: PIECEWISE, num_tokens: 64}",
            "PIECEWISE 128 tokens is never replayed: no batch has more than 64 tokens",
        ),
        (
            "- {mode: FULL, num_tokens: 6, num_reqs: 3, uniform_token_count: 2, num_active_loras: 1}",
            "FULL 6 tokens, 3 requests of 2, 1 LoRA is never replayed: no batch has LoRA adapters",
        ),
        (
            "- {mode: FULL, num_tokens: 6, num_reqs: 3, uniform_token_count: 2, num_ubatches: 2}",
            (
                "FULL 6 tokens, 3 requests of 2, 2 microbatches is never replayed: "
                "no step is cut into 2 microbatches"
            ),
        ),
        (
            "- {mode: FULL, num_tokens: 3, num_reqs: 1, uniform_token_count: 2}",
            "FULL 3 tokens, 1 request of 2 is never replayed: no number of requests of 2 has 3 tokens",
        ),
    ],
)
def test_an_entry_that_no_batch_reaches_is_named_with_the_reason(entry: str, message: str) -> None:
    plan = by_hand(f"{GOOD}{entry}\n", resolved=TARGET % "")
    assert findings(plan)["unreachable-entry"].message == f"graphs.target: {message}"


def test_fewer_active_requests_than_max_num_seqs_leave_the_widest_entries_unused() -> None:
    plan = by_hand(GOOD, resolved=TARGET % ", max_num_active_seqs: 2")
    unused = findings(plan)["unreachable-entry"]
    assert "FULL 8 tokens, 4 requests of 2 is never replayed: no more than 2 requests" in unused.message
    assert unused.fix == "max_num_seqs: 2"


def test_a_draft_family_without_a_size_of_the_target_has_a_hole_of_its_own() -> None:
    family = GOOD.replace("- {mode: PIECEWISE, num_tokens: 16}\n- {mode: PIECEWISE, num_tokens: 8}\n", "")
    plan = by_hand(
        family.replace("- {mode: FULL, num_tokens: 8, num_reqs: 4, uniform_token_count: 2}\n", ""),
        resolved=(TARGET % "").replace("target", "draft").replace("FULL_AND_PIECEWISE", "FULL_DECODE_ONLY"),
        family="draft",
    )
    assert findings(plan)["decode-hole"].message == (
        "graphs.draft: uniform decode of 3 to 4 requests has no graph: 6 to 8 tokens run eagerly"
    )


def test_a_prologue_with_more_rows_than_all_requests_have_is_an_error() -> None:
    entry = (
        "\n- {mode: FULL, num_tokens: 8, num_reqs: 4, uniform_token_count: 2, "
        "prologue: {kind: dflash_context_kv, num_context_tokens: 10}}\n"
    )
    deployment = "{scheduler: {max_num_seqs: 4}, speculative: {method: dflash, num_speculative_tokens: 1}}"
    plan = by_hand(entry, deployment=deployment, family="draft")
    assert findings(plan)["draft-buffer"].severity == Severity.ERROR
    assert findings(plan)["draft-buffer"].fix == "num_context_tokens: 8"


V1 = "{target: {runner: v1, cudagraph_mode: FULL_DECODE_ONLY, decode_query_len: 2, max_num_seqs: 4%s}}"


def test_v1_sizes_that_no_whole_requests_have_are_an_error() -> None:
    """V1 does not round at run time: it stops at the first batch that is padded to such a size."""
    entries = (
        "\n- {mode: FULL, num_tokens: 8, num_reqs: 4, uniform_token_count: 2}"
        "\n- {mode: FULL, num_tokens: 4, num_reqs: 2, uniform_token_count: 2}\n"
    )
    assert "misaligned-size" not in findings(by_hand(entries, resolved=V1 % ""))
    wrong = findings(by_hand(entries, resolved=V1 % ", cudagraph_capture_sizes: [4, 7, 8]"))[
        "misaligned-size"
    ]
    assert wrong.severity == Severity.ERROR
    assert "decode of 3 requests of 2 is padded to 7 tokens" in wrong.message
    assert wrong.fix == "make size 7 a multiple of 2: 8"


def test_encoder_graphs_are_not_judged_as_if_images_were_requests() -> None:
    entries = "\n- {mode: FULL, num_tokens: 512, num_reqs: 4}\n- {mode: FULL, num_tokens: 64, num_reqs: 4}\n"
    plan = by_hand(entries, family="encoder", deployment="{model: {max_model_len: 8}}")
    assert set(findings(plan)) == {"no-target"}


def test_a_plan_without_the_served_model_itself_says_so() -> None:
    missing = findings(by_hand(GOOD, family="draft"))["no-target"]
    assert missing.severity == Severity.WARNING
    assert missing.message.endswith("it has draft")
    assert findings(load_plan("apiVersion: graphplan/v1\nkind: Plan\ngraphs: {}\n")).keys() == {"no-target"}
    assert not findings(load_plan("apiVersion: graphplan/v1\nkind: Plan\ngraphs: {target: []}\n"))


def test_a_plan_of_countless_query_lengths_is_refused_quickly_instead_of_verified_for_hours() -> None:
    entries = "\n".join(
        f"- {{mode: FULL, num_tokens: {size}, num_reqs: 1, uniform_token_count: {size}}}\n"
        f"- {{mode: PIECEWISE, num_tokens: {size}}}"
        for size in range(1000, 0, -1)
    )
    assert findings(by_hand(f"\n{entries}\n"))["unverified"].severity == Severity.ERROR
