from __future__ import annotations

import pytest

from planner.errors import DocumentError
from planner.importers.imported import Completion, Imported
from planner.importers.sglang import grammar
from planner.importers.source import import_text

NOWHERE = Completion(env={"HF_HOME": "/nonexistent"})


def imported(line: str) -> Imported:
    return import_text(f"python3 -m sglang.launch_server {line}", NOWHERE, path="line")


@pytest.mark.parametrize(
    ("older", "present"),
    [
        ("--cuda-graph-bs 1 2", "--cuda-graph-bs-decode"),
        ("--cuda-graph-max-bs 8", "--cuda-graph-max-bs-decode"),
        ("--piecewise-cuda-graph-tokens 64", "--cuda-graph-bs-prefill"),
        ("--piecewise-cuda-graph-max-tokens 64", "--cuda-graph-max-bs-prefill"),
        ("--disable-piecewise-cuda-graph", "--disable-prefill-cuda-graph"),
        ("--enable-piecewise-cuda-graph", "--cuda-graph-backend-prefill"),
    ],
)
def test_a_flag_of_an_earlier_release_is_read_and_warned_of(older: str, present: str) -> None:
    codes = {finding.code: finding for finding in imported(f"--model-path m {older}").findings}
    assert codes["older-flag"].fix == f"write {present}"
    assert older.split()[0] in codes["older-flag"].message


def test_the_beginning_of_one_flag_stands_for_it_as_in_the_engine() -> None:
    section = imported("--model-path m --cuda-graph-max-bs-d 7").deployment.sglang
    assert section is not None
    assert section.cuda_graph_max_bs_decode == 7


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--model-path m --cuda-graph-b 7", "could be any of --cuda-graph-backend-decode"),
        ("m --model-path n", "n stands where only one model may be named"),
        ("--model-path m --dp-size 4 --attn-dp-size 2", "both give parallel.data_parallel_size; drop one"),
        ("--model-path m --max-total-tokens 1.5Ki", "needs a whole number, such as 8192 or 8k"),
        (
            "--model-path m --cuda-graph-config 3",
            "--cuda-graph-config: sglang.cuda_graph_config: expected a mapping",
        ),
        ("--model-path m --max-running-requests $N", "$N is not looked up or run here"),
        (
            "m --max-running-requests 4 --max-running-requests 5",
            "is given twice, as '4' and as '5'; drop one",
        ),
        ("m --tp 2 --tensor-parallel-size 4", "--tensor-parallel-size: is given twice, as '2' and as '4'"),
        (
            'm --cuda-graph-bs-decode 4 --cuda-graph-config \'{"decode": {"bs": [8]}}\'',
            "--cuda-graph-config: and --cuda-graph-bs-decode give decode.bs different values; drop one",
        ),
        (
            'm --cuda-graph-config \'{"prefill": {"max_bs": null}}\' --cuda-graph-max-bs-prefill 64',
            "and --cuda-graph-max-bs-prefill give prefill.max_bs different values",
        ),
    ],
)
def test_a_wrong_line_is_refused(line: str, message: str) -> None:
    with pytest.raises(DocumentError) as error:
        imported(line)
    assert message in str(error.value)


def test_a_size_that_flag_and_json_give_alike_is_no_contradiction() -> None:
    line = 'm --cuda-graph-max-bs-decode 8 --cuda-graph-config \'{"decode": {"max_bs": 8}}\''
    section = imported(line).deployment.sglang
    assert section is not None
    assert section.cuda_graph_max_bs_decode == 8


@pytest.mark.parametrize(
    ("line", "note"),
    [
        ("--cuda-graph-bs-decode 4 4 8", "--cuda-graph-bs-decode lists 4 more than once"),
        (
            '--cuda-graph-config \'{"decode": {"bs": [4, 8, 4]}}\'',
            "--cuda-graph-config: bs lists 4 more than once",
        ),
    ],
)
def test_a_size_that_a_list_has_twice_is_told(line: str, note: str) -> None:
    assert any(found.startswith(note) for found in imported(f"m {line}").notes)


def test_flags_that_could_change_the_graphs_otherwise_are_told() -> None:
    assert any(
        "--enable-mis could change the graphs" in note
        for note in imported("--model-path m --enable-mis").notes
    )


def test_environment_that_planning_reads_is_kept() -> None:
    text = "SGLANG_RAGGED_VERIFY_MODE=compact HF_TOKEN=x sglang serve m"
    found = import_text(text, NOWHERE, path=None)
    assert found.deployment.engine.env == {"SGLANG_RAGGED_VERIFY_MODE": "compact"}
    assert found.unused == ("HF_TOKEN",)


def test_lora_sizes_without_lora_have_no_effect() -> None:
    found = imported("--model-path m --max-loras-per-batch 4")
    assert found.deployment.lora is None
    assert found.unused == ("--max-loras-per-batch",)


def test_every_spelling_belongs_to_one_flag() -> None:
    flags = {flag.name: flag for flag in grammar().table.values()}.values()
    spellings = [spelling for flag in flags for spelling in flag.spellings]
    assert len(spellings) == len(set(spellings)) > 500
