"""Every downgrade of the engine's config in its order (rules 3.5): a row each, from a whole Deployment.

Attention supports everything unless a row says otherwise, so that what is lowered is lowered by the row.
"""

from __future__ import annotations

from typing import Any

import pytest
from attrs import frozen

from planner import Plan, PlanError, compile_plan, load_deployment
from tests.planner.runs import sizes

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 4,
}
MLA: dict[str, Any] = {
    **LLAMA,
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}
SPARSE: dict[str, Any] = {**MLA, "index_topk": 2048, "index_head_dim": 128}
HYBRID: dict[str, Any] = {**LLAMA, "layer_types": ["mamba", "attention"] * 2}
DRAFT: dict[str, Any] = {**LLAMA, "architectures": ["DFlashDraftModel"], "dflash_config": {}}
LIMITS = {"max_num_seqs": 8, "max_num_batched_tokens": 2048}
SIZES = "1, 2, 4, 8, 16"
V1, V2 = {"engine": {"runner": "v1"}}, {"engine": {"runner": "v2"}}


def compiled(sections: dict[str, Any]) -> Plan:
    document = {"apiVersion": "graphplan/v1", "kind": "Deployment", "scheduler": LIMITS, **sections}
    document["model"] = {"attention_support": "ALWAYS", **sections.get("model", {})}
    return compile_plan(load_deployment(document))


def compile_mode(plan: Plan) -> str:
    changed = [decision for decision in plan.decisions if decision.path == "compilation.mode"]
    return str(changed[-1].became if changed else plan.deployment.compilation.mode)


def model(config: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"model": {"config": {**config, **changes}}}


def architecture(name: str, config: dict[str, Any] = LLAMA, **changes: Any) -> dict[str, Any]:
    return model(config, architectures=[name], **changes)


def asking(mode: str | None = None, compilation: str | None = None, **more: Any) -> dict[str, Any]:
    return {"compilation": {"cudagraph_mode": mode, "mode": compilation, **more}}


def drafting(method: str, tokens: int = 3, **more: Any) -> dict[str, Any]:
    return {"speculative": {"method": method, "num_speculative_tokens": tokens, **more}}


def env(**variables: str) -> dict[str, Any]:
    return {"engine": {"env": variables}}


def connector(name: str, extra: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"kv_connector": name, "kv_role": "kv_both", "kv_connector_extra_config": extra or {}, **more}


@frozen(kw_only=True)
class Outcome:
    """What becomes of a row; ``rule`` is that of the decision, ``None`` where nothing is lowered."""

    mode: str
    sizes: str = ""
    compile_mode: str = "VLLM_COMPILE"
    rule: str | None = None


def lowered(mode: str, listed: str, rule: str | None, compile_mode: str = "VLLM_COMPILE") -> Outcome:
    return Outcome(mode=mode, sizes=listed, rule=rule, compile_mode=compile_mode)


PW, FULL, FDO, FAP = "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"
SCHEDULE = {"num_speculative_tokens_per_batch_size": [[1, 4, 3], [5, 8, 1]]}
SPECULATIVE_SIZES = "1, 2, 4, 8..64/8"
ROUNDED = "4, 8..64/8"
LAYERWISE = connector("LMCacheConnectorV1", {"use_layerwise": True})
WHOLE = connector("LMCacheConnectorV1", {"use_layerwise": False})
EXPERTS = {"data_parallel_size": 2, "enable_expert_parallel": True}
OVERLAPPING = {**EXPERTS, "all2all_backend": "deepep_low_latency", "enable_dbo": True}
ADAPTIVE = drafting("mtp", enable_adaptive_verification=True)
HISPARSE = {"attention": {"hisparse_config": {}}}
BREAKABLE_NAMES = (
    *("AliceAIForCausalLM", "BeamForCausalLM", "DeepseekV32ForCausalLM", "DeepseekV4ForCausalLM"),
    *("DeepseekV41ForCausalLM", "Dots3NoteForCausalLM", "Glm5NextForCausalLM", "GlmMoeDsaForCausalLM"),
    *("HYV4ForCausalLM", "InklingForCausalLM", "KimiK3ForCausalLM", "KimiLinearForCausalLM"),
    *("MiniMaxM3SparseForCausalLM", "MuseSparkForCausalLM", "Qwen4ExpForCausalLM", "Step5ForCausalLM"),
)

