from __future__ import annotations

import shlex
from typing import Any

import pytest

from planner.errors import DocumentError
from planner.importers.flags import CommandLine
from planner.importers.vllm_flags import grammar, parse_words
from planner.importers.words import Word


def parse(line: str) -> CommandLine:
    return parse_words([Word(text) for text in shlex.split(line)], "line")


def values(line: str) -> dict[str, Any]:
    return {name: given.value for name, given in parse(line).given.items()}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--max-num-seqs 5", {"--max-num-seqs": 5}),
        ("--max_num_seqs=5", {"--max-num-seqs": 5}),
        ("-tp 2 -pp=3", {"--tensor-parallel-size": 2, "--pipeline-parallel-size": 3}),
        ("--max-num-batched-tokens 8k", {"--max-num-batched-tokens": 8000}),
        ("--max-num-batched-tokens 8K", {"--max-num-batched-tokens": 8192}),
        ("--max-num-batched-tokens 1.5k", {"--max-num-batched-tokens": 1500}),
        ("--max-model-len auto", {"--max-model-len": None}),
        ("--max-model-len -1", {"--max-model-len": None}),
        ("--enforce-eager", {"--enforce-eager": True}),
        ("--no-enforce-eager", {"--enforce-eager": False}),
        ("--disable-expert-parallel", {"--enable-expert-parallel": False}),
        ("-O3", {"--optimization-level": "3"}),
        ("-O=1", {"--optimization-level": "1"}),
        ("-O 2", {"--optimization-level": "2"}),
        (
            "--cudagraph-capture-sizes 1 2 4 -tp 2",
            {"--cudagraph-capture-sizes": [1, 2, 4], "--tensor-parallel-size": 2},
        ),
        ("--cudagraph-capture-sizes=8", {"--cudagraph-capture-sizes": [8]}),
        ("-cc '{\"mode\": 3}'", {"--compilation-config": {"mode": 3}}),
        (
            "-cc.mode=3 --compilation_config.cudagraph_mode full",
            {"--compilation-config": {"mode": 3, "cudagraph_mode": "full"}},
        ),
        (
            "-cc.pass_config.fuse_attn_quant true",
            {"--compilation-config": {"pass_config": {"fuse_attn_quant": True}}},
        ),
        (
            "-cc.cudagraph_capture_sizes+ 1,2 -cc.cudagraph_capture_sizes+ 4",
            {"--compilation-config": {"cudagraph_capture_sizes": [1, 2, 4]}},
        ),
        ("-cc.max_cudagraph_capture_size 1k", {"--compilation-config": {"max_cudagraph_capture_size": 1000}}),
        ("--distributed-executor-backend None", {"--distributed-executor-backend": None}),
        ("--max-num-batched 64", {"--max-num-batched-tokens": 64}),
        ("--hf-token --grpc", {"--hf-token": None, "--grpc": True}),
    ],
)
def test_values_are_those_of_the_engines_parser(line: str, expected: dict[str, Any]) -> None:
    assert values(line) == expected


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--max-num-sqs 5", "--max-num-sqs: is no flag of vllm serve 0.33; did you mean --max-num-seqs?"),
        ("--max-num-seqs", "--max-num-seqs: needs a value"),
        ("--max-num-seqs --port 1", "--max-num-seqs: needs a value"),
        ("--max-num-seqs many", "--max-num-seqs: needs a whole number, found 'many'"),
        ("--max-num-batched-tokens 1.5K", "needs a whole number, such as 8192 or 8k, found '1.5K'"),
        ("--enforce-eager=true", "--enforce-eager: takes no value, found 'true'"),
        ("--max-num 5", "--max-num: could be any of"),
        ("-cc '{mode: 3}'", "-cc: is no JSON"),
        ("-cc {mode:3}", "put the value in single quotes"),
        ('-cc \'{"mode": 1, "mode": 2}\'', "a key stands twice in one mapping"),
        ("-cc '{\"mode\": NaN}'", "NaN is no number of JSON"),
        ("-cc.mode 3 -cc.mode.x 4", "gives mode both as a value and as a mapping"),
        ("-cc.mode 3 -cc.mode+ 4", "gives mode both as a value and as a list"),
        ("--max-num-seqs.x 3", "takes one value, not keys such as .x"),
        ("-cc " + "[" * 100_000, "-cc: is"),
    ],
)
def test_a_wrong_flag_is_named(line: str, message: str) -> None:
    with pytest.raises(DocumentError) as error:
        parse(line)
    assert message in str(error.value)


def test_a_flag_given_twice_counts_as_it_is_given_last_and_that_is_said() -> None:
    line = parse("--max-num-seqs 5 --max-num-seqs 6")
    assert line.given["--max-num-seqs"].value == 6
    assert line.remarks == ["--max-num-seqs is given more than once; the last counts"]


def test_the_keys_of_a_json_flag_replace_its_whole_value_as_in_the_engine() -> None:
    line = parse('-cc.mode=1 -cc \'{"cudagraph_mode": "FULL"}\'')
    assert line.given["--compilation-config"].value == {"mode": 1}
    assert line.remarks == ["--compilation-config is given once as a whole and once by keys; the last counts"]


def test_a_value_that_is_not_known_is_kept_as_such() -> None:
    unknown = Word("$N", 3, 4, ("$N",))
    given = parse_words([Word("--max-num-seqs"), unknown], None).given["--max-num-seqs"]
    assert (given.value, given.unknown) == (None, unknown)


def test_every_spelling_belongs_to_one_flag() -> None:
    spellings = [spelling for flag in set(grammar().table.values()) for spelling in flag.spellings]
    assert len(spellings) == len(set(spellings)) > 400


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-O.mode=3", "write -cc.mode=3"),
        ("--device H200", "as an option of planner it goes in front of it"),
        ("-o plan.yaml", "as an option of planner it goes in front of it"),
        ("\u2013max-num-seqs 8", "begins with U+2013, not with -"),
    ],
)
def test_a_flag_of_something_else_has_a_hint(line: str, message: str) -> None:
    with pytest.raises(DocumentError) as error:
        parse(line)
    assert message in str(error.value)


def test_a_flag_that_is_given_many_times_is_one_remark() -> None:
    assert len(parse("-tp 1 -tp 2 -tp 3 -tp 4").remarks) == 1
