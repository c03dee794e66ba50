from __future__ import annotations

import shlex
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import DocumentError
from planner.importers.script import MAX_TEXT, commands_of, read_script
from planner.importers.substitutions import end_of_name, parameter_name


def texts(text: str) -> list[list[str]]:
    return [[word.text for word in command] for command in commands_of(text, "line")]


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        ("vllm serve m --a 1", [["vllm", "serve", "m", "--a", "1"]]),
        ("vllm serve m \\\n  --a 1", [["vllm", "serve", "m", "--a", "1"]]),
        ("vllm serve m \\\r\n  --a 1\r\n", [["vllm", "serve", "m", "--a", "1"]]),
        ("a 'b c' d", [["a", "b c", "d"]]),
        ("""a '{"k": 1}' "x \\"y\\"" """, [["a", '{"k": 1}', 'x "y"']]),
        ("a b\\ c", [["a", "b c"]]),
        ("a '' b", [["a", "", "b"]]),
        ("# all of it\na # rest\nb#c", [["a"], ["b#c"]]),
        ("a && b; c | d & e", [["a"], ["b"], ["c"], ["d"], ["e"]]),
        ("a > log 2>&1 b", [["a", "b"]]),
        ("a &> log", [["a"]]),
        ("a < in >> 'out file' c", [["a", "c"]]),
        ("a --n 8000", [["a", "--n", "8000"]]),
        ("a '\n' b", [["a", "\n", "b"]]),
        ("", []),
        (" \n\n ;; ", []),
    ],
)
def test_words_are_those_that_a_shell_would_pass(text: str, commands: list[list[str]]) -> None:
    assert texts(text) == commands


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("$MODEL", "$MODEL"),
        ("a${PORT:-8000}b", "$PORT"),
        ('"x $(nproc) y"', "$(nproc)"),
        ("`date`", "`date`"),
        ("$1", "$1"),
        ("M=a; ${#M}", "${#M}"),
        ("M=a; ${M%x}", "${M%x}"),
        ("${A:-${B:-c}}", "$A"),
    ],
)
def test_what_a_shell_would_look_up_is_named(text: str, unknown: str) -> None:
    (word,) = commands_of(text, None)[-1]
    assert word.unknown == (unknown,)


def test_nothing_is_looked_up_in_single_quotes_or_behind_a_backslash() -> None:
    assert all(word.unknown == () for word in commands_of("'$A' \\$B '`c`' 5$", None)[0])


def test_words_know_where_they_stand() -> None:
    words = commands_of("one\n  two three", None)[1]
    assert [(word.line, word.column) for word in words] == [(2, 3), (2, 7)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a 'b", "line:1:3: the quote ' is never closed"),
        ('a "b', 'line:1:3: the quote " is never closed'),
        ("a `b", "line:1:3: the quote ` is never closed"),
        ("a \\ \n --b", "line:1:3: blanks after the backslash end the command here; remove them"),
    ],
)
def test_a_torn_paste_is_an_error_with_its_place(text: str, message: str) -> None:
    with pytest.raises(DocumentError) as error:
        commands_of(text, "line")
    assert str(error.value) == message


def test_a_text_of_megabytes_is_refused() -> None:
    with pytest.raises(DocumentError, match="longer than 1 MiB"):
        commands_of("a" * (MAX_TEXT + 1), None)


@given(st.lists(st.text(st.characters(exclude_characters="\x01\x02"), min_size=1), min_size=1))
def test_whatever_python_quotes_comes_back(words: list[str]) -> None:
    assert texts(shlex.join(words)) == [words]


@given(st.text(alphabet="ab'\"\\$`(){} \n#;|&<>=1"))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(DocumentError):
        assert all(isinstance(word, str) for command in texts(text) for word in command)


TOKENS = """
    if then else fi for i in do done while until case esac { } ( ) () ;; ; && || | & function f export M=1
    M=(1) $M serve unset source << E
"""


@given(st.lists(st.sampled_from([*TOKENS.split(), "\n"])))
def test_any_blocks_are_read_or_refused(tokens: list[str]) -> None:
    with suppress(DocumentError):
        texts(" ".join(tokens))


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("M=a/b\nserve $M", "a/b"),
        ("export M=a/b; serve ${M}", "a/b"),
        ('M="a b"\nserve "${M:-c}"', "a b"),
        ("M=a\nserve x$M", "xa"),
        ("\ufeffM=a\nserve $M", "a"),
    ],
)
def test_a_variable_that_the_text_sets_to_a_plain_value_stands_for_it(text: str, word: str) -> None:
    found = commands_of(text, None)[-1][1]
    assert (found.text, found.unknown) == (word, ())


