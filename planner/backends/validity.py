"""Whether a backend can serve a layer, and every reason why it cannot.

Source: vLLM 0.33, each backend class's validation on CUDA; the reasons are worded here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from attrs import frozen

from planner.backends.environment import FIRST_NATIVE_FP8, Environment, shown
from planner.backends.flash_attn import MAX_FA4_HEAD_SIZE, fa4_runs, flash_attn_version, takes_fp8_kv
from planner.backends.flashinfer import trtllm_runs
from planner.backends.question import Question
from planner.backends.traits import SELECTABLE, Traits

CONFIG = "model.config"
CAPABILITY = "device.compute_capability"
KV_DTYPE = "model.kv_cache_dtype"
DTYPE = "model.dtype"
BLOCK_SIZE = "model.block_size"
DCP = "parallel.decode_context_parallel_size"
PCP = "parallel.prefill_context_parallel_size"
ENV = "engine.env"
ADAPTIVE = "speculative.enable_adaptive_verification"


@frozen
class Reason:
    """One requirement that a backend does not meet, and the setting that it comes from."""

    field: str
    text: str


def reasons_against(name: str, question: Question, env: Environment) -> tuple[Reason, ...]:
    """Why the backend cannot serve the layer; empty where it can."""
    traits = SELECTABLE[name]
    extra = _EXTRA.get(name)
    return (
        *_shape_reasons(traits, question),
        *_type_reasons(traits, question),
        *_feature_reasons(traits, question),
        *_process_reasons(traits, env),
        *(extra(question, env) if extra else ()),
    )


def _shape_reasons(traits: Traits, question: Question) -> Iterator[Reason]:
    if traits.mla != (question.mla is not None):
        yield Reason(CONFIG, "it serves MLA layers only" if traits.mla else "it does not serve MLA layers")
    elif traits.sparse != question.sparse:
        what = "sparse attention only" if traits.sparse else "dense attention only"
        yield Reason(CONFIG, f"it serves {what}")
    if question.kind not in traits.kinds:
        yield Reason(CONFIG, f"it does not serve {question.kind} layers")
    if traits.head_sizes is not None and question.head_size not in traits.head_sizes:
        yield Reason(CONFIG, f"it takes head size {_listed(traits.head_sizes)}, not {question.head_size}")


def _type_reasons(traits: Traits, question: Question) -> Iterator[Reason]:
    if question.dtype not in traits.dtypes:
        yield Reason(DTYPE, f"it takes {_listed(traits.dtypes)}, not {question.dtype}")
    turboquant = traits.name == "TURBOQUANT"
    taken = question.kv_cache_dtype.startswith("turboquant_") if turboquant else False
    if not taken and question.kv_cache_dtype not in traits.kv_dtypes:
        known = "turboquant_*" if turboquant else _listed(traits.kv_dtypes)
        yield Reason(KV_DTYPE, f"it takes a cache of {known}, not {question.kv_cache_dtype}")
    size = question.block_size
    if size is not None and traits.block_sizes and all(size % block for block in traits.block_sizes):
        multiples = _listed(traits.block_sizes)
        yield Reason(BLOCK_SIZE, f"it takes a multiple of {multiples} as block size, not {size}")


def _feature_reasons(traits: Traits, question: Question) -> Iterator[Reason]:
    needs = (
        (question.sinks, traits.sinks, "attention sinks"),
        (question.sliding_window, traits.sliding_window, "sliding windows"),
        (question.non_causal, traits.non_causal, "non-causal attention"),
        (question.mm_prefix, traits.mm_prefix, "image tokens that attend in both directions"),
    )
    for asked, served, what in needs:
        if asked and not served:
            yield Reason(CONFIG, f"it does not serve {what}")


def _process_reasons(traits: Traits, env: Environment) -> Iterator[Reason]:
    if not traits.runs_on(env.capability):
        yield Reason(
            CAPABILITY, f"it runs on compute capability {traits.device_range()}, not {shown(env.capability)}"
        )
    if env.batch_invariant and not traits.batch_invariant:
        yield Reason(ENV, "it is not batch invariant, which VLLM_BATCH_INVARIANT demands")
    if env.decode_context_parallel_size > 1 and not traits.decode_context_parallel:
        size = env.decode_context_parallel_size
        yield Reason(DCP, f"it takes a decode context parallel size of 1, not {size}")
    if env.prefill_context_parallel_size > 1 and not traits.prefill_context_parallel:
        size = env.prefill_context_parallel_size
        yield Reason(PCP, f"it takes a prefill context parallel size of 1, not {size}")
    if env.adaptive_verification and not traits.adaptive_verification:
        yield Reason(ADAPTIVE, "it does not serve adaptive verification")


def _flash_attn(question: Question, env: Environment) -> Iterator[Reason]:
    widest = MAX_FA4_HEAD_SIZE if fa4_runs(env) else 256
    if question.head_size % 8 or question.head_size > widest:
        yield Reason(CONFIG, f"head size {question.head_size} is not a multiple of 8 up to {widest}")
    version = flash_attn_version(env, question)
    if question.kv_cache_dtype in ("fp8", "fp8_e4m3") and not takes_fp8_kv(env, question):
        yield Reason(KV_DTYPE, f"FlashAttention {version or ''} does not read {question.kv_cache_dtype} here")
    if question.sinks and version not in (3, 4):
        yield Reason(CONFIG, "attention sinks need FlashAttention 3 or 4, which this device does not get")
    if question.mm_prefix:
        yield from _flash_attn_mm_prefix(question, env, version)


def _flash_attn_mm_prefix(question: Question, env: Environment, version: int | None) -> Iterator[Reason]:
    if version != 4:
        yield Reason(CONFIG, "image tokens that attend in both directions need FlashAttention 4")
    elif env.capability == (9, 0) and question.quantised_kv:
        yield Reason(KV_DTYPE, "with image tokens that attend in both directions it takes no FP8 on 9.0")


def _flashinfer(question: Question, env: Environment) -> Iterator[Reason]:
    if question.sinks and not trtllm_runs(env):
        yield Reason(CONFIG, "attention sinks need its TRT-LLM kernels, which this device does not get")
    if question.kv_cache_dtype.startswith("nvfp4"):
        yield from _flashinfer_nvfp4(question, env)
    adaptive = env.major == 10 and trtllm_runs(env) and env.decode_context_parallel_size == 1
    if env.adaptive_verification and not adaptive:
        yield Reason(ADAPTIVE, "it serves adaptive verification on 10.x with TRT-LLM kernels only")


def _flashinfer_nvfp4(question: Question, env: Environment) -> Iterator[Reason]:
    if env.major == 10:
        if not env.cubins:
            yield Reason(KV_DTYPE, f"{question.kv_cache_dtype} needs its TRT-LLM kernels")
        return
    if question.kv_cache_dtype == "nvfp4_4over6":
        yield Reason(KV_DTYPE, f"nvfp4_4over6 needs compute capability 10.x, not {shown(env.capability)}")
    if question.head_size == 64 or question.sinks:
        yield Reason(KV_DTYPE, f"{question.kv_cache_dtype} takes no head size 64 and no sinks below 10.0")


def _composite_flash_attn(question: Question, env: Environment) -> Iterator[Reason]:
    if flash_attn_version(env, question) not in (3, 4):
        yield Reason(CONFIG, "its causal part needs FlashAttention 3 or 4")
    if question.quantised_kv and not takes_fp8_kv(env, question):
        yield Reason(KV_DTYPE, f"its causal part does not read {question.kv_cache_dtype}")


def _triton_attn(question: Question, _env: Environment) -> Iterator[Reason]:
    if question.head_size < 32:
        yield Reason(CONFIG, f"head size {question.head_size} is below 32")


def _flash_attn_mla(_question: Question, env: Environment) -> Iterator[Reason]:
    if env.major == 9 and flash_attn_version(env) != 3:
        yield Reason(CAPABILITY, "it needs FlashAttention 3")


def _mla_dims(question: Question) -> tuple[int, int, int, int]:
    dims = question.mla
    return (
        (0, 0, 0, 0)
        if dims is None
        else (dims.kv_lora_rank, dims.qk_nope_head_dim, dims.qk_rope_head_dim, dims.v_head_dim)
    )


def _flashinfer_mla(question: Question, _env: Environment) -> Iterator[Reason]:
    nope = _mla_dims(question)[1]
    if question.mla is not None and nope not in (64, 128, 192):
        yield Reason(CONFIG, f"qk_nope_head_dim {nope} is not 64, 128 or 192")


def _tokenspeed_mla(question: Question, _env: Environment) -> Iterator[Reason]:
    if question.mla is not None and _mla_dims(question)[1:] != (128, 64, 128):
        yield Reason(CONFIG, "it takes head widths 128, 64 and 128 (no-RoPE, RoPE, value) only")


def _flashmla_sparse(question: Question, env: Environment) -> Iterator[Reason]:
    if question.kv_cache_dtype == "nvfp4_ds_mla" and env.major != 10:
        yield Reason(KV_DTYPE, f"nvfp4_ds_mla needs compute capability 10.x, not {shown(env.capability)}")
    if question.head_size == 512:
        rope = _mla_dims(question)[2]
        if rope or env.major != 9 or question.kv_cache_dtype not in ("auto", "bfloat16", "fp8_ds_mla"):
            yield Reason(CONFIG, "head size 512 needs 9.x, no RoPE part, and a bfloat16 or fp8_ds_mla cache")


def _flashinfer_mla_sparse(question: Question, _env: Environment) -> Iterator[Reason]:
    lora, nope, rope, _ = _mla_dims(question)
    if question.sparse and nope not in (128, 192) and not (rope == 0 and (nope, lora) == (256, 512)):
        yield Reason(CONFIG, f"qk_nope_head_dim {nope} is not 128 or 192")


def _fa4_sparse(question: Question, env: Environment) -> Iterator[Reason]:
    yield from _flashinfer_mla_sparse(question, env)
    lora, _, rope, _ = _mla_dims(question)
    dcp = env.decode_context_parallel_size
    heads = question.num_heads * dcp
    if heads not in ((8, 16, 32, 64) if dcp > 1 else (8, 16, 32, 64, 128)):
        yield Reason("parallel.tensor_parallel_size", f"{heads} query heads a rank have no kernel")
    topk = None if question.mla is None else question.mla.index_topk
    if question.sparse and ((lora, rope) != (512, 64) or topk is None or topk % 128):
        yield Reason(CONFIG, "it takes a latent width of 512 + 64 and an index_topk divisible by 128 only")


def _sparse_sm90(question: Question, _env: Environment) -> Iterator[Reason]:
    lora, _, rope, _ = _mla_dims(question)
    if question.sparse and (lora != 512 or rope not in (0, 64)):
        yield Reason(CONFIG, f"a latent width of {lora} + {rope} has no kernel")


def _sparse_sm120(question: Question, _env: Environment) -> Iterator[Reason]:
    topk = None if question.mla is None else question.mla.index_topk
    if question.sparse and topk != 2048:
        yield Reason(CONFIG, f"index_topk {topk} is not 2048")


_EXTRA: Mapping[str, Callable[[Question, Environment], Iterator[Reason]]] = MappingProxyType(
    {
        "FLASH_ATTN": _flash_attn,
        "FLASHINFER": _flashinfer,
        "TRITON_FLASH_ATTN": _composite_flash_attn,
        "TRITON_ATTN": _triton_attn,
        "FLASH_ATTN_MLA": _flash_attn_mla,
        "FLASHINFER_MLA": _flashinfer_mla,
        "TOKENSPEED_MLA": _tokenspeed_mla,
        "FLASH_ATTN_MLA_SPARSE": _flash_attn_mla,
        "FLASHMLA_SPARSE": _flashmla_sparse,
        "FLASHINFER_MLA_SPARSE": _flashinfer_mla_sparse,
        "FLASH_ATTN_MLA_SPARSE_FA4": _fa4_sparse,
        "FLASHINFER_MLA_SPARSE_SM90": _sparse_sm90,
        "FLASHINFER_MLA_SPARSE_SM120": _sparse_sm120,
    }
)


TRITON_FP8 = frozenset({"TRITON_ATTN", "TRITON_ATTN_DIFFKV", "TRITON_MLA"})
"""Backends that pass validation with an FP8 cache and refuse it when the layer is built."""


def refused_when_built(name: str, question: Question, env: Environment) -> Reason | None:
    """What a layer refuses although its backend passed validation, ``None`` for nothing."""
    kv_dtype = question.kv_cache_dtype
    fp8 = kv_dtype in ("fp8", "fp8_e4m3", "fp8_e5m2")
    if name in TRITON_FP8 and fp8 and env.capability < FIRST_NATIVE_FP8:
        return Reason(KV_DTYPE, f"{kv_dtype} needs compute capability 8.9, not {shown(env.capability)}")
    if name == "FLASH_ATTN_DIFFKV" and question.quantised_kv:
        # The layer asks about the key's width alone, which the version choice above did not.
        version = flash_attn_version(env, _key_width_only(question))
        if version not in (3, 4):
            heads = f"heads of {question.head_size}"
            return Reason(KV_DTYPE, f"{kv_dtype} needs FlashAttention 3 or 4, which {heads} do not get")
    return None


def _key_width_only(question: Question) -> Question:
    return Question(
        kind=question.kind,
        head_size=question.head_size,
        v_head_size=question.head_size,
        num_heads=question.num_heads,
        dtype=question.dtype,
        kv_cache_dtype=question.kv_cache_dtype,
    )


def _listed(values: tuple[object, ...]) -> str:
    *first, last = (str(value) for value in values)
    return f"{', '.join(first)} or {last}" if first else last
