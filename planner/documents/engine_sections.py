"""Settings that only one engine beside vLLM has, under that engine's own names.

Everything that engines share has its place in the other sections; ``planner.engines.shared`` says
which of those an engine reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from planner.descriptors import MAX_GRAPH_TOKENS

_COUNT = {"minimum": 1}
_SIZE = {"minimum": 1, "maximum": MAX_GRAPH_TOKENS}
_LIMIT = {"minimum": -1, "maximum": MAX_GRAPH_TOKENS}
_BACKEND = {"choices": ("full", "breakable", "disabled")}


@frozen(kw_only=True)
class SglangSection:
    """SGLang's ServerArgs: each key is the flag of that name, with dashes as underscores.

    Decode sizes count requests of one rank, prefill sizes its tokens. ``cuda_graph_bs`` and
    ``cuda_graph_max_bs`` are the older spelling of the decode keys. ``cuda_graph_config`` is the JSON
    object of its flag, in which a key with the value null counts as given. The other flags have these
    places: ``--tp-size``, ``--pp-size`` and ``--dcp-size`` are keys of ``parallel``, and so is
    ``--dp-size`` (with ``--enable-dp-attention`` as ``parallel.enable_dp_attention``;
    ``--attn-dp-size`` N is both of them); ``--max-running-requests`` is ``scheduler.max_num_seqs``,
    ``--chunked-prefill-size`` ``scheduler.max_num_batched_tokens``; ``--context-length``,
    ``--page-size`` and ``--attention-backend`` are ``model.max_model_len``, ``block_size`` and
    ``attention_backend``; ``--speculative-algorithm`` is ``speculative.method`` in small letters.
    """

    model_path: str | None = None
    cuda_graph_config: Mapping[str, Any] | None = None
    cuda_graph_backend_decode: str | None = field(default=None, metadata=_BACKEND)
    cuda_graph_backend_prefill: str | None = field(default=None, metadata=_BACKEND)
    cuda_graph_bs: tuple[int, ...] | None = field(default=None, metadata=_SIZE)
    cuda_graph_bs_decode: tuple[int, ...] | None = field(default=None, metadata=_SIZE)
    cuda_graph_bs_prefill: tuple[int, ...] | None = field(default=None, metadata=_SIZE)
    cuda_graph_max_bs: int | None = field(default=None, metadata=_LIMIT)
    cuda_graph_max_bs_decode: int | None = field(default=None, metadata=_LIMIT)
    cuda_graph_max_bs_prefill: int | None = field(default=None, metadata=_LIMIT)
    cuda_graph_max_seq_len_prefill: int | None = field(default=None, metadata=_COUNT)
    cuda_graph_prefill_max_context: int | None = field(default=None, metadata=_COUNT)
    disable_cuda_graph: bool | None = None
    disable_decode_cuda_graph: bool | None = None
    disable_prefill_cuda_graph: bool | None = None
    disable_cuda_graph_padding: bool | None = None
    max_total_tokens: int | None = field(default=None, metadata=_COUNT)
    attn_cp_size: int | None = field(default=None, metadata=_COUNT)
    moe_dense_tp_size: int | None = field(default=None, metadata=_COUNT)
    enable_dp_lm_head: bool | None = None
    disable_attn_tp_gather: bool | None = None
    enable_two_batch_overlap: bool | None = None
    moe_a2a_backend: str | None = None
    deepep_mode: str | None = field(default=None, metadata={"choices": ("auto", "normal", "low_latency")})
    disaggregation_mode: str | None = field(default=None, metadata={"choices": ("null", "prefill", "decode")})
    prefill_attention_backend: str | None = None
    decode_attention_backend: str | None = None
    speculative_num_steps: int | None = field(default=None, metadata=_COUNT)
    speculative_eagle_topk: int | None = field(default=None, metadata=_COUNT)
    speculative_num_draft_tokens: int | None = field(default=None, metadata=_SIZE)
    speculative_dflash_block_size: int | None = field(default=None, metadata=_SIZE)
    speculative_dspark_block_size: int | None = field(default=None, metadata=_SIZE)


@frozen(kw_only=True)
class TensorrtCudaGraphConfig:
    """TensorRT-LLM's CudaGraphConfig; sizes count requests of one rank.

    ``num_tokens``, ``max_num_token``, ``seq_lens`` and ``max_seq_len`` are those of encoders.
    """

    batch_sizes: tuple[int, ...] | None = field(default=None, metadata=_SIZE)
    max_batch_size: int | None = field(default=None, metadata={"minimum": 0, "maximum": MAX_GRAPH_TOKENS})
    enable_padding: bool | None = None
    mode: str | None = field(default=None, metadata={"choices": ("decode", "encode")})
    num_tokens: tuple[int, ...] | None = None
    max_num_token: int | None = None
    seq_lens: tuple[int, ...] | None = None
    max_seq_len: int | None = None

    @property
    def is_of_encoder(self) -> bool:
        """Whether these are the graphs of an encoder, which keys of its own say as well."""
        keys = (self.num_tokens, self.max_num_token, self.seq_lens, self.max_seq_len)
        return self.mode == "encode" or (self.mode is None and any(key is not None for key in keys))


@frozen(kw_only=True)
class TensorrtCompileConfig:
    """TensorRT-LLM's TorchCompileConfig, as far as it is an older spelling of the prefill keys."""

    enable_piecewise_cuda_graph: bool | None = None
    capture_num_tokens: tuple[int, ...] | None = field(default=None, metadata=_SIZE)


@frozen(kw_only=True)
class TensorrtSpeculativeConfig:
    """What TensorRT-LLM's speculative config has beside the keys of ``speculative``.

    ``draft_len_schedule`` has draft lengths by the largest number of requests that uses each;
    ``total_draft_tokens`` counts all nodes of a draft tree.
    """

    draft_len_schedule: Mapping[str, int] | None = None
    total_draft_tokens: int | None = field(default=None, metadata=_SIZE)


@frozen(kw_only=True)
class TensorrtLlmSection:
    """TensorRT-LLM's LLM arguments, as a file for ``trtllm-serve --config`` has them.

    ``cuda_graph_config`` is on unless it is null. The other arguments have these places:
    ``max_batch_size`` is ``scheduler.max_num_seqs``, ``max_num_tokens``
    ``scheduler.max_num_batched_tokens``, ``max_seq_len`` ``model.max_model_len``;
    ``tensor_parallel_size`` and ``pipeline_parallel_size`` are keys of ``parallel``, of which
    ``enable_dp_attention`` is ``enable_attention_dp``; ``decoding_type`` of ``speculative_config`` is
    ``speculative.method``, ``max_draft_len`` ``speculative.num_speculative_tokens``.
    """

    cuda_graph_config: TensorrtCudaGraphConfig | None = field(factory=TensorrtCudaGraphConfig)
    prefill_cuda_graph_backend: str | None = field(
        default=None, metadata={"choices": ("disabled", "piecewise", "breakable")}
    )
    prefill_capture_num_tokens: tuple[int, ...] | None = field(default=None, metadata=_SIZE)
    torch_compile_config: TensorrtCompileConfig | None = None
    speculative_config: TensorrtSpeculativeConfig | None = None
    max_beam_width: int | None = field(default=None, metadata=_COUNT)
    cuda_graph_specialize_lora: bool | None = None
