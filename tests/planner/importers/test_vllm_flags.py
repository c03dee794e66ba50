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
            "--compilation-config.mode=3 --compilation_config.cudagraph_mode full",
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


def test_a_flag_without_effect_that_is_given_twice_counts_as_it_is_given_last() -> None:
    words = [Word("--port=5"), Word("--port=6"), Word("--port=7")]
    line = parse_words(words, None, lambda _: False)
    assert line.given["--port"].value == 7
    assert line.remarks == ["--port is given more than once; the last counts"]


def test_a_flag_given_twice_with_one_value_is_no_contradiction() -> None:
    line = parse("-tp 2 --tensor-parallel-size 2")
    assert line.given["--tensor-parallel-size"].value == 2
    assert line.remarks == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "--max-num-seqs 64 --max-num-seqs 32",
            "--max-num-seqs: is given twice, as '64' and as '32'; drop one",
        ),
        ("-tp 1 --tensor-parallel-size 2", "--tensor-parallel-size: is given twice, as '1' and as '2'"),
        ("--cudagraph-capture-sizes 1 2 --cudagraph-capture-sizes 4", "given twice, as '1 2' and as '4'"),
        ("--enforce-eager --no-enforce-eager", "as --enforce-eager and as --no-enforce-eager"),
        ("-O2 -O3", "is given twice, as '2' and as '3'"),
        ("-cc.a=1 -cc.a=2", "-cc.a: gives a twice, with different values"),
        ("-cc.a.b=1 -cc.a=2", "-cc.a: gives a twice"),
        ("-cc.a=1 -cc.a.b=2", "-cc.a.b: gives a both as a value and as a mapping"),
        ('-cc \'{"a": {"b": 1}}\' -cc.a.b=2', "-cc.a.b: gives a.b twice, with different values"),
        ("-cc '{\"a\": 1}' -cc '{\"a\": 2}'", "-cc: gives a twice"),
    ],
)
def test_two_values_of_one_setting_are_refused(line: str, message: str) -> None:
    with pytest.raises(DocumentError) as error:
        parse(line)
    assert message in str(error.value)


def test_a_value_that_is_not_known_contradicts_another() -> None:
    words = [Word("--max-num-seqs"), Word("$N", unknown=("$N",)), Word("--max-num-seqs"), Word("3")]
    with pytest.raises(DocumentError, match=r"is given twice, as \$N and as '3'"):
        parse_words(words, None)


def test_the_keys_of_a_json_flag_replace_its_whole_value_as_in_the_engine() -> None:
    line = parse('-cc.mode=1 -cc \'{"cudagraph_mode": "FULL"}\'')
    assert line.given["--compilation-config"].value == {"mode": 1}
    assert line.remarks == ["--compilation-config is given once as a whole and once by keys; the last counts"]


def test_keys_behind_two_spellings_of_a_flag_are_two_values_of_which_the_last_counts() -> None:
    line = parse("-cc.mode=1 --compilation-config.cudagraph_mode=FULL -cc.max_cudagraph_capture_size=8")
    assert line.given["--compilation-config"].value == {"cudagraph_mode": "FULL"}
    assert len(line.remarks) == 1


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
