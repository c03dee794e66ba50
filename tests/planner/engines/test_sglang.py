"""Plans of SGLang: the worked examples of its rules, drafts, dispatch, refusals, what a person is told."""

from __future__ import annotations

from typing import Any

import pytest

from planner import Batch, Plan, PlanEntry, PlanError, agree, compile_plan, dump_plan, load_plan
from planner.documents.plan import Finding
from planner.engines.sglang.tiers import tier_of
from planner.modes import CUDAGraphMode
from tests.planner.engines.documents import sglang, sizes
from tests.planner.golden_lines import PROJECT

FULL, PIECEWISE = CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE
DEEPSEEK = {"config": str(PROJECT / "plans" / "models" / "deepseek-v3" / "config.json")}

S256 = "1, 2, 4, 8, 12, 16..256/8"
S512 = f"{S256}, 272..512/16"
L1K = "4..32/4, 48..256/16, 288..512/32, 576..1024/64"
L2K = f"{L1K}, 1280..2048/256"
L4K = f"{L1K}, 1280..4096/256"
L8K = f"{L4K}, 4608..8192/512"
PADDED_L8K = "8..32/8, 48..256/16, 288..512/32, 576..1024/64, 1280..4096/256, 4608..8192/512"


def gib(mib: int) -> dict[str, Any]:
    return {"device": {"memory_gib": mib / 1024}}


def ranks(tp: int, attn_dp: int | None = None) -> dict[str, Any]:
    if attn_dp is None:
        return {"parallel": {"tensor_parallel_size": tp}}
    return {
        "parallel": {"tensor_parallel_size": tp, "data_parallel_size": attn_dp, "enable_dp_attention": True}
    }


def limit(seqs: int | None = None, chunk: int | None = None) -> dict[str, Any]:
    return {"scheduler": {"max_num_seqs": seqs, "max_num_batched_tokens": chunk}}


def drafts(method: str, k: int) -> dict[str, Any]:
    return {"speculative": {"method": method, "num_speculative_tokens": k}}


H100, H200, RTX = gib(81559), gib(143771), gib(24564)
DEEPEP = {"moe_a2a_backend": "deepep"}

#        own settings, other sections, decode requests, prefill tokens (None: no graphs)
WORKED: list[tuple[dict[str, Any], dict[str, Any], str | None, str | None]] = [
    ({}, {**H100}, S256, L8K),
    ({}, {**H100, **ranks(4)}, S512, L8K),
    ({}, {**RTX}, "1, 2, 4, 8, 12, 16, 24, 32, 40, 48", L4K),
    ({}, {**RTX, **ranks(4)}, "1, 2, 4, 8, 12, 16..160/8", L4K),
    ({}, gib(46068), "1, 2, 4, 8, 12, 16, 24, 32", L4K),
    ({}, {**gib(15360), **ranks(8)}, "1, 2, 4, 8", L2K),
    ({}, gib(183359), S512, f"{L8K}, 8704..16384/512"),
    ({}, {**H100, **limit(100)}, "1, 2, 4, 8, 12, 16..96/8, 100", L8K),
    ({}, {**H100, **limit(10)}, "1, 2, 4, 8, 10", L8K),
    ({"cuda_graph_max_bs_decode": 300}, {**H100, **limit(100)}, "1, 2, 4, 8, 12, 16..96/8, 100", L8K),
    ({"cuda_graph_bs_decode": [1, 7, 3, 3], "cuda_graph_max_bs": 64}, H100, "1, 3, 7", L8K),
    ({"cuda_graph_bs": [1, 7, 300]}, {**H100, **limit(100)}, "1, 7, 100", L8K),
    ({}, {**H100, **drafts("eagle", 3)}, "1..8, 10..32/2, 40, 44, 48", L8K),
    ({}, {**H100, **drafts("dflash", 7), **limit(21)}, "1..8, 10..20/2, 21", L8K),
    ({}, {**H200, **ranks(8, 4), **limit(100)}, "2, 4, 8, 12, 16, 24, 26", L2K),
    ({}, {**H200, **ranks(8, 2), **limit(100), **drafts("eagle", 3)}, "1..8, 10..32/2, 40..52/4", L4K),
    (
        DEEPEP,
        {**H200, **ranks(8)},
        "8..256/8, 272..512/16",
        "8..32/8, 48..256/16, 288..512/32, 576..1024/64, 1280..2048/256",
    ),
    (DEEPEP, {**H200, **ranks(8, 8)}, S512, L1K),
    ({**DEEPEP, "moe_dense_tp_size": 1, "enable_dp_lm_head": True}, {**H200, **ranks(8, 8)}, S512, L1K),
    ({**DEEPEP, "enable_two_batch_overlap": True}, {**H200, **ranks(8, 2)}, "8..256/8, 272..512/16", None),
    ({}, {**H100, **limit(chunk=1000)}, S256, "4..32/4, 48..256/16, 288..512/32, 576..960/64"),
    ({}, {**H100, **limit(chunk=-1)}, S256, None),
    ({}, {**H100, "parallel": {"pipeline_parallel_size": 2}}, S256, None),
    ({"disable_cuda_graph_padding": True}, {**H100, **limit(12)}, "1..12", L8K),
    (
        {
            "cuda_graph_config": {"decode": {"max_bs": 20}, "prefill": {"bs": [512, 100]}},
            "cuda_graph_max_bs_decode": 64,
            "cuda_graph_max_bs_prefill": 50,
        },
        H100,
        "1, 2, 4, 8, 12, 16, 20",
        "100, 512",
    ),
    ({"disable_cuda_graph": True, "cuda_graph_backend_decode": "full"}, H100, S256, None),
    (
        {},
        {**H200, **ranks(16, 2), **limit(chunk=32768), "model": DEEPSEEK},
        "8..256/8, 272..512/16",
        PADDED_L8K,
    ),
    ({"disaggregation_mode": "prefill"}, H100, None, L8K),
    ({"cuda_graph_bs_decode": [1, 3, 5]}, {**H100, **ranks(2, 2), **limit(8)}, "1, 3, 4", L4K),
]