DOWNGRADES: list[tuple[str, dict[str, Any], Outcome]] = [
    (
        "row 1: enforce_eager",
        {"model": {"enforce_eager": True}},
        lowered("NONE", "", "enforce-eager", "NONE"),
    ),
    (
        "row 2: TORCH_COMPILE_DISABLE",
        env(TORCH_COMPILE_DISABLE="1"),
        lowered(FDO, SIZES, "torch-compile-disabled", "NONE"),
    ),
    (
        "row 3: breakable graphs by the environment",
        env(VLLM_USE_BREAKABLE_CUDAGRAPH="1"),
        lowered(FAP, SIZES, "breakable-graphs", "NONE"),
    ),
    *(
        (
            f"row 3: breakable graphs of {name}",
            architecture(name),
            lowered(FAP, SIZES, "breakable-graphs", "NONE"),
        )
        for name in BREAKABLE_NAMES
    ),
    (
        "row 3: breakable graphs switched off",
        {**architecture("Step5ForCausalLM"), **env(VLLM_USE_BREAKABLE_CUDAGRAPH="0")},
        lowered(FAP, SIZES, None),
    ),
    (
        "row 4: level 0",
        {"engine": {"optimization_level": 0}},
        lowered("NONE", "", "level-default", "NONE"),
    ),
    ("row 4: level 1", {"engine": {"optimization_level": 1}}, lowered(PW, SIZES, "level-default")),
    ("row 4: level 2", {"engine": {"optimization_level": 2}}, lowered(FAP, SIZES, "level-default")),
    ("row 4: level 3", {"engine": {"optimization_level": 3}}, lowered(FAP, SIZES, "level-default")),
    (
        "row 4: a mode that is written",
        {"engine": {"optimization_level": 0}, **asking(FULL)},
        lowered(FULL, SIZES, None, "NONE"),
    ),
    (
        "row 5: a schedule over data-parallel ranks",
        {**drafting("mtp", **SCHEDULE), "parallel": EXPERTS},
        lowered(FAP, SPECULATIVE_SIZES, "schedule-needs-one-rank"),
    ),
    (
        "row 6: a schedule of another method on V1",
        {**V1, **drafting("suffix", **SCHEDULE)},
        lowered(FAP, ROUNDED, "schedule-needs-method"),
    ),
    (
        "row 7: a schedule on V1",
        {**V1, **drafting("mtp", **SCHEDULE)},
        lowered(PW, SPECULATIVE_SIZES, "v1-schedule"),
    ),
    ("row 8: HiSparse without FULL", HISPARSE, lowered(FAP, SIZES, None)),
    (
        "row 9: pieces without compilation",
        asking(FAP, "NONE"),
        lowered(FDO, SIZES, "piecewise-needs-compilation", "NONE"),
    ),
    (
        "row 9: nothing but pieces without compilation",
        asking(PW, "DYNAMO_TRACE_ONCE"),
        lowered("NONE", "", "piecewise-needs-compilation", "DYNAMO_TRACE_ONCE"),
    ),
    (
        "row 9: a second time, after what the model asks for",
        {**asking(FULL, "DYNAMO_TRACE_ONCE"), "scheduler": {**LIMITS, "runner_type": "pooling"}},
        lowered("NONE", "", "piecewise-needs-compilation", "DYNAMO_TRACE_ONCE"),
    ),
    (
        "row 9: a second time on V1",
        {**V1, **asking(FULL, "NONE"), "kv_transfer": LAYERWISE},
        lowered("NONE", "", "piecewise-needs-compilation", "NONE"),
    ),
    (
        "row 10: a pooling model",
        {**asking(FULL), **architecture("LlamaModel")},
        lowered(PW, SIZES, "pooling-model"),
    ),
    (
        "row 10: a pooling model without graphs",
        {**asking("NONE"), **architecture("LlamaModel")},
        lowered("NONE", "", None),
    ),
    (
        "row 11: an encoder-decoder",
        {**asking(PW), **model(LLAMA, is_encoder_decoder=True)},
        lowered(FDO, SIZES, "encoder-decoder"),
    ),
    (
        "row 11: an encoder-decoder without graphs",
        {**asking("NONE"), **model(LLAMA, is_encoder_decoder=True)},
        lowered("NONE", "", None),
    ),
    (
        "row 11: an encoder-decoder in pooling",
        {
            **asking(FAP),
            **model(LLAMA, is_encoder_decoder=True),
            "scheduler": {**LIMITS, "runner_type": "pooling"},
        },
        lowered(PW, SIZES, "pooling-model"),
    ),
    (
        "row 12: LMCache layer by layer",
        {"kv_transfer": LAYERWISE},
        lowered(PW, SIZES, "layerwise-kv-connector"),
    ),
    ("row 12: LMCache as a whole", {"kv_transfer": WHOLE}, lowered(FAP, SIZES, None)),
    (
        "row 12: one of several connectors",
        {"kv_transfer": connector("MultiConnector", {"connectors": [connector("NixlConnector"), LAYERWISE]})},
        lowered(PW, SIZES, "layerwise-kv-connector"),
    ),
    (
        "row 12: none of several connectors",
        {"kv_transfer": connector("MultiConnector", {"connectors": [WHOLE]})},
        lowered(FAP, SIZES, None),
    ),
    (
        "row 12: another connector with the same setting",
        {"kv_transfer": connector("NixlConnector", {"use_layerwise": True})},
        lowered(FAP, SIZES, None),
    ),
    (
        "row 13: enforce_eager blanks lists that are written",
        {"model": {"enforce_eager": True}, **asking(FULL, cudagraph_capture_sizes=[1, 2, 4])},
        lowered("NONE", "", "enforce-eager", "NONE"),
    ),
    (
        "row 14: sizes are made before the later rows",
        {**asking(FAP), "parallel": {**EXPERTS, "all2all_backend": "moonep"}},
        lowered("NONE", SIZES, "moonep"),
    ),
    (
        "row 17: STOCK_TORCH_COMPILE on V2",
        asking(FULL, "STOCK_TORCH_COMPILE"),
        lowered("NONE", "", "stock-torch-compile", "STOCK_TORCH_COMPILE"),
    ),
    (
        "row 17: STOCK_TORCH_COMPILE on V1",
        {**V1, **asking(FULL, "STOCK_TORCH_COMPILE")},
        lowered(FULL, SIZES, None, "STOCK_TORCH_COMPILE"),
    ),
    ("row 19: adaptive verification", ADAPTIVE, lowered(FAP, SPECULATIVE_SIZES, None)),
    (
        "row 19: adaptive verification of FULL",
        {**ADAPTIVE, **asking(FULL)},
        lowered(FAP, SPECULATIVE_SIZES, "adaptive-verification"),
    ),
    (
        "row 20: moonep over one rank",
        {"parallel": {"enable_expert_parallel": True, "all2all_backend": "moonep"}},
        lowered(FAP, SIZES, None),
    ),
    (
        "row 20: moonep",
        {"parallel": {**EXPERTS, "all2all_backend": "moonep"}},
        lowered("NONE", SIZES, "moonep"),
    ),
    (
        "row 21: no splitting operations",
        asking(FAP, splitting_ops=[]),
        lowered(FULL, SIZES, "no-splitting-ops"),
    ),
    (
        "row 21: no splitting operations, pieces alone",
        asking(PW, splitting_ops=[]),
        lowered("NONE", SIZES, "no-splitting-ops"),
    ),
    (
        "row 21: attention fused with quantisation",
        asking(PW, pass_config={"fuse_attn_quant": True}),
        lowered(FULL, SIZES, "fused-attention-quant"),
    ),
    (
        "row 21: attention fused with quantisation under inductor partition",
        asking(PW, pass_config={"fuse_attn_quant": True}, use_inductor_graph_partition=True),
        lowered(PW, SIZES, None),
    ),
    (
        "row 21: DeepEP high throughput",
        {"parallel": {**EXPERTS, "all2all_backend": "deepep_high_throughput"}},
        lowered("NONE", SIZES, "deepep-high-throughput"),
    ),
    (
        "row 21: DeepEP high throughput of a dense model",
        {"parallel": {**EXPERTS, "all2all_backend": "deepep_high_throughput", "is_moe_model": False}},
        lowered(FAP, SIZES, "dense-ranks-are-independent"),
    ),
    (
        "row 21: DeepEP high throughput without compilation",
        {
            **asking(FULL, "NONE"),
            "parallel": {**EXPERTS, "all2all_backend": "deepep_high_throughput"},
        },
        lowered(FULL, SIZES, None, "NONE"),
    ),
    (
        "row 22: pieces without compilation never get as far as the engine's assertion",
        asking(PW, "NONE"),
        lowered("NONE", "", "piecewise-needs-compilation", "NONE"),
    ),
    (
        "row 22: breakable pieces pass it",
        {**asking(PW, "NONE"), **env(VLLM_USE_BREAKABLE_CUDAGRAPH="1")},
        lowered(PW, SIZES, None, "NONE"),
    ),
    *(
        (
            f"row 23: microbatches over {backend}",
            {**V2, "parallel": {**OVERLAPPING, "all2all_backend": backend}, **asking(FDO)},
            lowered(mode, SIZES, rule),
        )
        for backend, mode, rule in (
            ("deepep_low_latency", FDO, None),
            ("nixl_ep", FDO, None),
            ("deepep_high_throughput", "NONE", "deepep-high-throughput"),
        )
    ),
    (
        "DBO: pieces beside FULL graphs",
        {**V2, "parallel": OVERLAPPING, **asking(FAP)},
        lowered(FAP, SIZES, None),
    ),
    (
        "DBO: eager mode hides pieces",
        {**V2, "parallel": OVERLAPPING, **asking(PW), "model": {"enforce_eager": True}},
        lowered("NONE", "", "enforce-eager", "NONE"),
    ),
    (
        "DBO: pieces alone on V1",
        {**V1, "parallel": OVERLAPPING, **asking(PW)},
        lowered(PW, SIZES, None),
    ),
    (
        "PCP: decode on its own",
        {"parallel": {"prefill_context_parallel_size": 2}, **asking(FDO)},
        lowered(FDO, SIZES, None),
    ),
    (
        "PCP: sparse MLA of a known model type",
        {
            "parallel": {"prefill_context_parallel_size": 2},
            **architecture("DeepseekV32ForCausalLM", SPARSE, model_type="deepseek_v32"),
        },
        lowered(FAP, SIZES, "breakable-graphs", "NONE"),
    ),
    (
        "PCP: sparse MLA that shares decode too",
        {
            "parallel": {"prefill_context_parallel_size": 2, "decode_context_parallel_size": 2},
            **model(SPARSE, model_type="glm5_next"),
        },
        lowered(FAP, SIZES, None),
    ),
    (
        "PCP: sparse MLA without graphs",
        {
            "parallel": {"prefill_context_parallel_size": 2},
            **model(SPARSE, model_type="glm5_next"),
            **asking("NONE"),
        },
        lowered("NONE", "", None),
    ),
    (
        "model overrides: gpt-oss",
        {
            **architecture("GptOssForCausalLM"),
            "scheduler": {"max_num_seqs": 300, "max_num_batched_tokens": 8192},
        },
        lowered(FAP, "1, 2, 4, 8..256/8, 272..1024/16", "max-of-model"),
    ),
    (
        "model overrides: gpt-oss with a maximum",
        {**architecture("GptOssForCausalLM"), **asking(max_cudagraph_capture_size=8)},
        lowered(FAP, "1, 2, 4, 8", None),
    ),
    (
        "model overrides: gpt-oss with a list",
        {**architecture("GptOssForCausalLM"), **asking(cudagraph_capture_sizes=[1, 2])},
        lowered(FAP, "1, 2", "max-from-sizes"),
    ),
    (
        "model overrides: LongCat-Flash n-gram",
        {**architecture("LongcatFlashNgramForCausalLM"), **asking(PW)},
        lowered(FULL, SIZES, "model-default", "NONE"),
    ),
    (
        "model overrides: LongCat-Flash n-gram with a compile mode",
        {**architecture("LongcatFlashNgramForCausalLM"), **asking(PW, "VLLM_COMPILE")},
        lowered(PW, SIZES, None),
    ),
]

