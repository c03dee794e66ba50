"""Which runner serves a deployment, and what each refuses."""

import pytest
from attrs import evolve

from planner.documents.deployment import (
    AttentionSection,
    Deployment,
    EngineSection,
    LoraSection,
    ParallelSection,
    SchedulerSection,
    SpeculativeSection,
)
from planner.errors import PlanError
from planner.models.facts import model_facts
from planner.modes import Runner
from planner.rules.runner import choose_runner

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
}
LLAMA = model_facts(CONFIG)
DBO = Deployment(parallel=ParallelSection(enable_dbo=True))
V1, V2 = EngineSection(runner=Runner.V1), EngineSection(runner=Runner.V2)


def test_v2_is_the_default():
    assert choose_runner(Deployment()) == (Runner.V2, "the engine's default")


@pytest.mark.parametrize("runner", Runner)
def test_a_runner_that_is_written_serves(runner):
    chosen, because = choose_runner(Deployment(engine=EngineSection(runner=runner)))
    assert chosen is runner
    assert "engine.runner" in because


@pytest.mark.parametrize(("value", "runner"), [("0", Runner.V1), ("1", Runner.V2)])
def test_the_environment_forces_a_runner(value, runner):
    engine = EngineSection(env={"VLLM_USE_V2_MODEL_RUNNER": value})
    chosen, because = choose_runner(Deployment(engine=engine))
    assert chosen is runner
    assert value in because


def test_the_two_ways_of_forcing_a_runner_must_agree():
    engine = EngineSection(runner=Runner.V1, env={"VLLM_USE_V2_MODEL_RUNNER": "1"})
    with pytest.raises(PlanError) as caught:
        choose_runner(Deployment(engine=engine))
    assert caught.value.fields == ("engine.runner", "engine.env.VLLM_USE_V2_MODEL_RUNNER")


def test_a_variable_that_is_no_flag_is_refused():
    engine = EngineSection(env={"VLLM_USE_V2_MODEL_RUNNER": "maybe"})
    with pytest.raises(PlanError, match="set it to 0 or 1"):
        choose_runner(Deployment(engine=engine))


BEYOND_V2 = [
    Deployment(
        parallel=ParallelSection(distributed_executor_backend="external_launcher", pipeline_parallel_size=2)
    ),
    Deployment(speculative=SpeculativeSection(method="suffix")),
    Deployment(speculative=SpeculativeSection(method="custom_class")),
    Deployment(speculative=SpeculativeSection(method="eagle3", parallel_drafting=True)),
    Deployment(speculative=SpeculativeSection(method="draft_model", use_heterogeneous_vocab=True)),
]


@pytest.mark.parametrize("deployment", BEYOND_V2)
def test_what_v2_does_not_serve_falls_to_v1_unless_v2_is_forced(deployment):
    runner, because = choose_runner(deployment)
    assert runner is Runner.V1
    assert "does not serve" in because
    with pytest.raises(PlanError) as caught:
        choose_runner(evolve(deployment, engine=V2))
    assert caught.value.fields[-1] == "engine.runner"


@pytest.mark.parametrize(
    "deployment",
    [
        Deployment(parallel=ParallelSection(distributed_executor_backend="external_launcher")),
        Deployment(parallel=ParallelSection(pipeline_parallel_size=2)),
        Deployment(speculative=SpeculativeSection(method="dflash", parallel_drafting=True)),
        Deployment(speculative=SpeculativeSection(method="medusa")),
    ],
)
def test_near_misses_stay_on_v2(deployment):
    assert choose_runner(deployment)[0] is Runner.V2


@pytest.mark.parametrize("parallel", [ParallelSection(enable_dbo=True), ParallelSection(ubatch_size=2)])
def test_microbatches_run_on_v2_only_where_it_is_asked_for(parallel):
    assert choose_runner(Deployment(parallel=parallel))[0] is Runner.V1
    assert choose_runner(Deployment(parallel=parallel, engine=V2))[0] is Runner.V2