def decode_of(plan: Plan, family: str = "target") -> list[int]:
    return sorted(entry.num_reqs or 0 for entry in plan.entries(family) if entry.uniform_token_count)


def prefill_of(plan: Plan) -> list[int]:
    return sorted(entry.num_tokens for entry in plan.entries() if not entry.uniform_token_count)


def found(plan: Plan, code: str) -> list[Finding]:
    return [finding for finding in plan.findings if finding.code == code]


@pytest.mark.parametrize(("own", "sections", "decode", "prefill"), WORKED)
def test_the_worked_examples(
    own: dict[str, Any], sections: dict[str, Any], decode: str | None, prefill: str | None
) -> None:
    plan = compile_plan(sglang(own, **sections))
    assert decode_of(plan) == (sizes(decode) if decode else [])
    assert prefill_of(plan) == (sizes(prefill) if prefill else [])
    assert load_plan(dump_plan(plan)) == plan


@pytest.mark.parametrize(
    ("mib", "chunk", "few", "many"),
    [
        (20479, 2048, 8, 8),
        (20480, 4096, 48, 160),
        (35839, 4096, 48, 160),
        (35840, 4096, 32, 160),
        (61439, 4096, 32, 160),
        (61440, 8192, 256, 512),
        (92160, 8192, 256, 512),
        (163839, 8192, 256, 512),
        (163840, 16384, 512, 512),
        (None, 4096, 160, 160),
    ],
)
def test_tiers_begin_at_their_bound(mib: int | None, chunk: int, few: int, many: int) -> None:
    tier = tier_of(None if mib is None else mib / 1024)
    assert tier.chunked_prefill_size == chunk
    assert (tier.decode_max_bs(3), tier.decode_max_bs(4)) == (few, many)


def test_prefill_is_captured_before_decode_and_each_from_the_largest() -> None:
    plan = compile_plan(sglang({"cuda_graph_bs_decode": [2, 1], "cuda_graph_bs_prefill": [4, 8]}))
    assert plan.entries() == (
        PlanEntry(PIECEWISE, 8),
        PlanEntry(PIECEWISE, 4),
        PlanEntry(FULL, 2, 2, 1),
        PlanEntry(FULL, 1, 1, 1),
    )
    assert not found(plan, "capture-order")


