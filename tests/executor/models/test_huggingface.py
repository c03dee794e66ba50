"""Models of transformers decode with graphs what they decode by themselves."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import cache
from typing import Any

import pytest
import torch

from executor.capture_loop import Forward
from executor.errors import InputError, ModelError
from executor.manager import CudaGraphManager
from executor.models.huggingface import HuggingFaceDecoder
from executor.models.static_cache import StaticKVCache
from executor.verify import verify_entries
from planner import Plan
from planner.descriptors import BatchExecutionDescriptor
from planner.errors import MachineError
from tests.executor.toys import plan_of, sizes_plan, v1_plan

SIZES = (8, 4, 2, 1)
MAX_MODEL_LEN = 40
WINDOW = 6
"""Less than prompts and continuations are long."""
NEW_TOKENS = 12

PROMPTS = [
    [(17 * number + 5 * index * (number + 2)) % 96 + 1 for index in range(length)]
    for number, length in enumerate((3, 11, 1, 7, 20, 5, 2, 9, 14, 4))
]
"""More than there are rows, of different lengths."""

GPU = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU; tools/test_gpu runs it"),
    ],
)
DEVICES = ["cpu", GPU]

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "pad_token_id": None,
    "eos_token_id": None,
    "tie_word_embeddings": False,
}
LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen3ForCausalLM": ("Qwen3Config", {}),
    "LlamaForCausalLM": ("LlamaConfig", {}),
    "MixtralForCausalLM": (
        "MixtralConfig",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": WINDOW},
    ),
    "Gemma3ForCausalLM": ("Gemma3TextConfig", {"sliding_window": WINDOW, "layer_types": LAYERS}),
    "Gemma2ForCausalLM": ("Gemma2Config", {"sliding_window": WINDOW, "layer_types": LAYERS}),
}


@cache
def original(name: str) -> Any:
    import transformers

    config_name, extra = MODELS[name]
    config = getattr(transformers, config_name)(**SHAPE, **extra)
    torch.manual_seed(3)
    return getattr(transformers, name)(config).eval()


@cache
def expected(name: str, end_id: int | None = None) -> list[list[int]]:
    """What the model's own ``generate`` makes of the prompts, one at a time, on the CPU."""
    model = original(name)
    found = []
    for prompt in PROMPTS:
        tokens = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            eos_token_id=end_id,
            pad_token_id=0,
        )
        found.append(tokens[0, len(prompt) :].tolist())
    return found


def decoder_of(name: str, device: str = "cpu", **options: Any) -> HuggingFaceDecoder:
    return HuggingFaceDecoder(deepcopy(original(name)), SIZES[0], MAX_MODEL_LEN, device, **options)


def captured(decoder: HuggingFaceDecoder, plan: Plan) -> CudaGraphManager:
    manager = CudaGraphManager(plan, device=decoder.device)
    report = manager.capture(decoder.create_forward_fn)
    assert [record.error for record in report.failed] == []
    return manager


@cache
def serving(name: str, device: str) -> tuple[HuggingFaceDecoder, CudaGraphManager]:
    """Decodes one token, and verifies three; tests leave nothing in it that others rely on."""
    entries = [*((n, 1) for n in SIZES), (4, 3), (1, 3)]
    lines = (f"mode: FULL, num_tokens: {n * q}, num_reqs: {n}, uniform_token_count: {q}" for n, q in entries)
    decoder = decoder_of(name, device, max_query_len=3)
    return decoder, captured(decoder, plan_of(*lines))


@contextmanager
def forwards(decoder: HuggingFaceDecoder) -> Iterator[list[int]]:
    """The rows of each forward that the model's Python runs."""
    rows: list[int] = []
    hook = decoder.model.register_forward_pre_hook(
        lambda module, args, kwargs: rows.append(kwargs["input_ids"].shape[0]),  # noqa: ARG005
        with_kwargs=True,
    )
    try:
        yield rows
    finally:
        hook.remove()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", MODELS)
def test_tokens_with_graphs_are_those_of_the_models_own_generate(name: str, device: str) -> None:
    decoder, manager = serving(name, device)
    with forwards(decoder) as rows:
        assert decoder.generate(PROMPTS, NEW_TOKENS, manager) == expected(name)
    assert rows == [1] * len(PROMPTS), "only prompts run the model's Python"
    assert decoder.generate(PROMPTS, NEW_TOKENS) == expected(name)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", MODELS)