LOWERING = {
    *("enforce-eager", "torch-compile-disabled", "breakable-graphs", "schedule-needs-one-rank"),
    *("schedule-needs-method", "v1-schedule", "piecewise-needs-compilation", "pooling-model"),
    *("encoder-decoder", "layerwise-kv-connector", "stock-torch-compile", "adaptive-verification"),
    *("moonep", "no-splitting-ops", "fused-attention-quant", "deepep-high-throughput", "model-default"),
    *("attention-support",),
}
"""Rules that lower a mode or drop a schedule: none of them may apply where a row says so."""


@pytest.mark.parametrize(
    ("sections", "expected"), [row[1:] for row in DOWNGRADES], ids=[row[0] for row in DOWNGRADES]
)
def test_a_downgrade_is_the_engines_and_says_why(sections: dict[str, Any], expected: Outcome) -> None:
    plan = compiled(sections)
    target = plan.resolved["target"]
    assert str(target.cudagraph_mode) == expected.mode
    assert target.cudagraph_capture_sizes == (sizes(expected.sizes) if expected.sizes else ())
    assert target.max_cudagraph_capture_size == max(target.cudagraph_capture_sizes, default=0)
    assert compile_mode(plan) == expected.compile_mode
    assert bool(plan.entries()) is (expected.mode != "NONE")
    rules = {decision.rule for decision in plan.decisions}
    assert rules >= ({expected.rule} if expected.rule else set())
    assert expected.rule is not None or not rules & LOWERING


