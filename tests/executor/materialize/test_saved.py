"""The file of graphs: it comes back as it was written, and nothing else is taken for one."""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import cattrs
import pytest
import torch
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from executor.materialize.driver import KernelIdentity
from executor.materialize.recipes import FromCall, FromEntry
from executor.materialize.relocation import Relocation
from executor.materialize.saved import (
    MAGIC,
    MAX_HEADER,
    DamagedError,
    SavedEntry,
    SavedGraph,
    SavedHeader,
    SavedKernel,
    SavedRegion,
    block_of,
    key_of,
    packed,
    unpacked,
)
from planner.documents.data import entry_data
from tests.executor.materialize.drawings import SOME
from tests.executor.materialize.worlds import called_deeper
from tests.executor.toys import sizes_plan

GRAPH = Relocation(
    torch.tensor([1, 1, 3 << 32, -1, 1 << 62, 7, 8]),
    torch.tensor([3, 4]),
    torch.tensor([0, 2]),
    torch.tensor([5]),
)

SECOND = Relocation(torch.tensor([0, 0]), *[torch.empty(0, dtype=torch.int64)] * 3)


def graph_row(graph: Relocation) -> SavedGraph:
    return SavedGraph(
        num_words=len(graph.words),
        num_addresses=len(graph.positions),
        num_volatile=len(graph.volatile),
        num_nodes=int(graph.words[0]),
        num_bytes=len(block_of(graph)),
        kernels=[],
    )


ENTRY, OTHER = sizes_plan(2, 1).entries("target")
HEADER = SavedHeader(
    about={"plan": "p", "family": "target"},
    regions=[
        SavedRegion(name="weight", num_bytes=64, layout="float32 [4, 4] [4, 1]"),
        SavedRegion(name="pool:0", num_bytes=1 << 21, layout=""),
        SavedRegion(name="pool:1", num_bytes=1 << 21, layout=""),
    ],
    num_static=1,
    kernels=[
        SavedKernel(
            identity=KernelIdentity("gemm", ((0, 8), (8, 4)), (1024, 0)),
            dynamic_shared=9,
            call=FromCall(0, 1),
        ),
        SavedKernel(
            identity=KernelIdentity("é", (), ()), dynamic_shared=0, entry=FromEntry(entry=0, graph=0, node=0)
        ),
        SavedKernel(identity=KernelIdentity("none", (), ()), dynamic_shared=0),
    ],
    calls=[["mm", "default", [1.5, None, {"tensor": ["float32", [2], [1], False]}], {}]],
    entries=[
        SavedEntry(
            fields=entry_data(ENTRY),
            steps=[0, {"operation": "f", "args": {"tuple": []}, "kwargs": {"map": {}}}, 1],
            outputs={"tensor": [0, 2]},
        ),
        SavedEntry(fields=entry_data(OTHER), obstacle="the graph has an event"),
    ],
    graphs=[graph_row(GRAPH), graph_row(SECOND)],
)
CONTENT = packed(HEADER, [block_of(GRAPH), block_of(SECOND)])


def sealed(body: bytes) -> bytes:
    """A file whose digest fits, whatever is in it."""
    return MAGIC + hashlib.sha256(body).digest() + body


def with_header(text: bytes, size: int | None = None, blocks: bytes = b"") -> bytes:
    return sealed(struct.pack("<Q", len(text) if size is None else size) + text + blocks)


def changed(change: Callable[[dict[str, Any]], object]) -> bytes:
    """The file with a header that somebody changed, sealed again."""
    header = json.loads(json.dumps(cattrs.unstructure(HEADER)))
    change(header)
    return with_header(json.dumps(header).encode(), blocks=block_of(GRAPH) + block_of(SECOND))


def same(one: Relocation, other: Relocation) -> bool:
    return all(
        torch.equal(getattr(one, name), getattr(other, name))
        for name in ("words", "positions", "regions", "volatile")
    )


def test_a_file_comes_back_as_it_was_written() -> None:
    saved = unpacked(CONTENT)
    written, read = (json.loads(json.dumps(cattrs.unstructure(each))) for each in (HEADER, saved.header))
    assert read == written
    assert read["kernels"][0]["identity"]["params"] == [[0, 8], [8, 4]]
    assert same(saved.graph(0), GRAPH)
    assert same(saved.graph(1), SECOND)
    assert saved.pool_sizes == (1 << 21, 1 << 21)