@pytest.mark.parametrize(
    "text",
    [
        "M=$1\nserve $M",
        "M=$(ls)\nserve $M",
        "M=a serve $M",
        "test x && M=a\nserve $M",
        "(M=a\n)\nserve $M",
        "if x; then if y; then\nM=b\nfi\nM=a\nfi\nserve $M",
        "case x in\na)\nM=a\n;;\nesac\nserve $M",
        "M=a\nif x; then M=b; fi\nserve $M",
        "M=a\nM+=b\nserve $M",
        "M=a\nread M\nserve $M",
        "M=a\n. ./env\nserve $M",
        "f() {\nM=b\n}\nM=a\nf\nserve $M",
        "cat <<END\nM=a\nEND\nserve $M",
    ],
)
def test_a_variable_that_is_not_certain_stays_unknown(text: str) -> None:
    assert commands_of(text, None)[-1][-1].unknown == ("$M",)


@pytest.mark.parametrize(
    "text",
    [
        "M=8; f() { serve $M; }; M=32; f",
        "M=8; f() { serve $M; }; M=32 f",
        "M=8\nf() {\n  serve $M\n}\nsource e\nf",
        "M=8\nf ( ) (\n  serve $M\n)\nM=9\nf",
        "M=8\nfunction f {\n  serve $M\n}\nM=9\nf",
        "M=8\nfunction f() {\n  serve $M\n}\nif x; then M=9; fi\nf",
        "M=8\nf()\n{\n  if x; then serve $M; fi\n}\nM=9\nf",
        'M=(8)\nf() { serve "${M[@]}"; }\nM=(9)\nf',
        "M=8\nfor i in 1 2; do serve $M; M=9; done",
        "M=8\nwhile x; do\n  serve $M\n  read M\ndone",
        "M=8\nuntil x; do if y; then serve $M; fi; M=9; done",
        "for M in 1 2; do serve $M; done",
        "select M in 1 2; do serve $M; done",
    ],
)
def test_what_runs_again_may_see_another_value(text: str) -> None:
    (command,) = [command for command in commands_of(text, None) if any(w.text == "serve" for w in command)]
    assert command[-1].unknown == ("$M",)


@pytest.mark.parametrize(
    "text",
    [
        "M=8; f() { serve $M; }; f",
        "M=8\nfunction f() {\n  serve $M\n}\nN=9 f\nf",
        "M=8\nfor i in 1 2; do serve $M; N=9; done\nM=9",
        "f() { x; }\nM=8\nf\nserve $M\nM=9",
        "function f() {\n  x\n}\nM=8\nserve $M",
        "case x in a) y ;; esac\nM=8\nserve $M",
        "M=8\nexport M\nserve $M",
    ],
)
def test_what_runs_again_with_the_same_value_sees_it(text: str) -> None:
    found = [word for command in commands_of(text, None) for word in command if word.text == "8"]
    assert found
    assert all(word.unknown == () for word in found)


def test_the_end_of_a_nested_block_does_not_end_the_block_around_it() -> None:
    text = "M=a\nf() { for i in 1; do x; done; M=b; }\nserve $M"
    assert commands_of(text, None)[-1][-1].unknown == ("$M",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A=1\nexport A B", ["export", "A=1", "B=$B"]),
        ("if x; then export A; fi", ["then", "export", "A=$A"]),
    ],
)
def test_exported_names_come_with_their_values(text: str, words: list[str]) -> None:
    assert words in [[word.text for word in command] for command in commands_of(text, None)]


def test_texts_for_programs_are_kept_apart_from_files() -> None:
    script = read_script("cat > f <<E\na\nE\nbash <<E\nb\nE\ncat <<E | kubectl apply -f -\nc\nE\n", None)
    assert script.files == {"f": "a\n"}
    assert [(word.text, text) for word, text in script.inputs] == [("bash", "b\n"), ("kubectl", "c\n")]


