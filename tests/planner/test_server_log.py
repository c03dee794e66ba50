"""What is read out of a server's log: true lines of several versions, wrapped, cut and spoiled."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.modes import AttentionSupport, CUDAGraphMode, Runner
from planner.server_config import server_config
from planner.server_log import LONGEST_LINE, RankCapture, ServerLog, read_server_log

LOGS = Path(__file__).resolve().parents[1] / "data" / "server-logs"
DFLASH = (LOGS / "qwen3-8b-dflash.log").read_bytes()
EAGLE_V1 = (LOGS / "llama-3.1-70b-eagle3-v1.log").read_bytes()
OUT_OF_MEMORY = (LOGS / "llama-3.1-8b-24gb-out-of-memory.json.log").read_bytes()

PIECEWISE, FULL = CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL
ENGINE = "(EngineCore pid=7) INFO x [core.py:140] Initializing a V1 LLM engine (v0.33.0) with config: "
FINISHED = "Graph capturing finished in 3 secs, took 0.25 GiB"


def lines(log: bytes) -> Iterator[bytes]:
    """As a file gives them."""
    stream = io.BytesIO(log)
    return iter(lambda: stream.readline(LONGEST_LINE), b"")


def read(log: bytes | str) -> ServerLog:
    """What a log says that says something."""
    said = read_server_log(lines(log.encode() if isinstance(log, str) else log))
    assert said is not None
    return said


def counts(said: ServerLog) -> dict[tuple[str, str], tuple[int, int]]:
    """Captured and total graphs by family and mode."""
    return {(told.family, str(told.mode)): (told.captured, told.total) for told in said.graphs}


def bar(captured: int, total: int, what: str = "CUDA graphs (FULL)") -> str:
    """A progress bar as it stands in a file."""
    return f"\rCapturing {what}: {100 * captured // total:3}%|███▍      | {captured}/{total} [00:00<00:01]"


def test_the_v2_runner_tells_its_config_and_what_it_captured() -> None:
    said = read(DFLASH)
    assert (said.starts, said.config.version, said.runner) == (1, "0.33.0", Runner.V2)
    assert said.cudagraph_mode is CUDAGraphMode.FULL_AND_PIECEWISE
    sizes = said.config.cudagraph_capture_sizes
    assert sizes is not None
    assert (sizes[0], sizes[-1], len(sizes), said.config.max_cudagraph_capture_size) == (1, 512, 51, 512)
    assert said.config.num_speculative_tokens == 15


def test_graphs_of_the_memory_trial_are_not_counted() -> None:
    assert b"| 2/2 [" in DFLASH
    assert counts(read(DFLASH)) == {
        ("target", "PIECEWISE"): (51, 51),
        ("target", "FULL"): (32, 32),
        ("draft", "FULL"): (32, 32),
    }


def test_each_rank_tells_its_own_seconds_and_memory() -> None:
    assert read(DFLASH).ranks == (
        RankCapture(process="Worker_TP0", seconds=20.0, gib=1.12),
        RankCapture(process="Worker_TP1", seconds=21.0, gib=1.07),
    )


def test_the_v1_runner_is_known_by_the_routines_that_its_bars_name() -> None:
    said = read(EAGLE_V1)
    assert said.runner is Runner.V1
    assert counts(said) == {("target", "PIECEWISE"): (49, 49), ("target", "FULL"): (33, 33)}


def test_without_bars_the_v1_runner_has_announced_its_graphs() -> None:
    kept = [line for line in EAGLE_V1.splitlines(keepends=True) if b"Capturing CUDA graphs" not in line]
    said = read(b"".join(kept))
    assert said.runner is Runner.V1
    assert counts(said) == {("target", "PIECEWISE"): (49, 49), ("target", "FULL"): (33, 33)}


def test_an_announcement_alone_is_no_capture() -> None:
    assert (
        counts(read("Profiling CUDA graph memory: PIECEWISE=49 (largest=512), FULL=33 (largest=256)\n")) == {}
    )


def test_a_container_log_in_json_with_colours_is_read_as_plain_text() -> None:
    said = read(OUT_OF_MEMORY)
    assert said.config.cudagraph_capture_sizes == (1, 2, 4, 8, 12, 16, 24)
    assert said.cudagraph_mode is CUDAGraphMode.FULL_AND_PIECEWISE
    assert counts(said) == {("target", "PIECEWISE"): (7, 7), ("target", "FULL"): (3, 5)}


def test_running_out_of_memory_is_told() -> None:
    said = read(OUT_OF_MEMORY)
    assert not said.is_captured
    assert said.failure == "out of memory"


def test_running_out_of_memory_while_serving_is_no_failed_capture() -> None:
    assert read(DFLASH + b"torch.OutOfMemoryError: CUDA out of memory.\n").failure is None


def test_what_an_engine_captured_that_never_had_a_cache_was_the_trial() -> None:
    trial = DFLASH[: DFLASH.index(b"(EngineCore pid=412) INFO 10-21 09:15:23")]
    dead = "(EngineCore pid=412) ERROR 10-21 09:15:24 [core.py:1584] EngineCore failed to start.\n"
    said = read(trial + dead.encode())
    assert (said.graphs, said.ranks, said.failure) == ((), (), "the engine failed")


@pytest.mark.parametrize(
    ("wrap", "name"),
    [
        (lambda line: f"2026-10-21T09:15:22.166Z stderr F {line}", "a container's times"),
        (lambda line: f"vllm-1  | {line}", "a compose service"),
        (lambda line: f"\x1b[0;36m{line}\x1b[0m", "colours"),
        (lambda line: json.dumps({"severity": "INFO", "textPayload": line}), "a cloud's JSON"),
        (lambda line: json.dumps({"log": json.dumps({"message": line}) + "\n"}), "JSON in JSON"),
        (lambda line: f"2026-10-21T09:15:22Z {json.dumps({'message': line})}", "JSON after a time"),
    ],
)
def test_what_a_collector_puts_around_a_line_does_not_matter(wrap: object, name: str) -> None:
    assert callable(wrap)
    plain = [line.split("\r")[-1] for line in DFLASH.decode().split("\n")]
    said = read("".join(f"{wrap(line)}\n" for line in plain if line))
    assert said == read(DFLASH), name


def test_vllm_s_own_json_format_names_the_process_beside_the_message() -> None:
    record = {"asctime": "x", "processName": "Worker_TP3", "process": 9, "message": FINISHED}
    assert read(json.dumps(record)).ranks == (RankCapture(process="Worker_TP3", seconds=3.0, gib=0.25),)


def test_a_log_that_windows_made_utf_16_is_read() -> None:
    assert counts(read(DFLASH.decode().encode("utf-16"))) == counts(read(DFLASH))


def test_a_bar_whose_returns_were_dropped_is_read_to_its_end() -> None:
    assert counts(read(bar(1, 4).strip() + bar(3, 4).strip() + bar(4, 4).strip())) == {
        ("target", "FULL"): (4, 4)
    }


@pytest.mark.parametrize(
    ("what", "key"),
    [
        ("CUDA graphs (PIECEWISE)", ("target", "PIECEWISE")),
        ("CUDA graphs (mixed prefill-decode, PIECEWISE)", ("target", "PIECEWISE")),
        ("CUDA graphs (mixed prefill-decode, FULL)", ("target", "FULL")),
        ("CUDA graphs (decode, FULL)", ("target", "FULL")),
        ("prefill CUDA graphs (PIECEWISE)", ("draft_prefill", "PIECEWISE")),
        ("decode CUDA graphs (FULL)", ("draft_decode", "FULL")),
        ("eagle prefill CUDA graphs (FULL)", ("draft_prefill", "FULL")),
        ("multi-module MTP CUDA graphs (FULL)", ("draft", "FULL")),
        ("dspark CUDA graphs (FULL)", ("draft", "FULL")),
        ("lilicorr CUDA graphs (FULL)", ("draft", "FULL")),
    ],
)
def test_a_bar_names_its_family_and_mode(what: str, key: tuple[str, str]) -> None:
    assert counts(read(bar(2, 9, what))) == {key: (2, 9)}


def test_encoder_graphs_are_told_by_a_line_of_their_own() -> None:
    log = f"{FINISHED}\nEncoder CUDA graph capture complete. Captured 6 graphs across 1 paths.\n"
    assert counts(read(log)) == {("encoder", "FULL"): (6, 6)}


TOO_WEAK = "CUDAGraphMode.{} is not supported with {} backend (support: AttentionCGSupport.{}); "
NO_PIECES = (
    "Cudagraph mode FULL_AND_PIECEWISE requires piecewise capture, but the loaded model provides none. "
)


@pytest.mark.parametrize(
    ("message", "mode", "support"),
    [
        (
            TOO_WEAK.format("FULL", "FlashInferBackend", "UNIFORM_BATCH")
            + "setting cudagraph_mode=FULL_AND_PIECEWISE",
            CUDAGraphMode.FULL_AND_PIECEWISE,
            AttentionSupport.UNIFORM_BATCH,
        ),
        (
            TOO_WEAK.format("FULL_AND_PIECEWISE", "MLACommonMetadataBuilder", "NEVER")
            + "setting cudagraph_mode=PIECEWISE because attention is compiled piecewise",
            PIECEWISE,
            AttentionSupport.NEVER,
        ),
        (f"{NO_PIECES}Overriding to FULL_DECODE_ONLY.", CUDAGraphMode.FULL_DECODE_ONLY, None),
    ],
)
def test_the_mode_that_a_later_line_sets_is_the_one_in_force(
    message: str, mode: CUDAGraphMode, support: AttentionSupport | None
) -> None:
    said = read(f"{ENGINE}'cudagraph_mode': <CUDAGraphMode.FULL: 2>\n(Worker pid=8) WARNING x {message}\n")
    assert (said.config.cudagraph_mode, said.cudagraph_mode) == (FULL, mode)
    assert said.lowered_because == message[:240]
    assert said.attention_support is support


def test_a_message_about_settings_that_are_in_the_config_already_changes_nothing() -> None:
    early = "Pooling models do not support full cudagraphs. Overriding cudagraph_mode to PIECEWISE."
    said = read(f"{ENGINE}'cudagraph_mode': <CUDAGraphMode.FULL: 2>\n{early}\n")
    assert said.cudagraph_mode is FULL


def test_of_several_starts_the_last_counts() -> None:
    said = read(DFLASH + DFLASH.replace(b"51/51", b"50/50").replace(b"0.33.0", b"0.33.1"))
    assert (said.starts, said.config.version) == (2, "0.33.1")
    assert counts(said)["target", "PIECEWISE"] == (50, 50)


def test_nothing_of_an_earlier_start_is_left_in_the_last() -> None:
    said = read(DFLASH + f"{ENGINE}x\n".encode())
    assert (said.starts, said.graphs, said.ranks, said.runner, said.cudagraph_mode) == (2, (), (), None, None)


def test_data_parallel_engines_begin_one_start_together() -> None:
    log = "".join(f"{ENGINE}x\n".replace("EngineCore", f"EngineCore_DP{rank}") for rank in (0, 1))
    assert read(log).starts == 1
    assert read(log + log).starts == 2


def test_an_engine_s_cache_leaves_what_other_data_parallel_engines_captured() -> None:
    finished = "".join(f"(Worker_DP{rank}_TP0 pid=1) {FINISHED}\n" for rank in (0, 1))
    said = read(f"{finished}(EngineCore_DP1 pid=2) GPU KV cache size: 9 tokens\n")
    assert [rank.process for rank in said.ranks] == ["Worker_DP0_TP0"]


@pytest.mark.parametrize(
    "text",
    [
        "<CUDAGraphMode.FULL_DECODE_ONLY: (2, 0)>",
        "CUDAGraphMode.FULL_DECODE_ONLY",
        "'FULL_DECODE_ONLY'",
        '"FULL_DECODE_ONLY"',
        "[2,0]",
        "(2, 0)",
    ],
)
def test_every_spelling_of_a_mode_is_known(text: str) -> None:
    for quote in "'\"":
        config = server_config(f"{ENGINE}compilation_config={{{quote}cudagraph_mode{quote}: {text}, 'x': 1}}")
        assert config is not None
        assert config.cudagraph_mode is CUDAGraphMode.FULL_DECODE_ONLY


@pytest.mark.parametrize(
    ("text", "mode"), [("0", CUDAGraphMode.NONE), ("2", FULL), ("None", None), ("7", None)]
)
def test_a_mode_may_be_a_number_or_nothing(text: str, mode: CUDAGraphMode | None) -> None:
    config = server_config(f"{ENGINE}compilation_config={{'cudagraph_mode': {text}}}")
    assert config is not None
    assert config.cudagraph_mode is mode


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("[1, 2, 4]", (1, 2, 4)),
        ("[512,504,1]", (1, 504, 512)),
        ("[]", ()),
        ("None", None),
        ("null", None),
        ("[1, -2]", None),
        ("[1, 2.5]", None),
        ("[1, [2]]", None),
        ("[__import__('os')]", None),
        ("[1, 99999999999999999999]", None),
        ("[1, ٣]", None),
    ],
)
def test_sizes_are_a_whole_list_of_plain_numbers_or_unknown(text: str, sizes: tuple[int, ...] | None) -> None:
    config = server_config(f"{ENGINE}compilation_config={{'cudagraph_capture_sizes': {text}, 'x': 1}}")
    assert config is not None
    assert config.cudagraph_capture_sizes == sizes


def test_only_the_compilation_config_tells_the_mode() -> None:
    config = server_config(
        f"{ENGINE}model=\"'cudagraph_mode': 0\", compilation_config={{'cudagraph_mode': 2}}"
    )
    assert config is not None
    assert config.cudagraph_mode is FULL


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("speculative_config=SpeculativeConfig(method='mtp', model='m', num_spec_tokens=3), x", 3),
        ("speculative_config=None, x", 0),
        ("speculative_config=SpeculativeConfig(method='mtp', model='m', num_spec_tokens=None), x", None),
        ("x", None),
    ],
)
def test_the_number_of_drafts_is_told_by_the_speculative_config(text: str, number: int | None) -> None:
    config = server_config(f"{ENGINE}model='m', {text}")
    assert config is not None
    assert config.num_speculative_tokens == number


@pytest.mark.parametrize(
    "log",
    [
        b"",
        b"\n\r\n",
        b'INFO:     10.0.0.1:5 - "POST /v1/completions HTTP/1.1" 200 OK\n',
        b"Capturing batches (bs=1): 100%|###| 4/4 [00:01<00:00]\n",
        b"\x00\xff\xfe\x1b[" * 99,
        b"torch.OutOfMemoryError: CUDA out of memory.\n",
    ],
)
def test_a_log_of_something_else_says_nothing(log: bytes) -> None:
    assert read_server_log(lines(log)) is None


@given(
    st.lists(st.sampled_from(DFLASH.split(b" ") + OUT_OF_MEMORY.split(b'"') + [b"\r", b"\n", b"\x00\xe2"]))
)
def test_lines_torn_to_pieces_are_no_error(pieces: list[bytes]) -> None:
    read_server_log(lines(b" ".join(pieces)))


def cuts(log: bytes) -> Iterator[bytes]:
    """Beginnings of ``log`` that end within what is read out of it."""
    for marker in (
        b"'cudagraph_mode'",
        b"'cudagraph_capture_sizes'",
        b"'max_cudagraph",
        b"num_spec",
        b"| 51/51",
    ):
        place = log.rindex(marker)
        yield from (log[: place + length] for length in range(60))


def test_what_is_cut_off_is_unknown_and_never_another_value() -> None:
    whole = read(DFLASH)
    for log in cuts(DFLASH):
        said = read_server_log(lines(log))
        if said is not None:
            for name in ("cudagraph_mode", "cudagraph_capture_sizes", "max_cudagraph_capture_size"):
                assert getattr(said.config, name) in (None, getattr(whole.config, name)), log[-80:]
            assert said.config.num_speculative_tokens in (None, 15)
            assert {told.total for told in said.graphs} <= {51, 32, 2}


def test_a_line_without_end_is_read_in_pieces() -> None:
    assert counts(read("x" * (2 * LONGEST_LINE) + bar(9, 9))) == {("target", "FULL"): (9, 9)}


def test_the_config_tells_the_model_and_how_it_is_spread() -> None:
    config = read(EAGLE_V1).config
    assert (config.model, config.dtype) == ("meta-llama/Llama-3.1-70B-Instruct", "bfloat16")
    assert (config.tensor_parallel_size, config.pipeline_parallel_size, config.data_parallel_size) == (
        8,
        1,
        1,
    )
    assert config.max_model_len == 32768


def test_a_log_that_ends_in_an_error_of_memory_has_failed_without_the_engine_saying_so() -> None:
    before = DFLASH[: DFLASH.index(b"Capturing CUDA graphs")]
    error = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 32.00 MiB.\n"
    assert read(before + error).failure == "out of memory"
    assert read(before + b"If out of memory error occurs, decrease gpu_memory_utilization\n").failure is None


def test_running_out_of_memory_after_the_trial_is_no_finished_capture() -> None:
    trial = DFLASH[: DFLASH.index(b"(EngineCore pid=412) INFO 10-21 09:15:23")]
    said = read(trial + b"torch.OutOfMemoryError: CUDA out of memory.\n")
    assert (said.graphs, said.ranks, said.failure) == ((), (), "out of memory")