def forced_v2(**sections: Any) -> dict[str, Any]:
    return {**V2, **sections}


REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    (
        "row 8: HiSparse with FULL",
        {**HISPARSE, **asking(FULL)},
        "compilation.cudagraph_mode",
        "FULL is asked for, but HiSparse",
    ),
    ("row 8: HiSparse on V1", {**HISPARSE, **V1}, "attention.hisparse_config", "v1 is asked for"),
    (
        "row 8: HiSparse on V1 by the environment",
        {**HISPARSE, **env(VLLM_USE_V2_MODEL_RUNNER="0")},
        "attention.hisparse_config",
        "v1 is asked for",
    ),
    (
        "row 8: HiSparse with what V2 does not serve",
        {**HISPARSE, **drafting("suffix")},
        "speculative.method",
        "HiSparse runs on v2 alone",
    ),
    (
        "row 14: an empty list",
        asking(FAP, cudagraph_capture_sizes=[]),
        "compilation.cudagraph_capture_sizes",
        r"the list is \[\]",
    ),
    *(
        (f"row {row}: {name}", {"device": {"name": name}}, "device.name", "CUDA devices")
        for row, name in ((15, "XPU"), (15, "CPU"), (16, "MI300X"), (16, "Intel Arc B60"), (16, "Xeon 6"))
    ),
    (
        "row 18: external launcher with pipeline stages on V2",
        forced_v2(
            parallel={"distributed_executor_backend": "external_launcher", "pipeline_parallel_size": 2}
        ),
        "parallel.pipeline_parallel_size",
        "external_launcher",
    ),
    ("row 18: suffix on V2", forced_v2(**drafting("suffix")), "speculative.method", "method suffix"),
    (
        "row 18: custom_class on V2",
        forced_v2(**drafting("custom_class")),
        "speculative.method",
        "method custom_class",
    ),
    (
        "row 18: parallel drafting of another method on V2",
        forced_v2(**drafting("eagle3", parallel_drafting=True)),
        "speculative.parallel_drafting",
        "parallel drafting",
    ),
    (
        "row 18: a vocabulary of the draft's own on V2",
        forced_v2(**drafting("draft_model", use_heterogeneous_vocab=True)),
        "speculative.use_heterogeneous_vocab",
        "vocabulary of its own",
    ),
    (
        "row 18: prefill context parallelism on V1",
        {**V1, "parallel": {"prefill_context_parallel_size": 2}},
        "parallel.prefill_context_parallel_size",
        "prefill context",
    ),
    (
        "row 18: pipeline stages with asynchronous scheduling on V1",
        {
            **V1,
            "parallel": {"pipeline_parallel_size": 2},
            "scheduler": {**LIMITS, "async_scheduling": True},
        },
        "scheduler.async_scheduling",
        "asynchronous scheduling",
    ),
    ("row 18: dspark on V1", {**V1, **drafting("dspark")}, "speculative.method", "method dspark"),
    (
        "row 18: adaptive verification on V1",
        {**V1, **ADAPTIVE},
        "speculative.enable_adaptive_verification",
        "adaptive verification",
    ),
    (
        "row 18: batch-sharded sampling on V1",
        {**V1, "parallel": {"enable_batch_sharded_sampling": True}},
        "parallel.enable_batch_sharded_sampling",
        "batch-sharded",
    ),
    ("row 18: Step5 on V1", {**V1, **architecture("Step5ForCausalLM")}, "model.config", "Step5"),
    (
        "row 18: a diffusion model on V1",
        {**V1, **architecture("DiffusionGemmaForBlockDiffusion")},
        "model.config",
        "diffusion",
    ),
    (
        "row 18: a draft of sliding and full layers on V1",
        {
            **V1,
            **drafting(
                "dflash",
                config={
                    **DRAFT,
                    "sliding_window": 8,
                    "layer_types": ["sliding_attention", "full_attention"] * 2,
                },
            ),
        },
        "speculative.config",
        "mixes sliding and full",
    ),
    *(
        (
            f"row 18: {name} on V1",
            {**V1, **drafting("dflash", config={**DRAFT, "architectures": [name]})},
            "speculative.config",
            name,
        )
        for name in ("DFlash2DraftModel", "DFlash2BeamDraftModel", "LiLiCorrDFlashModel", "XPressDFlashModel")
    ),
    (
        "row 19: adaptive verification without FULL graphs",
        {**ADAPTIVE, **asking(PW)},
        "speculative.enable_adaptive_verification",
        "needs FULL graphs",
    ),
    ("row 19: adaptive verification with LoRA", {**ADAPTIVE, "lora": {}}, "lora", "exclude each other"),
    (
        "row 19: adaptive verification with pipeline stages",
        {**ADAPTIVE, "parallel": {"pipeline_parallel_size": 2}},
        "parallel.pipeline_parallel_size",
        "1 pipeline stage, not 2",
    ),
    (
        "row 21: attention to cut at and fused with quantisation",
        asking(
            FAP,
            splitting_ops=[f"vllm::operation_{number}" for number in range(17)],
            pass_config={"fuse_attn_quant": True},
        ),
        "compilation.pass_config.fuse_attn_quant",
        "drop one of the two",
    ),
    *(
        (
            f"row 23: microbatches over {backend}",
            forced_v2(parallel={**OVERLAPPING, "all2all_backend": backend}),
            "parallel.all2all_backend",
            f"all2all_backend is {backend or 'allgather_reducescatter'}",
        )
        for backend in (None, "allgather_reducescatter", "moonep", "mori_low_latency")
    ),
    *(
        (f"DBO: {what}", forced_v2(**{"parallel": OVERLAPPING, **sections}), field, words)
        for what, sections, field, words in (
            ("LoRA", {"lora": {}}, "lora", "LoRA"),
            ("speculative decoding", drafting("mtp"), "speculative", "speculative decoding"),
            *(
                (f"{size} 2", {"parallel": {**OVERLAPPING, size: 2}}, f"parallel.{size}", size)
                for size in (
                    "pipeline_parallel_size",
                    "decode_context_parallel_size",
                    "prefill_context_parallel_size",
                )
            ),
            ("a multimodal model", model(LLAMA, vision_config={}), "model.config", "multimodal"),
            ("an encoder-decoder", model(LLAMA, is_encoder_decoder=True), "model.config", "encoder-decoder"),
            ("an encoder", model(LLAMA, model_type="bert"), "model.config", "encoder-only"),
            ("a hybrid model", model(HYBRID), "model.config", "hybrid"),
            ("pieces alone", asking(PW), "compilation.cudagraph_mode", "PIECEWISE"),
            (
                "pieces alone by the level",
                {"engine": {"runner": "v2", "optimization_level": 1}},
                "compilation.cudagraph_mode",
                "PIECEWISE",
            ),
            (
                "pieces alone by a connector",
                {"kv_transfer": LAYERWISE},
                "compilation.cudagraph_mode",
                "PIECEWISE",
            ),
        )
    ),
    (
        "DBO: a threshold below the microbatches",
        forced_v2(parallel={**OVERLAPPING, "dbo_decode_token_threshold": 1}),
        "parallel.dbo_decode_token_threshold",
        "fewer than the 2 microbatches",
    ),
    (
        "PCP: FULL",
        {"parallel": {"prefill_context_parallel_size": 2}, **asking(FULL)},
        "parallel.prefill_context_parallel_size",
        "2 ranks that share prefills",
    ),
    (
        "PCP: FULL for want of splitting operations",
        {"parallel": {"prefill_context_parallel_size": 2}, **asking(FAP, splitting_ops=[])},
        "parallel.prefill_context_parallel_size",
        "2 ranks that share prefills",
    ),
    (
        "PCP: sparse MLA of another model type",
        {"parallel": {"prefill_context_parallel_size": 2}, **model(SPARSE, model_type="glm5_next")},
        "model.config",
        "model types deepseek_v32 and glm_moe_dsa only, not glm5_next",
    ),
    (
        "Voxtral realtime: FULL",
        {**architecture("VoxtralRealtimeGeneration"), **asking(FULL)},
        "compilation.cudagraph_mode",
        "not recorded whole",
    ),
]