def test_arithmetic_is_quoted_whole() -> None:
    assert commands_of("$((2 * (3 + 1)))", None)[0][0].unknown == ("$((2 * (3 + 1)))",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("M='a b'\nserve $M x$M", ["serve", "a", "b", "xa", "b"]),
        ("M='a b'\nserve \"$M\"", ["serve", "a b"]),
        ('M=\nserve $M "$M" x$M', ["serve", "", "x"]),
        ("A=(a 'b c' # why\n d)\nserve \"${A[@]}\" e", ["serve", "a", "b c", "d", "e"]),
        ('A=(a)\nA+=(b)\nserve "${A[@]}"', ["serve", "a", "b"]),
        ('A=()\nserve "${A[@]}" b', ["serve", "b"]),
    ],
)
def test_values_become_words_as_in_a_shell(text: str, words: list[str]) -> None:
    command = commands_of(text, None)[-1]
    assert [word.text for word in command] == words
    assert not any(word.unknown for word in command)


@pytest.mark.parametrize(
    "text",
    [
        "M='a*'\nserve $M",
        'if x; then\nM=(a)\nfi\nserve "${M[@]}"',
        'M=($x)\nserve "${M[@]}"',
        'M=(a)\nM+=($x)\nserve "${M[@]}"',
        'M=(a)\nunset M\nserve "${M[@]}"',
        'M+=(a)\nserve "${M[@]}"',
        'serve "${M[@]}"',
    ],
)
def test_words_that_are_not_certain_stay_unknown(text: str) -> None:
    assert commands_of(text, None)[-1][-1].unknown == ("$M",)


@pytest.mark.parametrize(
    ("text", "given", "words"),
    [
        ("serve $M", {"M": "a b"}, ["serve", "a", "b"]),
        ("M=x\nserve $M", {"M": "a"}, ["serve", "a"]),
        ("serve ${M:-c}", {"M": "a"}, ["serve", "a"]),
        ("serve $(nproc --all)", {"$(nproc --all)": "4"}, ["serve", "4"]),
        ("serve $((N * 2)) `x`", {"$((N * 2))": "4", "`x`": "y"}, ["serve", "4", "y"]),
        ('serve "${M[@]}"', {"M": "a 'b c'"}, ["serve", "a", "b c"]),
        ("if x; then M=b; fi\nserve $M", {"M": "a"}, ["serve", "a"]),
    ],
)
def test_what_the_user_says_wins(text: str, given: dict[str, str], words: list[str]) -> None:
    command = read_script(text, None, given=given).commands[-1].words
    assert [(word.text, word.unknown) for word in command] == [(word, ()) for word in words]


@pytest.mark.parametrize(
    ("text", "files"),
    [
        ("cat > f <<E\na: 1\nE\nls", {"f": "a: 1\n"}),
        ("cat <<'E' > f\nit's\nE\n", {"f": "it's\n"}),
        ("tee f > /dev/null <<E\na\nE\n", {"f": "a\n"}),
        ("cat <<-E >f\n\ta\n\tE\nls", {"f": "a\n"}),
        ("N=3\ncat > f <<E\na: $N $M\nE\n", {"f": "a: 3 $M\n"}),
        ("N=3\ncat > f <<'E'\na: $N\nE\n", {"f": "a: $N\n"}),
        ("cat > f <<E\nnever closed\n", {"f": "never closed\n"}),
        ("python3 - <<E\nprint('x')\nE\n", {}),
        ("cat > $F <<E\na\nE\n", {}),
    ],
)
def test_files_that_a_script_writes_out_of_itself_are_kept(text: str, files: dict[str, str]) -> None:
    assert read_script(text, None).files == files


def test_commands_go_on_behind_a_text_that_became_a_file() -> None:
    script = read_script("cat > f <<E\n'\nvllm serve a\nE\nvllm serve b", None)
    assert [word.text for word in script.commands[-1].words] == ["vllm", "serve", "b"]
    assert script.commands[-1].words[0].line == 5


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("A=b=c", "A"),
        ("$((A==1))=2", "$((A==1))"),
        ("`a=b`=2", "`a=b`"),
        ("A", "A"),
        ("$(a", "$(a"),
        ("${A:-b=c}=2", "${A:-b=c}"),
    ],
)
def test_a_name_ends_where_its_value_begins(text: str, name: str) -> None:
    assert text[: end_of_name(text)] == name


@pytest.mark.parametrize("letter", ["\x01", "\x02"])
def test_the_marks_of_holes_are_no_text(letter: str) -> None:
    with pytest.raises(DocumentError, match="is not allowed here"):
        commands_of(f"serve {letter}", None)


