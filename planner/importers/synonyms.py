"""What one engine calls what another calls otherwise, for whoever writes one's name to the other.

Source: vLLM 0.33 (rules 10), SGLang 0.5.23 and TensorRT-LLM 1.3 (rules 1 of each).
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.importers.detect import SGLANG, TENSORRT_LLM, VLLM

_FILE = "in the file behind --config"
_KEYS = {"free_gpu_memory_fraction": "kv_cache_config.free_gpu_memory_fraction"}
"""Flags that stand elsewhere in a file."""

SYNONYMS: tuple[Mapping[str, tuple[str, ...]], ...] = (
    {
        VLLM: ("--max-num-seqs",),
        SGLANG: ("--max-running-requests",),
        TENSORRT_LLM: ("--max_batch_size",),
    },
    {
        VLLM: ("--max-num-batched-tokens",),
        SGLANG: ("--chunked-prefill-size",),
        TENSORRT_LLM: ("--max_num_tokens",),
    },
    {VLLM: ("--max-model-len",), SGLANG: ("--context-length",), TENSORRT_LLM: ("--max_seq_len",)},
    {
        VLLM: ("--tensor-parallel-size", "-tp"),
        SGLANG: ("--tp-size", "--tp"),
        TENSORRT_LLM: ("--tensor_parallel_size",),
    },
    {
        VLLM: ("--pipeline-parallel-size", "-pp"),
        SGLANG: ("--pp-size", "--pp"),
        TENSORRT_LLM: ("--pipeline_parallel_size",),
    },
    {VLLM: ("--data-parallel-size", "-dp"), SGLANG: ("--dp-size", "--dp")},
    {
        VLLM: ("--enable-expert-parallel", "-ep"),
        SGLANG: ("--ep-size", "--ep"),
        TENSORRT_LLM: ("--moe_expert_parallel_size",),
    },
    {
        VLLM: ("--decode-context-parallel-size", "-dcp"),
        SGLANG: ("--dcp-size",),
        TENSORRT_LLM: ("--context_parallel_size", "--cp_size"),
    },
    {SGLANG: ("--enable-dp-attention",), TENSORRT_LLM: ("--enable_attention_dp",)},
    {
        VLLM: ("--gpu-memory-utilization",),
        SGLANG: ("--mem-fraction-static",),
        TENSORRT_LLM: ("--free_gpu_memory_fraction", "--kv_cache_free_gpu_memory_fraction"),
    },
    {VLLM: ("--kv-cache-dtype",), SGLANG: ("--kv-cache-dtype",), TENSORRT_LLM: ("--kv_cache_dtype",)},
    {
        VLLM: ("--block-size",),
        SGLANG: ("--page-size",),
        TENSORRT_LLM: ("kv_cache_config.tokens_per_block", "--tokens_per_block"),
    },
    {
        VLLM: ("--cudagraph-capture-sizes", "--cuda-graph-sizes"),
        SGLANG: ("--cuda-graph-bs-decode", "--cuda-graph-bs"),
        TENSORRT_LLM: ("cuda_graph_config.batch_sizes", "--cuda_graph_batch_sizes"),
    },
    {
        VLLM: ("--max-cudagraph-capture-size",),
        SGLANG: ("--cuda-graph-max-bs-decode", "--cuda-graph-max-bs"),
        TENSORRT_LLM: ("cuda_graph_config.max_batch_size", "--cuda_graph_max_batch_size"),
    },
    {
        VLLM: ("--compilation-config", "-cc"),
        SGLANG: ("--cuda-graph-config",),
        TENSORRT_LLM: ("cuda_graph_config",),
    },
    {
        VLLM: ("--enforce-eager",),
        SGLANG: ("--disable-cuda-graph",),
        TENSORRT_LLM: ("cuda_graph_config: null", "--use_cuda_graph"),
    },
    {
        VLLM: ("--speculative-config", "-sc"),
        SGLANG: ("--speculative-algorithm",),
        TENSORRT_LLM: ("speculative_config",),
    },
    {
        VLLM: ("--spec-tokens", "--num-speculative-tokens"),
        SGLANG: ("--speculative-num-draft-tokens",),
        TENSORRT_LLM: ("speculative_config.max_draft_len", "--max_draft_len"),
    },
    {
        VLLM: ("--max-loras",),
        SGLANG: ("--max-loras-per-batch",),
        TENSORRT_LLM: ("lora_config.max_loras", "--max_loras"),
    },
    {
        VLLM: ("--served-model-name",),
        SGLANG: ("--served-model-name",),
        TENSORRT_LLM: ("--served_model_name",),
    },
    {VLLM: ("--model",), SGLANG: ("--model-path",)},
)
"""Settings by what each engine calls them, the name to give first; a name without dashes is one of a file."""


def other_name(spelled: str, engine: str, *, of_key: bool = False) -> str | None:
    """What ``engine`` calls the setting that another engine calls ``spelled``.

    ``of_key`` says that a key of the engine's file is asked for rather than a flag.
    """
    sought = _plain(spelled)
    for names in SYNONYMS:
        if engine not in names:
            continue
        others = (
            name for other, given in names.items() for name in given if (other, name) != (engine, given[0])
        )
        if sought in map(_plain, others):
            found = names[engine][0]
            if of_key:
                return _KEYS.get(found.lstrip("-"), found.lstrip("-"))
            return found if found.startswith("--") else f"{found} {_FILE}"
    return None


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_").casefold()