def test_hisparse_leaves_no_choice_but_does_not_ask_for_microbatches():
    hisparse = AttentionSection(hisparse_config={})
    assert choose_runner(Deployment(attention=hisparse))[0] is Runner.V2
    with pytest.raises(PlanError, match="unless VLLM_USE_V2_MODEL_RUNNER asks"):
        choose_runner(evolve(DBO, attention=hisparse))
    assert choose_runner(evolve(DBO, attention=hisparse, engine=V2))[0] is Runner.V2
    with pytest.raises(PlanError, match="HiSparse runs on the v2 runner"):
        choose_runner(Deployment(attention=hisparse, engine=V1))


HYBRID = model_facts({**CONFIG, "layer_types": ["mamba", "attention"] * 2})
IMAGES = model_facts({**CONFIG, "vision_config": {}})
ENCODER = model_facts({**CONFIG, "model_type": "bert"})
TRANSLATOR = model_facts({**CONFIG, "is_encoder_decoder": True})


@pytest.mark.parametrize(
    ("changes", "target", "field"),
    [
        ({"lora": LoraSection()}, None, "lora"),
        ({"speculative": SpeculativeSection(method="ngram")}, None, "speculative"),
        (
            {"parallel": ParallelSection(enable_dbo=True, pipeline_parallel_size=2)},
            None,
            "parallel.pipeline_parallel_size",
        ),
        (
            {"parallel": ParallelSection(enable_dbo=True, decode_context_parallel_size=2)},
            None,
            "parallel.decode_context_parallel_size",
        ),
        ({}, HYBRID, "model.config"),
        ({}, IMAGES, "model.config"),
        ({}, ENCODER, "model.config"),
        ({}, TRANSLATOR, "model.config"),
    ],
)
def test_what_microbatches_on_v2_do_not_go_with(changes, target, field):
    deployment = evolve(DBO, engine=V2, **changes)
    with pytest.raises(PlanError) as caught:
        choose_runner(deployment, target=target)
    assert caught.value.fields == ("parallel.enable_dbo", field, "engine.runner")


def dflash_draft(**changes):
    return model_facts({**CONFIG, "architectures": ["DFlashDraftModel"], "dflash_config": {}, **changes})


MIXED = dflash_draft(sliding_window=8, layer_types=["sliding_attention", "full_attention"] * 2)


@pytest.mark.parametrize(
    ("changes", "models", "field"),
    [
        (
            {"parallel": ParallelSection(prefill_context_parallel_size=2)},
            {},
            "parallel.prefill_context_parallel_size",
        ),
        (
            {
                "parallel": ParallelSection(pipeline_parallel_size=2),
                "scheduler": SchedulerSection(async_scheduling=True),
            },
            {},
            "parallel.pipeline_parallel_size",
        ),
        (
            {"parallel": ParallelSection(ignored={"enable_batch_sharded_sampling": True})},
            {},
            "parallel.enable_batch_sharded_sampling",
        ),
        ({"speculative": SpeculativeSection(method="dspark")}, {}, "speculative.method"),
        (
            {"speculative": SpeculativeSection(method="eagle3", enable_adaptive_verification=True)},
            {},
            "speculative.enable_adaptive_verification",
        ),
        ({}, {"target": evolve(LLAMA, architecture="Step5ForCausalLM")}, "model.config"),
        ({"speculative": SpeculativeSection(method="dflash")}, {"draft": MIXED}, "speculative.config"),
        (
            {"speculative": SpeculativeSection(method="dflash")},
            {"draft": dflash_draft(architectures=["DFlash2DraftModel"])},
            "speculative.config",
        ),
    ],
)
def test_what_v1_does_not_serve_is_refused_there_and_runs_on_v2(changes, models, field):
    deployment = Deployment(**changes)
    assert choose_runner(deployment, **models)[0] is Runner.V2
    with pytest.raises(PlanError) as caught:
        choose_runner(evolve(deployment, engine=V1), **models)
    assert field in caught.value.fields
    assert "engine.runner" in caught.value.fields


def test_a_plain_dflash_draft_runs_on_v1():
    deployment = Deployment(engine=V1, speculative=SpeculativeSection(method="dflash"))
    assert choose_runner(deployment, draft=dflash_draft())[0] is Runner.V1