def test_entries_are_found_by_their_fields() -> None:
    saved = unpacked(CONTENT)
    missing = sizes_plan(4).entries("target")[0]
    rows = dict(saved.rows([OTHER, missing, ENTRY]))
    assert list(rows) == [OTHER, missing, ENTRY]
    assert rows[missing] is None
    assert rows[OTHER] is not None
    assert rows[OTHER].obstacle == "the graph has an event"
    assert key_of({"b": 1, "a": 2}) == key_of({"a": 2, "b": 1})


@SOME
@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=2, max_size=30),
    st.lists(st.tuples(st.integers(0, 29), st.integers(0, 2)), max_size=10),
    st.lists(st.integers(0, 29), max_size=10),
)
def test_graphs_of_all_kinds_come_back(
    words: list[int], places: list[tuple[int, int]], left: list[int]
) -> None:
    def numbers(values: list[int]) -> torch.Tensor:
        return torch.tensor(values[: len(words)], dtype=torch.int64)

    places = [(at % len(words), region) for at, region in places]
    graph = Relocation(
        torch.tensor(words),
        numbers([at for at, _ in places]),
        numbers([region for _, region in places]),
        numbers([at % len(words) for at in left]),
    )
    header = evolve(HEADER, graphs=[evolve(graph_row(graph), num_nodes=1)])
    assert same(unpacked(packed(header, [block_of(graph)])).graph(0), graph)


def test_every_single_flipped_byte_is_noticed() -> None:
    damaged = bytearray(CONTENT)
    for at in range(len(damaged)):
        for flip in (0x01, 0x80, 0xFF):
            damaged[at] ^= flip
            with pytest.raises(DamagedError):
                unpacked(bytes(damaged))
            damaged[at] ^= flip
    unpacked(bytes(damaged))


def test_every_file_that_is_cut_short_is_noticed() -> None:
    for length in range(len(CONTENT)):
        with pytest.raises(DamagedError):
            unpacked(CONTENT[:length])
    with pytest.raises(DamagedError, match="digest"):
        unpacked(CONTENT + b"\0")


@pytest.mark.parametrize(
    "content",
    [
        sealed(b""),
        sealed(b"\0" * 7),
        with_header(b""),
        with_header(b"{}", size=MAX_HEADER + 1, blocks=bytes(100)),
        with_header(b"{}", size=2**64 - 1),
        with_header(b"{}", size=3),
        with_header(b"\xff\xfe\xff"),
        with_header(b"null"),
        with_header(b"[]"),
        with_header(b'"' + b"x" * 1000),
        with_header(b"9" * 5000),
        with_header(b"[" * 100_000),
        with_header(b'{"about":' * 50_000),
        with_header(b"[" * 100_000 + b"]" * 100_000),
    ],
)
def test_whatever_is_sealed_is_still_no_file_of_graphs(content: bytes) -> None:
    with pytest.raises(DamagedError) as error:
        unpacked(content)
    assert "\n" not in str(error.value)


HUGE = 10**30


@pytest.mark.parametrize("number", [-1, 0, HUGE, 2**63, 2**62, "x", None, 1e400, [], {}])
@pytest.mark.parametrize("name", ["num_words", "num_addresses", "num_volatile", "num_nodes", "num_bytes"])
def test_counts_of_graphs_that_cannot_be_are_refused(name: str, number: Any) -> None:
    def change(header: dict[str, Any]) -> None:
        header["graphs"][0][name] = number

    content = changed(change)
    try:
        saved = unpacked(content)
    except DamagedError:
        return
    assert isinstance(number, int)
    if name == "num_nodes":
        return  # a count that is only told
    with pytest.raises(DamagedError):
        saved.graph(0)


def test_graphs_that_would_unpack_to_more_than_all_memory_are_refused() -> None:
    bomb = zlib.compress(bytes(8 << 20), 9)
    row = {
        "num_words": 1 << 20,
        "num_addresses": 0,
        "num_volatile": 0,
        "num_nodes": 0,
        "num_bytes": len(bomb),
    }
    header = {**json.loads(json.dumps(cattrs.unstructure(HEADER))), "graphs": [row] * 100}
    with pytest.raises(DamagedError):
        unpacked(with_header(json.dumps(header).encode(), blocks=bomb * 100))


def test_a_block_that_unpacks_to_more_is_not_unpacked_on() -> None:
    bomb = zlib.compress(bytes(64 << 20), 9)
    row = evolve(HEADER.graphs[1], num_bytes=len(bomb))
    saved = unpacked(packed(evolve(HEADER, graphs=[row]), [bomb]))
    with pytest.raises(DamagedError, match="17 bytes instead of 16"):
        saved.graph(0)


