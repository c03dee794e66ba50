from __future__ import annotations

from pathlib import Path

import pytest

from planner.errors import DocumentError
from planner.importers.imported import Completion, Imported
from planner.importers.source import import_text


def imported(line: str, folder: Path, settings: str = "{}") -> Imported:
    (folder / "x.yaml").write_text(settings)
    completion = Completion(env={"HF_HOME": "/nonexistent"}, folder=folder)
    return import_text(f"trtllm-serve m {line}", completion, path="line")


def test_a_flag_that_the_file_overrides_is_told(tmp_path: Path) -> None:
    found = imported("--max_batch_size 8 --config x.yaml", tmp_path, "max_batch_size: 4")
    assert found.deployment.scheduler.max_num_seqs == 4
    assert "--max_batch_size: the config file's max_batch_size wins over it" in found.notes


def test_keys_without_effect_are_listed(tmp_path: Path) -> None:
    settings = (
        "kv_cache_config: {free_gpu_memory_fraction: 0.9, dtype: auto}\nmoe_config: {backend: TRTLLM, x: yes}"
    )
    found = imported("--config x.yaml --reasoning_parser qwen3", tmp_path, settings)
    assert found.unused == ("kv_cache_config.free_gpu_memory_fraction", "moe_config", "--reasoning_parser")


@pytest.mark.parametrize("settings", ["bogus: 1", "kv_cache_config: {bogus: 1}"])
def test_a_key_that_nobody_knows_is_a_finding(settings: str, tmp_path: Path) -> None:
    found = imported("--config x.yaml", tmp_path, settings)
    (finding,) = (finding for finding in found.findings if finding.code == "unknown-key")
    assert finding.message.startswith("x.yaml, line 1: ")
    assert "bogus is no key of TensorRT-LLM that is known, and is left out" in finding.message


def test_keys_that_tensorrt_llm_has_are_no_finding(tmp_path: Path) -> None:
    settings = (
        "print_iter_log: true\nmoe_config: {backend: TRTLLM}\n"
        "torch_compile_config: {enable_fullgraph: true}\n"
        "kv_cache_config: {enable_block_reuse: false}\nspeculative_config: {decoding_type: NGram, "
        "max_draft_len: 2, max_matching_ngram_size: 3}\nscheduler_config: {}\nattn_backend: TRTLLM\n"
    )
    found = imported("--config x.yaml", tmp_path, settings)
    assert [finding.code for finding in found.findings] == ["unknown-model"]


def test_a_size_that_is_given_twice_is_refused_on_the_line_and_told_of_a_list(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="--max_batch_size: is given twice, as '8' and as '4'"):
        imported("--max_batch_size 8 --max_batch_size 4", tmp_path)
    notes = imported("--config x.yaml", tmp_path, "cuda_graph_config: {batch_sizes: [4, 4, 8]}").notes
    assert "cuda_graph_config: batch_sizes lists 4 more than once; each size is captured once" in notes


@pytest.mark.parametrize(
    ("line", "settings", "message"),
    [
        (
            "--config x.yaml",
            "cuda_graph_confg: {}",
            "x.yaml:1:1: cuda_graph_confg: is no key that is known; did you",
        ),
        (
            "--config x.yaml",
            "cuda_graph_config: {batch_sizes: [0]}",
            "x.yaml:1:1: cuda_graph_config: tensorrt_llm.",
        ),
        ("--config x.yaml", "cuda_graph_config: {sizes: [1]}", "is no key of it"),
        ("--config x.yaml", "max_batch_size: many", "x.yaml:1:1: max_batch_size: expected"),
        ("--config x.yaml", "lora_config: 3", "lora_config: expected a mapping"),
        ("--config x.yaml", "- a", "expected one mapping of settings, found a list"),
        ("--config x.yaml", "a: 1\n---\nb: 1", "expected one mapping of settings, found several documents"),
        ("--config x.txt", "", "x.txt is no file of YAML by its name; give a .yaml file"),
        ("--config gone.yaml", "", "gone.yaml: no such file"),
        ("--config $X", "", "$X is not looked up or run here"),
        ("--backend tensorrt", "", "only the PyTorch backend can be planned"),
        ("n", "", "n stands where only one model may be named"),
        ("--tp 2", "", "--tp: is no flag of trtllm-serve"),
    ],
)
def test_a_wrong_line_or_file_is_refused(line: str, settings: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DocumentError) as error:
        imported(line, tmp_path, settings or "{}")
    assert message in str(error.value)


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    assert imported("--config x.yaml", tmp_path, "# nothing yet\n").deployment.tensorrt_llm is None


def test_null_turns_graphs_off_and_null_mappings_say_nothing(tmp_path: Path) -> None:
    section = imported(
        "--config x.yaml", tmp_path, "cuda_graph_config:\nlora_config: null"
    ).deployment.tensorrt_llm
    assert section is not None
    assert section.cuda_graph_config is None


def test_a_largest_size_that_is_not_the_maximum_is_refused_as_compile_does(tmp_path: Path) -> None:
    settings = "max_num_tokens: 64\ncuda_graph_config: {batch_sizes: [1, 2, 2, 16], max_batch_size: 3}"
    with pytest.raises(DocumentError) as error:
        imported("--config x.yaml", tmp_path, settings)
    assert str(error.value) == (
        "x.yaml:2:1: cuda_graph_config.max_batch_size: is 3 but the largest of batch_sizes is 16; make them "
        "equal, or drop it"
    )


@pytest.mark.parametrize("graphs", ["{batch_sizes: [1, 3], max_batch_size: 3}", "{batch_sizes: [1, 3]}"])
def test_a_largest_size_that_is_the_maximum_is_taken(graphs: str, tmp_path: Path) -> None:
    found = imported("--config x.yaml", tmp_path, f"cuda_graph_config: {graphs}")
    assert found.deployment.tensorrt_llm is not None