def test_several_tokens_a_request_are_verified_by_one_graph(name: str, device: str) -> None:
    decoder, manager = serving(name, device)
    answers = expected(name)
    for row in range(3):
        decoder.prefill(PROMPTS[row], row)
    decoder.stage([answers[row][:3] for row in range(3)], [len(PROMPTS[row]) for row in range(3)])
    with forwards(decoder) as rows:
        chosen = decoder.decode_step(3, 3, manager).argmax(-1).view(3, 3).tolist()
    assert chosen == [answers[row][1:4] for row in range(3)]
    assert rows == []


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", MODELS)
def test_every_entry_agrees_with_eager_and_with_itself(name: str, device: str) -> None:
    decoder, manager = serving(name, device)
    for row in range(SIZES[0]):
        decoder.prefill(PROMPTS[4], row)
    verdicts = verify_entries(manager, decoder.create_forward_fn, decoder.fill)
    assert len(verdicts) == len(manager.entries)
    assert all(verdict.ok for verdict in verdicts), verdicts


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", MODELS)
def test_one_eager_forward_stands_for_all_batches_of_a_query_length(name: str, device: str) -> None:
    decoder, manager = serving(name, device)
    warm_ups = []

    def create(desc: BatchExecutionDescriptor, warmup: bool) -> Forward:
        warm_ups.append((desc.num_tokens, desc.uniform_token_count))
        return decoder.create_forward_fn(desc, warmup)

    verdicts = verify_entries(manager, create, decoder.fill, front=decoder.front_of)
    assert all(verdict.ok for verdict in verdicts), verdicts
    lengths = {entry.execution_descriptor.uniform_token_count for entry in manager.entries}
    assert len(warm_ups) < len(manager.entries)
    assert {length for _, length in warm_ups} == lengths


