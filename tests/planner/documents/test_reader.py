"""The reader: what it refuses, where it says that, and that nothing makes it slow or fall over."""

import pytest
import yaml

from planner.documents import reader
from planner.documents.reader import MAX_BYTES, PARSER, read_yaml
from planner.documents.tree import MAX_NODES, Items, Scalar, Table
from planner.errors import DocumentError

PARSERS = sorted({PARSER, yaml.SafeLoader}, key=lambda parser: parser.__name__)

BOMB = "\n".join(
    ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    + [
        f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]"
        for before, name in zip("abcdefgh", "bcdefghi", strict=True)
    ]
)

# Each level holds the one before it 40 levels down, with few values in all.
LADDER = "a: &a []\n" + "".join(
    f"{name}: &{name} {'[' * 40}*{before}{']' * 40}\n" for before, name in zip("abcd", "bcde", strict=True)
)

# text, line, column, key, and what the message says
REFUSED = {
    "empty text": ("", None, None, None, "empty"),
    "comments only": ("# nothing\n", None, None, None, "empty"),
    "empty document": ("---\n", None, None, None, "empty"),
    "NUL byte": ("a: 1\nb: x\0y", 2, 5, None, "NUL"),
    "control character": ("a: 1\r\nb: \x07", 2, 4, None, "U+0007"),
    "byte order mark inside": ("a: 1\nb: \ufeff", 2, 4, None, "U+FEFF"),
    "half a character": ("a: \ud800", 1, 4, None, "U+D800"),
    "not UTF-8": (b"a: 1\nbc: \xff", 2, 5, None, "UTF-8"),
    "UTF-16": ("a: 1".encode("utf-16"), 1, 1, None, "UTF-8"),
    "directive": ("%YAML 1.1\n---\na: 1", 1, 1, None, "directive"),
    "directives by the thousand": ("%TAG !a! b\n" * 100_000, 1, 1, None, "directive"),
    "directive of a second document": ("a: 1\n...\n%TAG ! x\n---\n", 3, 1, None, "directive"),
    "second document": ("a: 1\n---\nb: 2\n", 2, 1, None, "second document"),
    "duplicate key": ("a:\n  b: 1\n  c: 2\n  b: 3\n", 4, 3, "a.b", "line 2, column 3"),
    "duplicate key in a list": ("a: [x, {b: 1, b: 2}]", 1, 15, "a[1].b", "line 1, column 9"),
    "duplicate quoted key": ("b: 1\n'b': 2\n", 2, 1, "b", "duplicate"),
    "merge key": ("a: &x {b: 1}\nc:\n  <<: *x\n", 3, 3, "c", "merge"),
    "list as key": ("? [a]\n: b\n", 1, 3, None, "key"),
    "mapping as key": ("{{a: b}: c}", 1, 2, None, "key"),
    "alias as key": ("a: &x b\n*x : c\n", 2, 1, None, "alias"),
    "tag on a scalar": ("a: !!str 1\n", 1, 4, "a", "tag"),
    "tag on a mapping": ("a: !!python/object:os.system {}\n", 1, 4, "a", "tag"),
    "tag on a list": ("a: ! []\n", 1, 4, "a", "tag"),
    "unknown alias": ("a: *x\n", 1, 4, "a", "no anchor"),
    "alias inside itself": ("a: &x [b, *x]\n", 1, 11, "a[1]", "inside"),
    "bomb of aliases": (BOMB, 7, 8, "g[0]", str(MAX_NODES)),
    "bomb of long text": (
        "a: [&x " + "y" * 200_000 + ", *x" * 99 + "]",
        1,
        200_338,
        "a[83]",
        "16 MiB of text",
    ),
    "too deep": ("[" * 65 + "]" * 65, 1, 65, "[0]" * 64, "64 levels"),
    "deep block lists": ("- " * 100_000, 1, 129, "[0]" * 64, "64 levels"),
    "too deep through aliases": (LADDER, 3, 47, "c" + "[0]" * 40, "64 levels"),
    "tab as indentation": ("a:\n\tb: 1\n", 2, 1, None, "not valid YAML"),
    "unclosed quote": ('a: "b', 1, 6, None, "not valid YAML"),
    "unclosed list": ("a: [1\nb: 2\n", 2, 2, None, "not valid YAML"),
    "escape beyond Unicode": ('a: "\\UFFFFFFFF"', None, None, None, "not valid YAML"),
}


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize("case", REFUSED)
def test_hostile_text_is_refused_in_one_line_that_says_where(case, parser):
    source, line, column, key, words = REFUSED[case]
    with pytest.raises(DocumentError) as caught:
        read_yaml(source, "x.yaml", parser)
    error = caught.value
    assert words in str(error)
    assert str(error).isprintable()
    assert error.path == "x.yaml"
    assert len(str(error)) < 400
    if "not valid" not in words:
        assert (error.line, error.column, error.key) == (line, column, key)
    elif line is not None:
        assert error.line == line


