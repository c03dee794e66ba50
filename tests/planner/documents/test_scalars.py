"""What scalars mean: every surprise that YAML has in store, and Python values of the wrong type."""

import pytest
import yaml

from planner.documents.reader import read_yaml
from planner.documents.scalars import (
    is_ambiguous,
    is_null,
    to_bool,
    to_float,
    to_int,
    to_int_or_str,
    to_json,
    to_str,
)
from planner.documents.sources import tree_of
from planner.documents.tree import Node, NodeError, Table, Value


def scalar(text: str) -> Node:
    """The value of a key, for which the text is written as it stands."""
    root = read_yaml(f"key: {text}")
    assert isinstance(root, Table)
    return root.values["key"]


NO_INTEGERS = """010 12:30:45 1_000 1.0 true 0x10 +5 '5' "5" 1e3 five -0 --1 ~ [] {} 0o7 ٣ a,b"""


@pytest.mark.parametrize("text", [*NO_INTEGERS.split(), "1 2", "", "9" * 19, "9" * 5000])
def test_only_plain_decimal_is_an_integer(text):
    with pytest.raises(NodeError) as caught:
        to_int(scalar(text))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(("text", "value"), [("0", 0), ("-7", -7), ("512", 512), ("9" * 18, 10**18 - 1)])
def test_plain_decimal_is_an_integer(text, value):
    assert to_int(scalar(text)) == value


def test_a_number_with_thousands_of_digits_gets_an_ordinary_message():
    with pytest.raises(NodeError, match="a number of 5000 digits is out of range"):
        to_int(scalar("9" * 5000))


@pytest.mark.parametrize("text", ["True", "TRUE", "yes", "on", "1", "0", "'true'", "null", "y"])
def test_only_true_and_false_are_booleans(text):
    with pytest.raises(NodeError, match="expected true or false, found"):
        to_bool(scalar(text))


def test_true_and_false_are_booleans():
    assert to_bool(scalar("true")) is True
    assert to_bool(scalar("false")) is False


@pytest.mark.parametrize(
    "text",
    [
        "0.30",
        "no",
        "yes",
        "010",
        "1_000",
        "12:30:45",
        "0x1f",
        "1e5",
        ".inf",
        "2024-01-01",
        "true",
        "=",
        "1.0",
        "'x'",
    ],
)
def test_a_string_is_the_text_as_it_stands(text):
    assert to_str(scalar(text)) == text.strip("'")


@pytest.mark.parametrize("text", ["null", "~", "", "Null", "NULL"])
def test_null_is_no_string(text):
    with pytest.raises(NodeError, match='write "" for an empty one'):
        to_str(read_yaml(f"a: {text}").values["a"])


@pytest.mark.parametrize("text", ["'null'", "'~'", "''", '""'])
def test_quoted_null_is_a_string(text):
    assert to_str(scalar(text)) == text[1:-1]


@pytest.mark.parametrize(
    ("text", "value"), [("1", 1.0), ("139.5", 139.5), ("-0.25", -0.25), ("1.0e-06", 1e-6)]
)
def test_decimal_notation_is_a_float(text, value):
    number = to_float(scalar(text))
    assert number == value
    assert type(number) is float


@pytest.mark.parametrize(
    "text",
    [".5", "5.", "1e5", ".inf", ".nan", "nan", "inf", "1_0.5", "'1.5'", "01.5", "1.0e+999", "true", "9" * 30],
)
def test_other_notations_are_no_float(text):
    with pytest.raises(NodeError):
        to_float(scalar(text))


AMBIGUOUS = """yes no on off y N True FALSE 010 1_000 12:30 1:2.5 0x1f 0o17 0b1 1e5 1e-06 .5 5. +1 -.inf .NaN
= 2024-01-01"""


@pytest.mark.parametrize("text", [*AMBIGUOUS.split(), "2024-01-01 10:00:00"])
def test_an_open_value_that_readers_disagree_on_must_be_quoted(text):
    with pytest.raises(NodeError, match="quotes"):
        to_json(scalar(text))
    assert to_json(scalar(f"'{text}'")) == text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("null", None),
        ("~", None),
        ("true", True),
        ("false", False),
        ("12", 12),
        ("-3", -3),
        ("0.5", 0.5),
        ("1.5e+3", 1500.0),
        ("abc", "abc"),
        ("1.2.3", "1.2.3"),
        ("v1", "v1"),
        ("'12'", "12"),
        ("nothing", "nothing"),
    ],
)
def test_an_open_value_is_read_as_json_has_it(text, value):
    read = to_json(scalar(text))
    assert read == value
    assert type(read) is type(value)


def test_an_open_value_may_nest():
    assert to_json(read_yaml("{a: [1, {b: null}], 2: x}")) == {"a": [1, {"b": None}], "2": "x"}


def test_a_fault_inside_an_open_value_says_where():
    with pytest.raises(NodeError) as caught:
        to_json(read_yaml("{a: [1, {b: yes}]}"))
    assert caught.value.in_document("f").key == "a[1].b"


@pytest.mark.parametrize("text", ["", "~", "yes", "0o7", "1e5", "12:30", "1_000", "0.5", "-1", "2001-12-14"])
def test_whatever_pyyaml_resolves_counts_as_ambiguous(text):
    assert is_ambiguous(text)


@pytest.mark.parametrize(
    "text", ["FULL", "v1", "1.2.3", "sha256", "a-b", "None", "nano", "infinite", "e5", "0.5.23"]
)
def test_ordinary_words_are_not_ambiguous(text):
    assert not is_ambiguous(text)
    assert yaml.safe_load(text) == text


def test_integers_or_strings_are_told_apart_by_how_they_are_written():
    assert to_int_or_str(scalar("8")) == 8
    assert to_int_or_str(scalar("'8'")) == "8"
    assert to_int_or_str(scalar("cudagraph_capture_sizes")) == "cudagraph_capture_sizes"
    for text in ("true", "yes", "1.5", "null", "[]"):
        with pytest.raises(NodeError):
            to_int_or_str(scalar(text))


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (to_int, True),
        (to_int, 1.0),
        (to_int, "1"),
        (to_int, 10**18),
        (to_int, 10**5000),
        (to_bool, 1),
        (to_bool, "true"),
        (to_str, 1),
        (to_str, None),
        (to_str, b"x"),
        (to_float, True),
        (to_float, "1.5"),
        (to_float, float("nan")),
        (to_float, float("inf")),
        (to_json, float("nan")),
        (to_json, 10**18),
        (to_json, {1, 2}),
        (to_json, object()),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_python_values_are_never_coerced(read, value):
    with pytest.raises(NodeError) as caught:
        read(Value(value))
    assert str(caught.value).isprintable()


def test_python_values_of_the_right_type_are_taken():
    assert to_int(Value(5)) == 5
    assert to_bool(Value(False)) is False
    assert to_str(Value("no")) == "no"
    assert to_float(Value(139)) == 139.0
    assert to_json(tree_of({"a": (1, None, 2.5)})) == {"a": [1, None, 2.5]}
    assert is_null(Value(None))
    assert not is_null(Value(""))