@pytest.mark.parametrize("name", MODELS)
def test_the_tensors_that_graphs_name_are_all_told(name: str) -> None:
    decoder, _ = serving(name, "cpu")
    told = {tensor.untyped_storage().data_ptr() for tensor in decoder.static_tensors().values()}
    model = (*decoder.model.parameters(), *decoder.model.buffers())
    cache = [each for layer in decoder.cache.layers for each in (layer.keys, layer.values)]
    for tensor in (*model, *cache, decoder.input_ids, decoder.positions):
        assert tensor is not None
        assert tensor.untyped_storage().data_ptr() in told


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", MODELS)
def test_batches_that_grow_and_shrink_are_padded_and_give_the_eager_logits(name: str, device: str) -> None:
    decoder, manager = serving(name, device)
    for row in range(SIZES[0]):
        decoder.prefill(PROMPTS[row], row)
    sizes = [*range(1, SIZES[0] + 1), *reversed(range(1, SIZES[0] + 1))]
    for step, num_reqs in enumerate(sizes):
        reqs = range(step, step + num_reqs)
        decoder.stage([[number % 97] for number in reqs], list(reqs))
        replayed = decoder.decode_step(num_reqs, manager=manager).clone()
        eager = decoder.decode_step(num_reqs)
        torch.testing.assert_close(replayed, eager, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("end_id", range(3))
def test_requests_end_at_different_steps_and_others_move_up(
    end_id: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "LlamaForCausalLM"
    token = expected(name)[end_id][end_id + 1]
    answers = expected(name, token)
    assert len({len(answer) for answer in answers}) > 1
    decoder, manager = serving(name, device)
    monkeypatch.setattr(decoder.model.generation_config, "eos_token_id", token)
    assert decoder.generate(PROMPTS, NEW_TOKENS, manager) == answers


def test_capture_and_padding_leave_all_positions_of_all_rows_alone() -> None:
    decoder = decoder_of("Qwen3ForCausalLM")
    manager = CudaGraphManager(sizes_plan(*SIZES), device="cpu")
    decoder.stage([[9]] * SIZES[0], [4] * SIZES[0])
    for layer in decoder.cache.layers:
        for tensor in (layer.keys, layer.values):
            tensor.fill_(1e4)  # type: ignore[union-attr]
    manager.capture(decoder.create_forward_fn)
    for row in range(3):
        decoder.prefill(PROMPTS[row], row)
    for step in range(2):
        # Tokens of a larger batch are still in the buffers.
        decoder.stage([[9]] * SIZES[0], [4] * SIZES[0])
        decoder.stage([[5 + step]] * 3, [len(PROMPTS[row]) + step for row in range(3)])
        decoder.decode_step(3, manager=manager if step else None)
    for layer in decoder.cache.layers:
        for row in range(SIZES[0]):
            written = len(PROMPTS[row]) + 2 if row < 3 else 0
            kept = layer.keys[row, :, :MAX_MODEL_LEN]  # type: ignore[index]
            assert (kept[:, written:] == 1e4).all()
            assert (kept[:, :written] != 1e4).all()


@pytest.mark.parametrize(("window", "first"), [(None, 0), (2, 4), (9, 0)])
def test_tokens_see_their_request_and_padding_sees_padding(window: int | None, first: int) -> None:
    rows = StaticKVCache(1, 2, 10, 2, torch.device("cpu"))
    slots = rows.slots(torch.tensor([[4, 5], [-1, -1]]))
    seen = rows.mask(slots, torch.float32, window)[:, 0] == 0
    assert slots.tolist() == [[4, 5], [10, 11]]
    assert [line.nonzero().flatten().tolist() for line in seen.flatten(0, 1)] == [
        list(range(max(first - 1, 0), 5)),
        list(range(first, 6)),
        [10],
        [10, 11],
    ]


def test_views_of_all_entries_share_one_cache() -> None:
    decoder, manager = serving("Qwen3ForCausalLM", "cpu")
    before = [layer.keys.data_ptr() for layer in decoder.cache.layers]  # type: ignore[union-attr]
    decoder.generate(PROMPTS, 3, manager)
    assert [layer.keys.data_ptr() for layer in decoder.cache.layers] == before  # type: ignore[union-attr]
    keys = decoder.cache.layers[0].keys
    assert keys is not None
    assert keys.shape[0] == SIZES[0]


def test_a_batch_without_a_graph_runs_eagerly() -> None:
    decoder = decoder_of("LlamaForCausalLM")
    manager = captured(decoder, sizes_plan(2))
    with forwards(decoder) as rows:
        answers = decoder.generate(PROMPTS[:3], 4, manager)
    assert answers == [answer[:4] for answer in expected("LlamaForCausalLM")[:3]]
    assert rows == [1, 1, 1, 3, 3, 3]


def test_graphs_of_a_v1_plan_serve_as_well() -> None:
    decoder = decoder_of("LlamaForCausalLM")
    manager = captured(decoder, v1_plan())
    with forwards(decoder) as rows:
        answers = decoder.generate(PROMPTS[:3], 4, manager)
    assert answers == [answer[:4] for answer in expected("LlamaForCausalLM")[:3]]
    assert rows == [1, 1, 1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU; tools/test_gpu runs it")
@pytest.mark.parametrize("name", MODELS)
def test_every_entry_agrees_with_eager_in_bfloat16(name: str) -> None:
    model = deepcopy(original(name)).to(torch.bfloat16)
    decoder = HuggingFaceDecoder(model, SIZES[0], MAX_MODEL_LEN, "cuda", torch.bfloat16)
    manager = captured(decoder, sizes_plan(*SIZES))
    for row in range(SIZES[0]):
        decoder.prefill(PROMPTS[4], row)
    verdicts = verify_entries(manager, decoder.create_forward_fn, decoder.fill)
    assert len(verdicts) == len(SIZES)
    assert all(verdict.ok for verdict in verdicts), verdicts


# What is refused


@pytest.mark.parametrize(
    "entry",
    [
        "mode: PIECEWISE, num_tokens: 8",
        "mode: FULL, num_tokens: 8, num_reqs: 8",
    ],
)
def test_entries_that_are_no_uniform_decode_are_refused(entry: str) -> None:
    decoder = decoder_of("LlamaForCausalLM")
    with pytest.raises(ModelError, match="FULL_DECODE_ONLY"):
        CudaGraphManager(plan_of(entry), device="cpu").capture(decoder.create_forward_fn)


def test_an_entry_larger_than_the_cache_is_refused() -> None:
    decoder = decoder_of("LlamaForCausalLM")
    with pytest.raises(InputError, match="16 requests of 1 tokens"):
        CudaGraphManager(sizes_plan(16), device="cpu").capture(decoder.create_forward_fn)


@pytest.mark.parametrize(
    ("prompts", "new_tokens"),
    [([[]], 1), ([[1] * MAX_MODEL_LEN], 1), ([[97]], 1), ([[-1]], 1), ([[1]], 0)],
)
def test_prompts_that_do_not_fit_are_refused(prompts: list[list[int]], new_tokens: int) -> None:
    with pytest.raises(InputError):
        decoder_of("LlamaForCausalLM").generate(prompts, new_tokens)


@pytest.mark.parametrize(
    ("tokens", "positions"),
    [
        ([], []),
        ([[1, 2]], [0]),
        ([[1], []], [0, 0]),
        ([[1]], [0, 1]),
        ([[1]], [MAX_MODEL_LEN]),
        ([[1]], [-1]),
        ([[97]], [0]),
        ([[1]] * 9, [0] * 9),
    ],
)
def test_steps_that_do_not_fit_are_refused(tokens: Sequence[Sequence[int]], positions: Sequence[int]) -> None:
    with pytest.raises(InputError):
        decoder_of("LlamaForCausalLM").stage(tokens, positions)


def test_a_row_outside_the_cache_is_refused() -> None:
    with pytest.raises(InputError, match="rows 0 to 7"):
        decoder_of("LlamaForCausalLM").prefill([1], 8)


def test_a_missing_transformers_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    model = original("LlamaForCausalLM")
    monkeypatch.setitem(sys.modules, "transformers.cache_utils", None)
    with pytest.raises(MachineError, match="pip install"):
        HuggingFaceDecoder(model, 1, 8)


def test_models_that_it_cannot_drive_are_refused() -> None:
    import transformers

    small = {"vocab_size": 97, "d_model": 16, "num_layers": 1, "num_heads": 2, "d_ff": 16, "d_kv": 8}
    with pytest.raises(ModelError, match="no decoder"):
        HuggingFaceDecoder(transformers.T5ForConditionalGeneration(transformers.T5Config(**small)), 1, 8)
    with pytest.raises(ModelError, match="no decoder"):
        HuggingFaceDecoder(torch.nn.Linear(2, 2), 1, 8)
    mamba = transformers.MambaConfig(vocab_size=97, hidden_size=16, num_hidden_layers=1, state_size=4)
    with pytest.raises(ModelError, match="position_ids"):
        HuggingFaceDecoder(transformers.MambaForCausalLM(mamba), 1, 8)
    with pytest.raises(ModelError, match="load it in that type"):
        decoder_of("LlamaForCausalLM", dtype=torch.bfloat16)
    with pytest.raises(InputError, match="1 to 128"):
        HuggingFaceDecoder(original("LlamaForCausalLM"), 1, 129)


def test_layers_that_keep_more_than_keys_and_values_are_refused() -> None:
    model = deepcopy(original("Gemma3ForCausalLM"))
    model.config.layer_types = ["linear_attention", "full_attention", "full_attention"]
    with pytest.raises(ModelError, match="linear_attention"):
        HuggingFaceDecoder(model, 1, 8)


def test_a_forward_that_fails_on_the_cache_is_told() -> None:
    model = deepcopy(original("LlamaForCausalLM"))
    model.config.num_hidden_layers = 2  # the model has three, but says two
    model.model.layers[1].self_attn.layer_idx = 7
    with pytest.raises(ModelError, match="static cache fails"):
        HuggingFaceDecoder(model, 1, 8)


def test_the_model_stays_out_of_training() -> None:
    model = deepcopy(original("LlamaForCausalLM")).train()
    assert not HuggingFaceDecoder(model, 1, 8).model.training


def test_experts_read_nothing_back_to_the_host() -> None:
    model = deepcopy(original("MixtralForCausalLM"))
    model.set_experts_implementation("eager")
    captured(HuggingFaceDecoder(model, 2, MAX_MODEL_LEN), sizes_plan(2))