def test_full_prefill_has_slots_and_breakable_decode_is_in_pieces() -> None:
    own = {
        "cuda_graph_config": {
            "decode": {"backend": "breakable", "bs": [2]},
            "prefill": {"backend": "full", "bs": [4, 64], "full_prefill_max_req": 3},
        }
    }
    plan = compile_plan(sglang(own, **limit(4)))
    assert plan.entries() == (PlanEntry(FULL, 64, 3), PlanEntry(FULL, 4, 3), PlanEntry(PIECEWISE, 2, 2, 1))
    codes = {finding.code for finding in plan.findings}
    assert not codes & {"impossible-entry", "capture-order", "duplicate-descriptor"}
    table = plan.dispatch_table()
    assert table.dispatch(3, 50).num_tokens == 64
    assert not table.dispatch(4, 50).cg_mode
    assert any("no graph holds more than 3 requests" in one.message for one in found(plan, "prefill-hole"))


def test_a_null_in_the_json_config_counts_as_given() -> None:
    own = {"cuda_graph_config": {"decode": {"max_bs": None}}, "cuda_graph_max_bs_decode": 64}
    plan = compile_plan(sglang(own, **H100))
    assert decode_of(plan)[-1] == 256
    assert load_plan(dump_plan(plan)).deployment == plan.deployment


def test_eagle_drafts_have_families_with_stricter_sizes() -> None:
    plan = compile_plan(sglang({}, **H200, **ranks(8, 2), **limit(100), **drafts("eagle", 3)))
    assert list(plan.graphs) == ["target", "draft_prefill", "draft_decode", "draft_extend"]
    stricter = sizes("4..32/4, 40..52/4")
    assert decode_of(plan, "draft_decode") == decode_of(plan, "draft_extend") == stricter
    lengths = [
        plan.resolved[family].decode_query_len for family in ("target", "draft_decode", "draft_extend")
    ]
    assert lengths == [4, 1, 4]
    assert plan.dispatch_table().dispatch(3, 12, 4).num_reqs == 3
    assert plan.dispatch_table("draft_extend").dispatch(3, 12, 4).num_reqs == 4


def test_a_draft_of_one_step_decodes_no_further() -> None:
    assert "draft_decode" not in compile_plan(sglang({}, **drafts("nextn", 1))).graphs


def test_the_environment_turns_draft_extend_off() -> None:
    env = {"engine": {"env": {"SGLANG_DISABLE_DRAFT_EXTEND_CUDA_GRAPH": "true"}}}
    assert "draft_extend" not in compile_plan(sglang({}, **drafts("eagle", 3), **env)).graphs


def test_a_tree_is_what_sglangs_own_settings_say() -> None:
    own = {"speculative_num_steps": 5, "speculative_eagle_topk": 4, "speculative_num_draft_tokens": 8}
    plan = compile_plan(sglang(own, speculative={"method": "eagle"}))
    lengths = {family: plan.resolved[family].decode_query_len for family in plan.graphs}
    assert lengths["target"] == lengths["draft_extend"] == 8
    assert lengths["draft_decode"] == 4


def test_a_tree_by_default_depends_on_the_model() -> None:
    llama = {"config": str(PROJECT / "plans" / "models" / "llama-3.1-8b" / "config.json")}
    lengths = [
        compile_plan(sglang({}, model=model, speculative={"method": "eagle3"}))
        .resolved["target"]
        .decode_query_len
        for model in (llama, DEEPSEEK)
    ]
    assert lengths == [8, 4]