@pytest.mark.parametrize(
    ("sections", "field", "words"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_what_the_engine_refuses_is_refused_with_its_setting(
    sections: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(PlanError, match=words) as caught:
        compiled(sections)
    assert field in caught.value.fields


def test_the_table_has_every_row_of_the_reference() -> None:
    named = {int(row[0][4:].split(":")[0]) for row in (*DOWNGRADES, *REFUSED) if row[0].startswith("row ")}
    assert named == set(range(1, 24))


def test_hisparse_needs_the_v2_runner_to_be_named_nowhere() -> None:
    plan = compiled(HISPARSE)
    (runner,) = [decision for decision in plan.decisions if decision.path == "engine.runner"]
    assert runner.became == "v2"
    assert "attention.hisparse_config is given" in runner.because


@pytest.mark.parametrize(
    ("sections", "path"),
    [
        (
            {"kv_transfer": connector("LMCacheConnectorV1"), **env(LMCACHE_USE_LAYERWISE="True")},
            "kv_transfer",
        ),
        (
            {"kv_transfer": connector("LMCacheConnectorV1", {"lmcache.use_layerwise": True})},
            "kv_transfer",
        ),
        (
            {
                "kv_transfer": connector(
                    "MultiConnector",
                    {"connectors": [connector("NixlConnector"), connector("LMCacheConnectorV1")]},
                ),
                **env(LMCACHE_USE_LAYERWISE="1"),
            },
            "kv_transfer.kv_connector_extra_config.connectors[1]",
        ),
    ],
)
def test_layers_that_lmcache_alone_knows_of_stay_in_full_graphs_with_a_warning(
    sections: dict[str, Any], path: str
) -> None:
    plan = compiled(sections)
    assert str(plan.resolved["target"].cudagraph_mode) == FAP
    (found,) = [finding for finding in plan.findings if finding.code == "layerwise-connector-unseen"]
    assert (found.severity, found.fix) == ("warning", f"{path}.kv_connector_extra_config.use_layerwise: true")


@pytest.mark.parametrize(
    "sections",
    [
        {"kv_transfer": LAYERWISE, **env(LMCACHE_USE_LAYERWISE="1")},
        {"kv_transfer": connector("LMCacheConnectorV1"), **env(LMCACHE_USE_LAYERWISE="False")},
        {"kv_transfer": connector("NixlConnector"), **env(LMCACHE_USE_LAYERWISE="1")},
        {"kv_transfer": connector("MultiConnector", {"connectors": [None, {"kv_connector": 1}, "x"]})},
    ],
)
def test_without_a_layer_that_waits_inside_a_full_graph_there_is_no_warning(sections: dict[str, Any]) -> None:
    assert not [found for found in compiled(sections).findings if "connector" in found.code]


def test_a_connector_from_elsewhere_is_taken_to_go_with_full_graphs() -> None:
    elsewhere = connector("MyConnector", kv_connector_module_path="my.module")
    found = [
        finding for finding in compiled({"kv_transfer": elsewhere}).findings if "connector" in finding.code
    ]
    assert [(finding.code, finding.severity) for finding in found] == [("assumed-kv-connector", "info")]


REPLAYED = architecture("DeepseekV41ForCausalLM", MLA, model_type="deepseek_v41")


def unplanned(sections: dict[str, Any]) -> list[str]:
    return [finding.message for finding in compiled(sections).findings if finding.code == "unplanned-family"]


def test_decoder_replay_graphs_are_no_silence() -> None:
    (message,) = unplanned(REPLAYED)
    assert "decoder replay graphs" in message


@pytest.mark.parametrize(
    "sections",
    [
        {**REPLAYED, **asking(cudagraph_decoder_replay=False)},
        {**REPLAYED, **asking(FDO)},
        {**REPLAYED, "lora": {}},
        {**REPLAYED, **V1},
        {**REPLAYED, **env(VLLM_USE_BREAKABLE_CUDAGRAPH="0")},
        architecture("DeepseekV4ForCausalLM"),
    ],
)
def test_where_no_decoder_is_replayed_nothing_is_missing(sections: dict[str, Any]) -> None:
    assert unplanned(sections) == []


def test_replay_graphs_keep_to_the_token_budget() -> None:
    with pytest.raises(PlanError, match="4096 tokens are more than the budget of a step, 2048"):
        compiled({**REPLAYED, **asking(decoder_replay_cudagraph_capture_sizes=[8, 4096])})
