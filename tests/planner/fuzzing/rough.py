"""Mutations that mostly break a document: what strangers, broken tools and bad disks make of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import yaml

from tests.planner.fuzzing.gentle import scalar_slots
from tests.planner.fuzzing.nodes import containers, listed, mapped, quoted, slots, word

PLACEHOLDER = "stands-for-raw-text"
"""Where YAML that no emitter would write is put into the text."""

_ODD_CHARACTERS = (
    "\0\t\x07\x1b\x7f\x85\xa0\xad\u061c\u200b\u202e\u2028\u2029\ufeff\ufffd\ufffe\U0001f600\U000e0041é中"
)
_TAGS = (
    "!!python/object/apply:os.system",
    "!!int",
    "!!str",
    "!!binary",
    "!x",
    "!<tag:example.org,2000:t>",
    "!",
)
_ODD_WORDS = (
    *("010", "0x1F", "0b1", "0o7", "1_000", "12:30:45", "1.0", "1e3", "1e999", "-0", "+1", ".5", "5.", "-1"),
    *(".inf", "-.Inf", ".nan", "NaN", "~", "null", "Null", "yes", "No", "on", "True", "FALSE", "=", "<<", ""),
    *(
        "2026-12-02",
        "2026-12-02T15:00:00Z",
        "9" * 400,
        "9" * 5_000,
        "1." + "0" * 400,
        "-",
        "?",
        ":",
        "[]",
        "{}",
    ),
    *(
        "x" * 5_000,
        '"\\uD800"',
        '"\\U0010FFFF"',
        '"\\UFFFFFFFF"',
        '"\\x00"',
        '"\\x1b[31m"',
        '"a\\nb"',
        "'a\n\n\n b'",
    ),
    *("'", '"', "`x`", "@x", "%x", "&a", "*a", "&a *a", "!!", "|", ">-", "|9\n x", "&a [*a]", "&a {b: *a}"),
    *(
        "{a: 1, a: 2}",
        "{[1]: 2}",
        "{? [a] : b}",
        "{<<: {a: 1}}",
        "[1, 2",
        "{a: 1",
        "]",
        "}",
        "a: b: c",
        "- - - a",
    ),
    *(
        ".",
        "..",
        "no/such/file",
        "plans",
        "NUL",
        "a\\b",
        "~root",
        "{a: {b: {c: {d: {e: 1}}}}}",
        "[[[[[[1]]]]]]",
    ),
    *(
        "[1, [2, [3]]]",
        "[null]",
        "[true]",
        "[1.5]",
        '["1"]',
        "[" + "1," * 3_000 + "]",
        "{" + "k: " * 50 + "}",
    ),
)


def _bomb(levels: int, width: int, leaf: str) -> str:
    """Aliases of aliases: ``width ** levels`` leaves in a few bytes."""
    lines = [f"&a0 [{', '.join([leaf] * width)}]"]
    lines += [f"&a{level} [{', '.join([f'*a{level - 1}'] * width)}]" for level in range(1, levels)]
    return f"[{', '.join(lines)}]"


def _raw_text(rng: Random) -> str:
    """YAML to put where a value stood."""
    kind = rng.randrange(12)
    if kind == 0:
        depth = rng.choice((5, 30, 60, 63, 64, 65, 70, 500, 20_000))
        opened, closed = rng.choice((("[", "]"), ("{a: ", "}"), ("[{a: ", "}]")))
        return opened * depth + "1" + closed * rng.choice((depth, depth, depth - 1))
    if kind == 1:
        return _bomb(rng.choice((2, 4, 9, 30)), rng.choice((2, 9)), rng.choice(("x", "1", "{a: b}")))
    if kind == 2:
        return f"[&long {'x' * rng.choice((10, 2_000))}{', *long' * rng.choice((3, 3_000))}]"
    if kind == 3:
        return f"{rng.choice(_TAGS)} {rng.choice(('x', '1', '[1]', '{a: b}', ''))}"
    return rng.choice(_ODD_WORDS)


def wrong_value(root: yaml.MappingNode, _others: Sequence[str], rng: Random) -> None:
    """One value becomes text that an emitter would not have written there."""
    found = list(slots(root))
    if found:
        rng.choice(found).put(word(PLACEHOLDER))


def wrong_type(root: yaml.MappingNode, _others: Sequence[str], rng: Random) -> None:
    """One value inside a list or a mapping, another's place, or nothing."""
    found = list(slots(root))
    if not found:
        return
    slot, other = rng.choice(found), rng.choice(found)
    node = slot.node
    one_more = (
        listed([node]),
        mapped([(word("a"), node)]),
        word("null"),
        quoted(""),
        quoted("8"),
        word("1.5"),
    )
    # A node beneath the place that it is put in would never end.
    leaf = [other.node] if isinstance(other.node, yaml.ScalarNode) else []
    slot.put(rng.choice([*one_more, *leaf]))