@pytest.mark.parametrize(
    ("sections", "own", "message", "field"),
    [
        ({"speculative": {}}, {}, "the method is not given", "speculative.method"),
        (drafts("medusa", 1), {}, "'medusa' are not known", "speculative.method"),
        (
            {"speculative": {"method": "eagle"}},
            {},
            "depends on the model",
            "speculative.num_speculative_tokens",
        ),
        (drafts("eagle", 3), {"speculative_num_steps": 4}, "but 4 is given", "sglang.speculative_num_steps"),
        ({"speculative": {"method": "dspark"}}, {}, "block size", "speculative.num_speculative_tokens"),
        ({**ranks(4, 2), **drafts("ngram", 2)}, {}, "data-parallel attention", "speculative.method"),
        (
            {**ranks(4, 2), **drafts("dflash", 2)},
            {"enable_dp_lm_head": False},
            "turned off",
            "sglang.enable_dp_lm_head",
        ),
        (ranks(8, 3), {}, "cannot share 8 tensor-parallel ranks", "parallel.data_parallel_size"),
        (ranks(8), {"attn_cp_size": 3}, "cannot share 8 ranks", "sglang.attn_cp_size"),
        ({}, {"moe_a2a_backend": "deepip"}, "'deepip' is no backend", "sglang.moe_a2a_backend"),
        ({}, {"cuda_graph_bs": [1], "cuda_graph_bs_decode": [1]}, "both spellings", "sglang.cuda_graph_bs"),
        ({}, {"cuda_graph_bs_decode": []}, "at least one size", "sglang.cuda_graph_bs_decode"),
        (limit(8, 10**15), {}, "larger than a plan takes", "scheduler.max_num_batched_tokens"),
        ({}, {"cuda_graph_max_bs_decode": 0}, "has 0 requests", "sglang.cuda_graph_max_bs_decode"),
        ({**ranks(8, 2), **limit(3)}, {}, "multiple of 4 tokens", "scheduler.max_num_seqs"),
        ({}, {"cuda_graph_config": {"extend": {}}}, "no phase", "sglang.cuda_graph_config.extend"),
        ({}, {"cuda_graph_config": {"decode": 1}}, "a mapping", "sglang.cuda_graph_config.decode"),
        ({}, {"cuda_graph_config": {"decode": {"size": 1}}}, "no key", "sglang.cuda_graph_config.decode"),
        ({}, {"cuda_graph_config": {"decode": {"bs": 1}}}, "a list", "sglang.cuda_graph_config.decode.bs"),
        (
            {},
            {"cuda_graph_config": {"decode": {"bs": [0]}}},
            "too small",
            "sglang.cuda_graph_config.decode.bs",
        ),
        (
            {},
            {"cuda_graph_config": {"prefill": {"backend": "tc_piecewise"}}},
            "'tc_piecewise' is no backend",
            "sglang.cuda_graph_config.prefill.backend",
        ),
        (
            {"engine": {"env": {"SGLANG_RAGGED_VERIFY_MODE": "compact"}}},
            {},
            "looked up by tokens",
            "engine.env.SGLANG_RAGGED_VERIFY_MODE",
        ),
        (
            drafts("eagle", 100_000),
            {"cuda_graph_max_bs_decode": 48},
            "1048576 at most",
            "scheduler.max_num_seqs",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_the_fields(
    sections: dict[str, Any], own: dict[str, Any], message: str, field: str
) -> None:
    with pytest.raises(PlanError, match=message) as refusal:
        compile_plan(sglang(own, **sections))
    assert field in refusal.value.fields


@pytest.mark.parametrize(
    ("own", "sections", "decode", "prefill"),
    [
        ({}, {"model": {"attention_backend": "torch_native"}}, False, False),
        (
            {"cuda_graph_backend_decode": "full"},
            {"model": {"attention_backend": "flex_attention"}},
            False,
            False,
        ),
        ({"prefill_attention_backend": "trtllm_mla"}, {"model": DEEPSEEK}, True, False),
        (
            {"prefill_attention_backend": "trtllm_mla", "cuda_graph_backend_prefill": "breakable"},
            {"model": DEEPSEEK},
            True,
            True,
        ),
        ({**DEEPEP, "deepep_mode": "normal"}, {}, False, False),
        ({"moe_a2a_backend": "deepep_v2", "cuda_graph_backend_prefill": "breakable"}, {}, True, False),
        ({"moe_a2a_backend": "mooncake"}, {}, True, False),
        ({"moe_a2a_backend": "mooncake", "cuda_graph_backend_prefill": "breakable"}, {}, True, True),
        ({"attn_cp_size": 2}, ranks(2), True, False),
        ({}, {"parallel": {"decode_context_parallel_size": 2, "tensor_parallel_size": 2}}, True, False),
        ({"disaggregation_mode": "decode"}, {}, True, False),
        ({"disaggregation_mode": "decode", "cuda_graph_backend_prefill": "breakable"}, {}, True, True),
    ],
)
def test_phases_that_are_turned_off_say_why(
    own: dict[str, Any], sections: dict[str, Any], decode: bool, prefill: bool
) -> None:
    plan = compile_plan(sglang(own, **sections))
    assert (bool(decode_of(plan)), bool(prefill_of(plan))) == (decode, prefill)
    off = {one.path for one in plan.decisions if one.became == "disabled"}
    assert ("sglang.cuda_graph_backend_decode" in off) == (not decode)
    assert ("sglang.cuda_graph_backend_prefill" in off) == (not prefill)
    sizes_of_prefill = [one for one in plan.decisions if "bs_prefill" in one.path]
    assert bool(sizes_of_prefill) == prefill


def test_a_measured_kv_cache_bounds_the_requests() -> None:
    model = {"num_kv_blocks": 100, "block_size": 2, "max_model_len": 64}
    plan = compile_plan(sglang({}, **H100, model=model))
    assert decode_of(plan) == sizes("1, 2, 4, 8, 12, 16..96/8, 100")
    assert not found(plan, "assumed-kv-cache")
    assert found(compile_plan(sglang({}, **H100)), "assumed-kv-cache")


def test_the_models_named_llama_2_have_smaller_prefill_graphs() -> None:
    plan = compile_plan(sglang({"model_path": "meta-llama/Llama-2-7b-hf"}, **H100))
    assert prefill_of(plan) == sizes(L4K)


def test_block_drafts_with_attention_dp_get_what_they_need() -> None:
    plan = compile_plan(sglang({}, **ranks(4, 2), **drafts("dflash", 7)))
    (decision,) = (one for one in plan.decisions if one.path == "sglang.enable_dp_lm_head")
    assert (decision.asked, decision.became) == (None, True)
    assert list(plan.graphs) == ["target"]


def test_lora_is_an_error_of_the_plan() -> None:
    (finding,) = found(compile_plan(sglang({}, lora={"max_loras": 2})), "unplanned-family")
    assert finding.severity == "error"


def test_explicit_prefill_sizes_beyond_the_chunk_are_never_replayed() -> None:
    plan = compile_plan(sglang({"cuda_graph_bs_prefill": [1024, 20000]}, **limit(8, 8192)))
    (finding,) = found(plan, "unreachable-entry")
    assert "PIECEWISE 20000 tokens" in finding.message
    assert "no prefill has more than 8192 tokens" in finding.message


def test_prefill_that_runs_eagerly_is_noted() -> None:
    plan = compile_plan(sglang({"cuda_graph_max_seq_len_prefill": 2048}, **H100, **limit(8, 1000)))
    messages = [finding.message for finding in found(plan, "prefill-hole")]
    assert messages == [
        "prefill of 1 token runs eagerly: no graph has at most 2 times its tokens",
        "prefill of 961 to 1000 tokens runs eagerly: the largest has 960 tokens",
        "prefill of sequences of more than 2048 tokens, context included, runs eagerly",
    ]


@pytest.mark.parametrize(
    ("own", "fix"),
    [
        ({"cuda_graph_max_bs": 8}, "sglang.cuda_graph_max_bs: 26"),
        ({"cuda_graph_bs_decode": [2, 4]}, "sglang.cuda_graph_bs_decode: [2, 4, 26]"),
        ({"cuda_graph_config": {"decode": {"bs": [4]}}}, "sglang.cuda_graph_config.decode.bs: [4, 26]"),
        ({"cuda_graph_config": {"decode": {"max_bs": 4}}}, "sglang.cuda_graph_config.decode.max_bs: 26"),
    ],
)
def test_holes_are_closed_by_the_setting_that_was_used(own: dict[str, Any], fix: str) -> None:
    plan = compile_plan(sglang(own, **ranks(8, 4), **limit(100)))
    (hole,) = found(plan, "decode-hole")
    assert (hole.severity, hole.fix) == ("warning", fix)
    assert "to 25 requests" in hole.message


def test_a_hole_beyond_what_anybody_limited_is_a_note() -> None:
    (hole,) = found(compile_plan(sglang({}, **H100)), "decode-hole")
    assert (hole.severity, "257 to 4096 requests" in hole.message) == ("info", True)


# Dispatch ---------------------------------------------------------------------------------------


def served(plan: Plan, reqs: int, tokens: int, length: int | None = None) -> int | None:
    descriptor = plan.dispatch_table().dispatch(reqs, tokens, length)
    return (descriptor.num_reqs or descriptor.num_tokens) if descriptor.cg_mode else None


def test_decode_pads_to_the_next_size_without_a_limit() -> None:
    plan = compile_plan(sglang({}, **H100, **limit(100)))
    assert [served(plan, n, n, 1) for n in (97, 100, 101)] == [100, 100, None]
    assert served(compile_plan(sglang({}, **H100)), 257, 257, 1) is None


def test_without_padding_decode_needs_its_exact_size() -> None:
    plan = compile_plan(sglang({"disable_cuda_graph_padding": True}, **H100, **limit(12)))
    assert served(plan, 7, 7, 1) == 7
    listed = {"disable_cuda_graph_padding": True, "cuda_graph_bs_decode": [1, 2, 8]}
    plan = compile_plan(sglang(listed, **H100, **limit(12)))
    assert served(plan, 7, 7, 1) is None
    (finding,) = found(plan, "no-exact-size")
    assert "3 to 7 requests" in finding.message


def test_verification_pads_requests_of_its_width_only() -> None:
    plan = compile_plan(sglang({}, **H100, **drafts("dflash", 7), **limit(21)))
    table = plan.dispatch_table()
    padded = table.dispatch(9, 72, 8)
    assert (padded.num_reqs, padded.num_tokens) == (10, 80)
    assert not table.dispatch(9, 36, 4, max_query_len=4).cg_mode


def test_prefill_is_padded_to_twice_its_tokens_at_most() -> None:
    plan = compile_plan(sglang({}, **H100))
    assert [served(plan, 1, tokens) for tokens in (1, 2, 33, 8193)] == [None, 4, 48, None]
    plan = compile_plan(sglang({"cuda_graph_bs_prefill": [12, 1280]}, **H100))
    assert [served(plan, 1, tokens) for tokens in (300, 640)] == [None, 1280]


def decode(reqs: int, length: int = 1) -> Batch:
    return Batch(num_reqs=reqs, num_tokens=reqs * length, uniform_token_count=length if reqs else None)


def of_ranks(plan: Plan, *batches: Batch) -> list[int | None]:
    agreed = [one.descriptor for one in agree(plan.dispatch_table(), batches)]
    return [(one.num_reqs or one.num_tokens) if one.cg_mode else None for one in agreed]


def test_all_ranks_decode_in_the_size_of_the_fullest() -> None:
    plan = compile_plan(sglang({}, **H200, **ranks(8, 4), **limit(100)))
    assert of_ranks(plan, decode(3), decode(0), decode(17), decode(9)) == [24] * 4


def test_ranks_that_gather_nothing_decode_in_their_own_size() -> None:
    own = {**DEEPEP, "moe_dense_tp_size": 1, "enable_dp_lm_head": True}
    plan = compile_plan(sglang(own, **H200, **ranks(8, 8)))
    assert of_ranks(plan, decode(3), decode(0), decode(17), decode(9)) == [4, 1, 24, 12]


def test_one_vote_against_graphs_counts_for_all() -> None:
    plan = compile_plan(sglang({}, **H200, **ranks(8, 4), **limit(100)))
    refusing = Batch(num_reqs=2, num_tokens=2, uniform_token_count=1, need_eager=True)
    assert of_ranks(plan, decode(3), refusing) == [None, None]


def test_ranks_prefill_in_the_size_of_the_most_tokens_unless_one_is_idle() -> None:
    plan = compile_plan(sglang({}, **H200, **ranks(8, 4), **limit(100)))
    prompt = Batch(num_reqs=1, num_tokens=300)
    assert of_ranks(plan, prompt, Batch(num_reqs=1, num_tokens=40)) == [320, 320]
    assert of_ranks(plan, prompt, decode(8)) == [320, 320]
    assert of_ranks(plan, prompt, decode(0)) == [None, None]
    assert of_ranks(plan, prompt, Batch(num_reqs=1, num_tokens=1)) == [None, None]


def test_ranks_that_verify_drafts_do_not_join_a_prefill() -> None:
    plan = compile_plan(sglang({}, **H200, **ranks(8, 4), **limit(100), **drafts("eagle", 3)))
    assert of_ranks(plan, Batch(num_reqs=1, num_tokens=300), decode(8, 4)) == [None, None]