@pytest.mark.parametrize("block", [b"\0", b"x" * 40, block_of(GRAPH)[:-9], block_of(SECOND)])
def test_a_block_that_is_none_is_refused(block: bytes) -> None:
    row = evolve(HEADER.graphs[0], num_bytes=len(block))
    saved = unpacked(packed(evolve(HEADER, graphs=[row]), [block]))
    with pytest.raises(DamagedError, match="graph 0"):
        saved.graph(0)


@pytest.mark.parametrize(
    "graph",
    [
        evolve(GRAPH, positions=torch.tensor([3, 7])),
        evolve(GRAPH, positions=torch.tensor([-1, 4])),
        evolve(GRAPH, regions=torch.tensor([0, 3])),
        evolve(GRAPH, regions=torch.tensor([-1, 0])),
        evolve(GRAPH, volatile=torch.tensor([7])),
        evolve(GRAPH, volatile=torch.tensor([-1])),
    ],
)
def test_addresses_beyond_words_and_regions_are_refused(graph: Relocation) -> None:
    saved = unpacked(packed(evolve(HEADER, graphs=[graph_row(graph)]), [block_of(graph)]))
    with pytest.raises(DamagedError, match="beyond"):
        saved.graph(0)


def put(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(header: Any) -> None:
        *front, last = [int(each) if each.isdigit() else each for each in path.split("/")]
        for key in front:
            header = header[key]
        header[last] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        put("num_static", -1),
        put("num_static", 0),
        put("num_static", 2),
        put("num_static", 4),
        put("num_static", HUGE),
        put("regions", []),
        put("regions/1/name", "pool:1"),
        put("regions/2/name", "pool:0"),
        put("regions/1/num_bytes", 0),
        put("regions/1/num_bytes", -1),
        put("regions/0/num_bytes", HUGE),
        put("regions/1/num_bytes", 1 << 48),
        put("kernels/0/dynamic_shared", -1),
        put("kernels/0/dynamic_shared", HUGE),
        put("kernels/0/identity", None),
        put("kernels/0/identity/params", [[1]]),
        put("kernels/0/call", {"call": 1}),
        put("kernels/0/extra", 1),
        put("entries/0/fields", 3),
        put("entries/0/steps", 3),
        put("entries", None),
        put("about", []),
        put("graphs", {"x": 1}),
        put("new", 1),
        lambda header: header.pop("calls"),
    ],
)
def test_headers_that_are_not_written_are_refused(change: Callable[[dict[str, Any]], object]) -> None:
    with pytest.raises(DamagedError):
        unpacked(changed(change))


def nested(path: str, depth: int) -> bytes:
    """The file with objects that deep at a place of its header, deeper than Python writes them."""
    header = json.loads(json.dumps(cattrs.unstructure(HEADER)))
    put(path, "here")(header)
    text = json.dumps(header).replace('"here"', '{"x":' * depth + "{}" + "}" * depth)
    return with_header(text.encode(), blocks=block_of(GRAPH) + block_of(SECOND))


@pytest.mark.parametrize("depth", [10, 100, 400, *range(600, 1000, 50), 100_000])
@pytest.mark.parametrize("path", ["entries/0/fields", "entries/0/outputs", "calls"])
def test_nesting_of_any_depth_ends_in_no_traceback(path: str, depth: int) -> None:
    try:
        saved = unpacked(nested(path, depth))
        rows = dict(saved.rows([ENTRY, OTHER]))
    except DamagedError:
        return
    assert rows[OTHER] is not None


def test_what_is_read_with_little_depth_left_is_refused_where_there_is_less() -> None:
    accepted = 0
    for depth in range(1000, 0, -1):
        try:
            saved = unpacked(nested("entries/0/fields", depth))
        except DamagedError:
            continue
        accepted = depth
        break
    assert accepted
    with suppress(DamagedError):
        called_deeper(60, lambda: dict(saved.rows([ENTRY])))


@SOME
@given(st.data())
def test_any_value_at_any_place_of_the_header_is_taken_or_refused(data: st.DataObject) -> None:
    def change(header: Any) -> None:
        at: Any = header
        while True:
            keys = list(at) if isinstance(at, dict) else range(len(at))
            if not keys:
                return
            key = data.draw(st.sampled_from(keys))
            if isinstance(at[key], dict | list) and at[key] and data.draw(st.integers(0, 3)):
                at = at[key]
                continue
            at[key] = data.draw(
                st.one_of(
                    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.just([]), st.just({})
                )
            )
            return

    try:
        saved = unpacked(changed(change))
        list(saved.rows([ENTRY, OTHER]))
        for number in range(len(saved.header.graphs)):
            saved.graph(number)
    except DamagedError:
        pass