def test_half_a_character_in_an_escape_is_refused_by_both_parsers():
    for parser in PARSERS:
        with pytest.raises(DocumentError, match="line 1, column"):
            read_yaml('a: "\\ud800"', None, parser)


@pytest.mark.parametrize("source", [b" " * (MAX_BYTES + 1), "x" * (MAX_BYTES + 1)])
def test_a_document_over_16_mib_is_refused(source):
    with pytest.raises(DocumentError, match="16 MiB"):
        read_yaml(source)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 5_000_000,
        "{" * 5_000_000,
        "? " * 2_000_000,
        "&a " * 2_000_000,
        "a: [" + "*x," * 2_000_000,
        "!" * 5_000_000,
        "'\n" * 3_000_000,
        "---\n" * 2_000_000,
        "- !<" + "x" * 5_000_000,
    ],
    ids=lambda text: text[:4],
)
@pytest.mark.skipif(PARSER is yaml.SafeLoader, reason="megabytes are slow without libyaml")
def test_megabytes_of_nonsense_end_in_an_error(text):
    with pytest.raises(DocumentError):
        read_yaml(text)


def test_more_values_than_any_plan_has_are_refused(monkeypatch):
    monkeypatch.setattr(reader, "MAX_NODES", 100)
    assert read_yaml("[" + "1," * 99 + "]")
    with pytest.raises(DocumentError, match="more than 100 values"):
        read_yaml("[" + "1," * 100 + "]")


@pytest.mark.parametrize("parser", PARSERS)
def test_nodes_know_where_they_stand(parser):
    root = read_yaml("# head\nname: x\nlist:\n- a\n- {b: 'c'}\n", None, parser)
    assert isinstance(root, Table)
    assert root.keys == {"name": (2, 1), "list": (3, 1)}
    items = root.values["list"]
    assert isinstance(items, Items)
    first, second = items.items
    assert isinstance(first, Scalar)
    assert (first.text, first.plain, first.place) == ("a", True, (4, 3))
    assert isinstance(second, Table)
    quoted = second.values["b"]
    assert isinstance(quoted, Scalar)
    assert (quoted.text, quoted.plain, quoted.place) == ("c", False, (5, 7))


def test_columns_count_characters_not_bytes():
    root = read_yaml('"ü€😀": x\n')
    assert isinstance(root, Table)
    assert root.values["ü€😀"].place == (1, 8)


def test_block_scalars_count_as_quoted():
    root = read_yaml("a: |\n  1\n")
    assert isinstance(root, Table)
    node = root.values["a"]
    assert isinstance(node, Scalar)
    assert (node.text, node.plain) == ("1\n", False)


def test_a_byte_order_mark_and_windows_line_ends_are_fine():
    root = read_yaml("\ufeffa: 1\r\nb: 2\r\n".encode())
    assert isinstance(root, Table)
    assert root.keys == {"a": (1, 1), "b": (2, 1)}


def test_aliases_stand_for_what_they_name():
    root = read_yaml("a: &x [1, 2]\nb: *x\n")
    assert isinstance(root, Table)
    assert root.values["a"] is root.values["b"]


def test_a_key_may_carry_an_anchor():
    root = read_yaml("&x a: 1\nb: *x\n")
    assert isinstance(root, Table)
    node = root.values["b"]
    assert isinstance(node, Scalar)
    assert node.text == "a"


def test_an_anchor_may_be_defined_anew():
    root = read_yaml("a: &x 1\nb: &x 2\nc: *x\n")
    assert isinstance(root, Table)
    node = root.values["c"]
    assert isinstance(node, Scalar)
    assert node.text == "2"


def test_json_is_yaml():
    root = read_yaml('{"a": ["b", null],\n\t"c": {"d": 1.5}}')
    assert isinstance(root, Table)
    assert list(root.values) == ["a", "c"]
