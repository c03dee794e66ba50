"""Names of one engine that are written to another."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.errors import DocumentError
from planner.importers.detect import ENGINES, SGLANG, TENSORRT_LLM, VLLM
from planner.importers.flags import Grammar
from planner.importers.imported import Completion
from planner.importers.source import COMMANDS, import_text
from planner.importers.synonyms import SYNONYMS, other_name
from planner.importers.tensorrt_llm import KEYS, NESTED
from planner.importers.tensorrt_llm_keys import INNER_KEYS


def refusal(line: str, folder: Path = Path()) -> str:
    with pytest.raises(DocumentError) as error:
        import_text(line, Completion(env={"HF_HOME": "/nonexistent"}, folder=folder), path="line")
    return str(error.value)


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("sglang serve m --max_num_seqs 4", "--max-running-requests"),
        ("sglang serve m --max-num-seqs 4", "--max-running-requests"),
        ("sglang serve m --max_batch_size 4", "--max-running-requests"),
        ("sglang serve m --max-num-batched-tokens 4", "--chunked-prefill-size"),
        ("sglang serve m --cudagraph-capture-sizes 4", "--cuda-graph-bs-decode"),
        ("sglang serve m -tp 4", "--tp-size"),
        ("sglang serve m --enforce-eager", "--disable-cuda-graph"),
        ("vllm serve m --max-running-requests 4", "--max-num-seqs"),
        ("vllm serve m --max_batch_size 4", "--max-num-seqs"),
        ("vllm serve m --context-length 4", "--max-model-len"),
        ("vllm serve m --cuda-graph-bs 4", "--cudagraph-capture-sizes"),
        ("vllm serve m --disable-cuda-graph", "--enforce-eager"),
        ("vllm serve m --mem-fraction-static 0.8", "--gpu-memory-utilization"),
        ("trtllm-serve m --max-num-seqs 4", "--max_batch_size"),
        ("trtllm-serve m --max-running-requests 4", "--max_batch_size"),
        ("trtllm-serve m --tp 4", "--tensor_parallel_size"),
        (
            "trtllm-serve m --cudagraph-capture-sizes 4",
            "cuda_graph_config.batch_sizes in the file behind --config",
        ),
    ],
)
def test_a_flag_of_another_engine_is_known_by_what_it_is_called_here(line: str, meant: str) -> None:
    assert refusal(line).endswith(f"; did you mean {meant}?")


def _grammar(engine: str) -> Grammar:
    from planner.importers import sglang, tensorrt_llm, vllm_flags

    return {VLLM: vllm_flags, SGLANG: sglang, TENSORRT_LLM: tensorrt_llm}[engine].grammar()  # type: ignore[no-any-return]


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_suggested_exists(engine: str) -> None:
    keys = {*KEYS, *NESTED, *(f"{key}.{name}" for key in NESTED for name in (*NESTED[key], *INNER_KEYS[key]))}
    keys |= {"cuda_graph_config.batch_sizes", "cuda_graph_config.max_batch_size", "cuda_graph_config: null"}
    table = _grammar(engine).table
    for names in SYNONYMS:
        if engine in names:
            assert names[engine][0] in (table if names[engine][0].startswith("--") else keys)


def test_a_name_of_the_engine_itself_is_no_other() -> None:
    assert other_name("--max-num-seqs", VLLM) is None
    assert other_name("--nothing", VLLM) is None
    assert COMMANDS.keys() == set(ENGINES)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("max_num_seqs: 4", "max_num_seqs: is no key that is known; did you mean max_batch_size?"),
        ("max-running-requests: 4", "did you mean max_batch_size?"),
        ("cudagraph_capture_sizes: [4]", "did you mean cuda_graph_config.batch_sizes?"),
        ("gpu_memory_utilization: 0.9", "did you mean kv_cache_config.free_gpu_memory_fraction?"),
        ("kv_cache_config: {page_size: 4}", "did you mean kv_cache_config.tokens_per_block?"),
        ("speculative_config: {num_speculative_tokens: 4}", "speculative_config.max_draft_len?"),
        (
            "kv_cache_config: {dtyp: fp8}",
            "kv_cache_config.dtyp: is no key that is known; did you mean dtype?",
        ),
        ("torch_compile_config: {enable_fulgraph: true}", "did you mean enable_fullgraph?"),
        ("tensor_parallel: 2", "did you mean tensor_parallel_size?"),
        ("print_iter_logs: true", "did you mean print_iter_log?"),
    ],
)
def test_a_key_of_a_file_has_its_near_miss(settings: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(settings)
    found = refusal("trtllm-serve m --extra_llm_api_options x.yaml", tmp_path)
    assert found.startswith("x.yaml:1:1: ")
    assert message in found
