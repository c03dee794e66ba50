"""What each attention backend declares that it can serve on a CUDA device.

Conditions that take more than a comparison are in ``validity``.

Source: vLLM 0.33, the backend classes' declarations.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from attrs import frozen

from planner.backends.environment import Capability, shown
from planner.models.layers import LayerKind

FP16_BF16 = ("float16", "bfloat16")
ANY_DTYPE = ("float16", "bfloat16", "float32")
PLAIN_KV = ("auto", "float16", "bfloat16")
FP8_KV = ("fp8", "fp8_e4m3")
PER_TOKEN_HEAD_KV = ("int4_per_token_head", "int8_per_token_head", "fp8_per_token_head")

DECODER_KINDS = frozenset(
    {
        LayerKind.FULL_ATTENTION,
        LayerKind.SLIDING_WINDOW,
        LayerKind.CHUNKED_LOCAL_ATTENTION,
        LayerKind.MLA_ATTENTION,
    }
)
ALL_KINDS = DECODER_KINDS | {LayerKind.CROSS_ATTENTION, LayerKind.ENCODER_ONLY_ATTENTION}

Devices = tuple[Capability, Capability]
"""The lowest and the highest compute capability, both included."""

MINORS = 99
"""Stands for every minor number of a family."""

TOP: Capability = (99, MINORS)
ANY_DEVICE: Devices = ((0, 0), TOP)
SINCE_8: Devices = ((8, 0), TOP)
FAMILY_9: Devices = ((9, 0), (9, MINORS))
FAMILY_10: Devices = ((10, 0), (10, MINORS))
FAMILY_12: Devices = ((12, 0), (12, MINORS))

MLA_HEADS = (320, 512, 576)


@frozen(kw_only=True)
class Traits:
    """One backend's declaration.

    ``head_sizes`` are ``None`` for any. The user's block size must be a multiple of one of
    ``block_sizes``; without any, it may be everything.
    """

    name: str
    devices: Devices
    head_sizes: tuple[int, ...] | None = None
    dtypes: tuple[str, ...] = FP16_BF16
    kv_dtypes: tuple[str, ...] = PLAIN_KV
    block_sizes: tuple[int, ...] = (16,)
    kinds: frozenset[LayerKind] = DECODER_KINDS
    mla: bool = False
    sparse: bool = False
    sinks: bool = False
    sliding_window: bool = False
    non_causal: bool = False
    batch_invariant: bool = False
    mm_prefix: bool = False
    decode_context_parallel: bool = True
    prefill_context_parallel: bool = True
    adaptive_verification: bool = True

    def runs_on(self, capability: Capability) -> bool:
        """Whether the backend runs on a device of that compute capability."""
        low, high = self.devices
        return low <= capability <= high

    def device_range(self) -> str:
        """The compute capabilities that it runs on, for messages."""
        low, high = self.devices
        if high == TOP:
            return f"{shown(low)} and above"
        if high[1] == MINORS:
            return f"{low[0]}.x" if low[0] == high[0] else f"{low[0]}.x to {high[0]}.x"
        return shown(low) if low == high else f"{shown(low)} to {shown(high)}"


_DENSE = (
    Traits(
        name="FLASH_ATTN",
        devices=SINCE_8,
        kv_dtypes=(*PLAIN_KV, *FP8_KV),
        kinds=ALL_KINDS,
        sinks=True,
        sliding_window=True,
        non_causal=True,
        batch_invariant=True,
        mm_prefix=True,
        prefill_context_parallel=False,
    ),
    Traits(
        name="FLASHINFER",
        devices=((8, 0), (12, 1)),
        head_sizes=(64, 128, 256, 512),
        kv_dtypes=(*PLAIN_KV, *FP8_KV, "fp8_e5m2", "nvfp4", "nvfp4_4over6"),
        sinks=True,
        sliding_window=True,
        non_causal=True,
    ),
    Traits(
        name="TRITON_ATTN",
        devices=ANY_DEVICE,
        dtypes=ANY_DTYPE,
        kv_dtypes=(*PLAIN_KV, *FP8_KV, "fp8_e5m2", *PER_TOKEN_HEAD_KV),
        kinds=ALL_KINDS,
        sinks=True,
        sliding_window=True,
        non_causal=True,
        batch_invariant=True,
        mm_prefix=True,
        decode_context_parallel=False,
        prefill_context_parallel=False,
    ),
    Traits(
        name="FLEX_ATTENTION",
        devices=ANY_DEVICE,
        dtypes=ANY_DTYPE,
        kinds=DECODER_KINDS | {LayerKind.ENCODER_ONLY_ATTENTION},
        sliding_window=True,
        non_causal=True,
        batch_invariant=True,
        mm_prefix=True,
        decode_context_parallel=False,
    ),
    Traits(name="TURBOQUANT", devices=ANY_DEVICE, kv_dtypes=(), block_sizes=(16, 32, 64, 128)),
    Traits(
        name="TRITON_FLASH_ATTN",
        devices=FAMILY_9,
        head_sizes=(256, 512),
        kv_dtypes=(*PLAIN_KV, *FP8_KV),
        sliding_window=True,
        mm_prefix=True,
        decode_context_parallel=False,
        prefill_context_parallel=False,
        adaptive_verification=False,
    ),
    Traits(
        name="TRITON_FLASHINFER",
        devices=FAMILY_10,
        head_sizes=(256, 512),
        kv_dtypes=(*PLAIN_KV, *FP8_KV, "fp8_e5m2"),
        block_sizes=(64,),
        sliding_window=True,
        mm_prefix=True,
        decode_context_parallel=False,
        prefill_context_parallel=False,
        adaptive_verification=False,
    ),
    Traits(
        name="HPC_ATTN",
        devices=((9, 0), (9, 0)),
        head_sizes=(128,),
        kv_dtypes=("auto", "bfloat16", "fp8_e4m3"),
        block_sizes=(64,),
    ),
    Traits(
        name="B12X",
        devices=((12, 0), (12, 1)),
        head_sizes=(64, 128, 192, 256),
        dtypes=("bfloat16",),
        kv_dtypes=("auto", "bfloat16", *FP8_KV),
        block_sizes=(),
        sinks=True,
        sliding_window=True,
    ),
)

_DENSE_MLA = (
    Traits(
        name="FLASH_ATTN_MLA",
        devices=FAMILY_9,
        head_sizes=MLA_HEADS,
        mla=True,
        batch_invariant=True,
    ),
    Traits(
        name="FLASHMLA",
        devices=FAMILY_9,
        head_sizes=MLA_HEADS,
        kv_dtypes=(*PLAIN_KV, *FP8_KV),
        block_sizes=(64,),
        mla=True,
    ),
    Traits(
        name="FLASHINFER_MLA",
        devices=FAMILY_10,
        head_sizes=MLA_HEADS,
        kv_dtypes=(*PLAIN_KV, *FP8_KV),
        block_sizes=(32, 64),
        mla=True,
        non_causal=True,
    ),
    Traits(
        name="TOKENSPEED_MLA",
        devices=FAMILY_10,
        head_sizes=MLA_HEADS,
        kv_dtypes=FP8_KV,
        block_sizes=(32, 64),
        mla=True,
        non_causal=True,
    ),
    Traits(
        name="CUTLASS_MLA",
        devices=FAMILY_10,
        head_sizes=MLA_HEADS,
        kv_dtypes=(*PLAIN_KV, *FP8_KV),
        block_sizes=(128,),
        mla=True,
    ),
    Traits(
        name="TRITON_MLA",
        devices=ANY_DEVICE,
        kv_dtypes=(*PLAIN_KV, *FP8_KV),
        mla=True,
        non_causal=True,
        batch_invariant=True,
    ),
)

_SPARSE_MLA = (
    Traits(
        name="FLASH_ATTN_MLA_SPARSE",
        devices=FAMILY_9,
        block_sizes=(64,),
        mla=True,
        sparse=True,
        decode_context_parallel=False,
    ),
    Traits(
        name="FLASHMLA_SPARSE",
        devices=((9, 0), (10, MINORS)),
        head_sizes=(512, 576),
        dtypes=("bfloat16",),
        kv_dtypes=("auto", "bfloat16", "fp8", "fp8_ds_mla", "nvfp4_ds_mla"),
        block_sizes=(64,),
        mla=True,
        sparse=True,
    ),
    Traits(
        name="FLASHINFER_MLA_SPARSE",
        devices=FAMILY_10,
        head_sizes=(512, 576),
        kv_dtypes=(*PLAIN_KV, *FP8_KV),
        block_sizes=(32,),
        mla=True,
        sparse=True,
    ),
    Traits(
        name="FLASH_ATTN_MLA_SPARSE_FA4",
        devices=FAMILY_10,
        head_sizes=(576,),
        dtypes=("bfloat16",),
        kv_dtypes=("auto", "bfloat16"),
        block_sizes=(64,),
        mla=True,
        sparse=True,
    ),
    Traits(
        name="FLASHINFER_MLA_SPARSE_SM90",
        devices=FAMILY_9,
        head_sizes=(512, 576),
        dtypes=("bfloat16",),
        kv_dtypes=("auto", "bfloat16", *FP8_KV),
        block_sizes=(64,),
        mla=True,
        sparse=True,
        decode_context_parallel=False,
    ),
    Traits(
        name="FLASHINFER_MLA_SPARSE_SM120",
        devices=FAMILY_12,
        head_sizes=(512, 576),
        dtypes=("bfloat16",),
        kv_dtypes=("auto", *FP8_KV, "fp8_ds_mla"),
        block_sizes=(64,),
        mla=True,
        sparse=True,
        decode_context_parallel=False,
    ),
)

SELECTABLE: Mapping[str, Traits] = MappingProxyType(
    {traits.name: traits for traits in (*_DENSE, *_DENSE_MLA, *_SPARSE_MLA)}
)
"""The backends that a layer can get on a CUDA device by asking, by name."""
