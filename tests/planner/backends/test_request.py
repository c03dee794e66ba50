"""What a deployment's settings tell the selection."""

import pytest

from planner.backends.request import backend_request, deployment_environment
from planner.documents.deployment import (
    AttentionSection,
    Deployment,
    EngineSection,
    ModelSection,
    ParallelSection,
    SpeculativeSection,
)
from planner.errors import PlanError
from planner.models.facts import model_facts
from planner.modes import Runner

LLAMA = model_facts(
    {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 4096,
        "num_hidden_layers": 2,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    }
)


def environment(deployment, runner=Runner.V2):
    return deployment_environment(deployment, compute_capability=(9, 0), runner=runner)


def test_heads_are_counted_for_one_rank():
    deployment = Deployment(parallel=ParallelSection(tensor_parallel_size=4))
    request = backend_request(
        deployment, target=LLAMA, draft=None, compute_capability=(9, 0), runner=Runner.V2
    )
    assert request.environment.num_heads == 8


def test_settings_of_target_and_draft_stay_apart():
    deployment = Deployment(
        model=ModelSection(attention_backend="FLASHINFER", kv_cache_dtype="fp8", dtype="half", block_size=32),
        speculative=SpeculativeSection(
            method="eagle3",
            attention_backend="TRITON_ATTN",
            kv_cache_dtype="auto",
            draft_tensor_parallel_size=1,
        ),
    )
    request = backend_request(
        deployment, target=LLAMA, draft=LLAMA, compute_capability=(9, 0), runner=Runner.V2
    )
    target = (request.attention_backend, request.kv_cache_dtype, request.dtype, request.block_size)
    assert target == ("FLASHINFER", "fp8", "half", 32)
    draft = (
        request.draft_attention_backend,
        request.draft_kv_cache_dtype,
        request.draft_tensor_parallel_size,
    )
    assert draft == ("TRITON_ATTN", "auto", 1)


@pytest.mark.parametrize(
    ("method", "parallel_drafting", "runner", "length"),
    [
        ("eagle3", None, Runner.V2, 4),
        ("eagle3", None, Runner.V1, 4),
        ("dflash", None, Runner.V2, 4),
        ("dflash", None, Runner.V1, 7),
        ("draft_model", True, Runner.V1, 7),
    ],
)
def test_the_v1_runner_widens_decode_queries_for_parallel_drafts(method, parallel_drafting, runner, length):
    speculative = SpeculativeSection(
        method=method, num_speculative_tokens=3, parallel_drafting=parallel_drafting
    )
    assert environment(Deployment(speculative=speculative), runner).max_decode_query_len == length


def request(deployment):
    return backend_request(deployment, target=LLAMA, draft=None, compute_capability=(9, 0), runner=Runner.V2)


def test_settings_of_the_attention_section_count():
    section = AttentionSection(
        backend="flash_attn",
        backend_per_kind={"sliding_window": "TRITON_ATTN"},
        flash_attn_version=2,
        use_trtllm_attention=False,
    )
    found = request(Deployment(attention=section))
    assert (found.attention_backend, found.attention_backend_field) == ("FLASH_ATTN", "attention.backend")
    assert found.backend_per_kind == {"sliding_window": "TRITON_ATTN"}
    environment = found.environment
    assert (environment.flash_attn_version, environment.use_trtllm_attention) == (2, False)


@pytest.mark.parametrize(
    ("model", "section", "backend", "field"),
    [
        (None, None, None, "model.attention_backend"),
        ("FLASHINFER", None, "FLASHINFER", "model.attention_backend"),
        (None, "FLASHINFER", "FLASHINFER", "attention.backend"),
        ("flashinfer", "FLASHINFER", "FLASHINFER", "attention.backend"),
        ("FLASHINFER", "auto", "FLASHINFER", "model.attention_backend"),
        ("Auto", None, None, "model.attention_backend"),
    ],
)
def test_either_spelling_names_the_backend(model, section, backend, field):
    deployment = Deployment(
        model=ModelSection(attention_backend=model), attention=AttentionSection(backend=section)
    )
    assert (deployment.attention_backend, deployment.attention_backend_field) == (backend, field)


def test_two_spellings_must_agree():
    deployment = Deployment(
        model=ModelSection(attention_backend="FLASHINFER"), attention=AttentionSection(backend="FLASH_ATTN")
    )
    with pytest.raises(PlanError, match="FLASHINFER and FLASH_ATTN are both asked for") as caught:
        request(deployment)
    assert caught.value.fields == ("model.attention_backend", "attention.backend")


def test_a_kind_that_no_layer_has_is_refused():
    deployment = Deployment(attention=AttentionSection(backend_per_kind={"mamba": "TRITON_ATTN"}))
    with pytest.raises(PlanError, match="'mamba' is no kind of layers that a backend") as caught:
        request(deployment)
    assert caught.value.fields == ("attention.backend_per_kind.mamba",)


@pytest.mark.parametrize(("value", "flag"), [("1", True), ("0", False), ("", False)])
def test_batch_invariance_comes_from_the_environment(value, flag):
    engine = EngineSection(env={"VLLM_BATCH_INVARIANT": value})
    assert environment(Deployment(engine=engine)).batch_invariant is flag


def test_kernels_of_flashinfer_are_there_unless_the_environment_denies_them():
    assert environment(Deployment()).cubins
    engine = EngineSection(env={"VLLM_HAS_FLASHINFER_CUBIN": "0"})
    assert not environment(Deployment(engine=engine)).cubins


def test_an_environment_variable_that_is_no_flag_is_refused():
    engine = EngineSection(env={"VLLM_BATCH_INVARIANT": "yes"})
    with pytest.raises(PlanError, match="set it to 0 or 1") as caught:
        environment(Deployment(engine=engine))
    assert caught.value.fields == ("engine.env.VLLM_BATCH_INVARIANT",)