@pytest.mark.parametrize(
    "line",
    [
        "((N++))",
        "((N <<= 1))",
        ": $((N=9))",
        "echo $((N++))",
        "[ $((N++)) -gt 3 ]",
        "if (( N++ > 3 )); then x; fi",
        "for ((N=0; N<3; N++)); do x; done",
        'x "${A[N++]}"',
        "declare -n R=N\nR=9",
        "local -rn R=N",
        "(($R = 9))",
        "trap 'N=5' DEBUG",
        "trap '((N++))' USR1",
        "trap 'read N' ERR",
        'trap "$X" DEBUG',
        "trap 'source e' DEBUG",
        "printf -v N 9",
        "printf -vN 9",
        'printf -v "$X" 9',
        'export "$X=9"',
        "export $(cat e)",
        "command eval x",
        "builtin read N",
        "let N-=1",
    ],
)
def test_a_variable_that_changes_without_an_assignment_is_not_stale(line: str) -> None:
    script = read_script(f"N=4\n{line}\nserve $N", None)
    assert script.commands[-1].words[-1].unknown == ("$N",)


@pytest.mark.parametrize(
    "line",
    [
        "((M++))",
        "((N == 3))",
        "if ((N < 3)); then x; fi",
        "((1 << N))",
        "trap 'kill $N' EXIT",
        "trap - DEBUG",
        "declare -x R=N",
        "printf '%s' \"$X\"",
        "((x); (y))",
        "x ${N:=5}",
    ],
)
def test_a_variable_that_is_only_looked_at_keeps_its_value(line: str) -> None:
    script = read_script(f"N=4\n{line}\nserve $N", None)
    assert [word.text for word in script.commands[-1].words] == ["serve", "4"]


@pytest.mark.parametrize(
    ("text", "given", "words"),
    [
        ("serve ${X:---n 4}", {"X": ""}, ["serve", "--n", "4"]),
        ('serve "${X:---n 4}"', {"X": ""}, ["serve", "--n 4"]),
        ('serve ${X:-"a b" c}d', {"X": ""}, ["serve", "a b", "cd"]),
        ("serve ${X---n 4}", {"X": ""}, ["serve"]),
        ("serve ${X---n 4}", {"X": "a b"}, ["serve", "a", "b"]),
        ("serve ${X:?missing}", {"X": "a"}, ["serve", "a"]),
        ("serve ${X:=4}", {"X": ""}, ["serve", "4"]),
        ("serve ${X:-${Y:-4}}", {"X": "", "Y": ""}, ["serve", "4"]),
        ("serve ${X:-${Y:-4}}", {"X": "5"}, ["serve", "5"]),
        ("X=\nserve ${X:-4}", {}, ["serve", "4"]),
        ("serve ${X:+--n 4}", {"${X:+--n 4}": "--n 5"}, ["serve", "--n", "5"]),
        ("serve $1 ${2:-64}", {"1": "a", "2": ""}, ["serve", "a", "64"]),
        (
            'serve "$@" $# $*',
            {"@": "--n 'a b'", "#": "2", "*": "x y"},
            ["serve", "--n", "a b", "2", "x", "y"],
        ),
        ('serve "${@}" ${@:2} "x $@ y"', {"@": "1 2", "${@:2}": "2"}, ["serve", "1", "2", "2", "x 1", "2 y"]),
        ('f() {\nserve "$1" $2\n}', {"1": "a", "2": "b"}, ["serve", "a", "b"]),
    ],
)
def test_parameters_stand_for_what_a_shell_would_put(
    text: str, given: dict[str, str], words: list[str]
) -> None:
    commands = read_script(text, None, given=given).commands
    found = [command for command in commands if command.words[0].text == "serve"]
    assert [(word.text, word.unknown) for word in found[-1].words] == [(word, ()) for word in words]


def test_a_default_that_may_have_been_set_is_not_certain() -> None:
    assert commands_of("N=\n: ${N:=9}\nserve $N", None)[-1][-1].unknown == ("$N",)


@pytest.mark.parametrize("text", ["A", "$A", "${A}"])
def test_a_parameter_may_be_named_as_a_shell_writes_it(text: str) -> None:
    assert parameter_name(text) == "A"


@pytest.mark.parametrize(
    ("text", "name"), [("$1", "1"), ("${1}", "1"), ("$@", "@"), ("${#}", "#"), ("$(a)", "$(a)")]
)
def test_positional_and_special_parameters_have_names(text: str, name: str) -> None:
    assert parameter_name(text) == name


def test_defaults_that_are_nested_without_end_are_not_followed() -> None:
    script = read_script("serve " + "${X:-" * 5000 + "}" * 5000, None, given={"X": ""})
    assert script.commands[-1].words[-1].unknown