def unknown_key(root: yaml.MappingNode, _others: Sequence[str], rng: Random) -> None:
    """One key is misspelt, foreign, or there twice."""
    found = [node for node in containers(root) if isinstance(node, yaml.MappingNode) and node.value]
    if not found:
        return
    pairs = rng.choice(found).value
    index = rng.randrange(len(pairs))
    key, value = pairs[index]
    text = str(key.value)
    cut = rng.randrange(len(text) + 1)
    others = (
        text[:cut] + text[cut + 1 :],
        text + "s",
        text.upper(),
        "x" * 3_000,
        "a b",
        "é\u202e",
        "\x1b[31m",
        "<<",
    )
    pairs.insert(rng.randrange(len(pairs) + 1), (quoted(rng.choice(others)), value))
    if rng.random() < 0.3:
        pairs.append((quoted(text), value))


def share(root: yaml.MappingNode, _others: Sequence[str], rng: Random) -> None:
    """One value by an alias elsewhere."""
    scalars = scalar_slots(root)
    if len(scalars) > 1:
        rng.choice(scalars).put(rng.choice(scalars).node)


MUTATIONS = (wrong_value, wrong_value, wrong_value, wrong_type, wrong_type, unknown_key, share)


def with_raw_text(text: str, rng: Random) -> str:
    """``text`` with something in place of every placeholder."""
    while PLACEHOLDER in text:
        text = text.replace(PLACEHOLDER, _raw_text(rng), 1)
    return text


def _flip(data: bytearray, _other: bytes, rng: Random) -> None:
    for _ in range(rng.choice((1, 1, 2, 8, 40))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _truncate(data: bytearray, _other: bytes, rng: Random) -> None:
    del data[rng.randrange(len(data)) :]


def _cut_out(data: bytearray, _other: bytes, rng: Random) -> None:
    start = rng.randrange(len(data))
    del data[start : start + rng.choice((1, 2, 10, 100))]


def _repeat(data: bytearray, _other: bytes, rng: Random) -> None:
    start = rng.randrange(len(data))
    part = data[start : start + rng.choice((1, 4, 40, 400))]
    data[start:start] = part * rng.choice((1, 2, 50))


def _splice(data: bytearray, other: bytes, rng: Random) -> None:
    start = rng.randrange(len(other))
    data[rng.randrange(len(data)) :] = other[start:]


def _odd_character(data: bytearray, _other: bytes, rng: Random) -> None:
    for _ in range(rng.choice((1, 1, 3))):
        odd = rng.choice(_ODD_CHARACTERS).encode() if rng.random() < 0.8 else rng.randbytes(rng.randint(1, 4))
        at = rng.randrange(len(data) + 1)
        data[at:at] = odd


def _lines(data: bytearray, _other: bytes, rng: Random) -> None:
    lines = bytes(data).splitlines(keepends=True)
    first, second = rng.randrange(len(lines)), rng.randrange(len(lines))
    extra = rng.choice((b"---\n", b"%YAML 1.2\n", b"...\n", b"\t x\n", b"<<: *a\n", b"- 1\n", lines[second]))
    lines[first], lines[second] = lines[second], lines[first]
    lines.insert(first, extra)
    data[:] = b"".join(lines)


_BYTE_MUTATIONS: tuple[Callable[[bytearray, bytes, Random], None], ...] = (
    *(_flip, _truncate, _cut_out, _repeat, _splice, _odd_character, _odd_character, _lines),
)


def broken(data: bytes, other: bytes, rng: Random) -> bytes:
    """``data`` after one mutation that knows nothing of YAML."""
    changed = bytearray(data)
    if changed:
        rng.choice(_BYTE_MUTATIONS)(changed, other, rng)
    return bytes(changed)
