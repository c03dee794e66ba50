"""From a file of any kind to traffic: what it is shows in its first lines, not in its name."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from attrs import frozen

from planner.describe import counted
from planner.documents.sources import open_file
from planner.errors import ArgumentError
from planner.traffic.batching import BLOCKS, Batching, replayed
from planner.traffic.csv_rows import Cells, cells_of
from planner.traffic.csv_traces import CSV_TRACES, read_csv_trace
from planner.traffic.histogram import COMMENT, SOURCE_KEY, Histogram
from planner.traffic.histogram_csv import REQUIRED, read_histogram_csv
from planner.traffic.lines import Lines, RowError
from planner.traffic.metrics_table import read_metrics_tables
from planner.traffic.mooncake import OUTPUT, PROMPT, read_mooncake
from planner.traffic.trace import Trace
from planner.traffic.usage import COUNTS, read_usage

LONGEST_SOURCE = 4_000
"""Characters of comments that are kept."""


@frozen(kw_only=True)
class Traffic:
    """What a file holds: the requests of a trace, or a histogram.

    ``kind`` is what people call such files, ``name`` the file. ``skipped`` counts malformed rows that
    were left out, and ``first_skipped`` says what was wrong with the first.
    """

    kind: str
    name: str
    content: Trace | Histogram
    skipped: int = 0
    first_skipped: str = ""

    def as_histogram(self, batching: Batching, *, blocks: int = BLOCKS) -> Histogram:
        """The histogram that the file holds, or that of its requests on a server.

        Raises:
            ReplayError: the trace takes too many steps.
        """
        if isinstance(self.content, Histogram):
            return self.content
        source = f"{self.name} ({self.kind}, {counted(len(self.content), 'request')})\nreplayed at {batching}"
        return replayed(self.content, batching, blocks=blocks, source=source)


def load_histogram(
    source: object,
    *,
    path: str | None = None,
    batching: Batching | None = None,
    skip_malformed: bool = False,
) -> Histogram:
    """The histogram in ``source``: a Path or a one-line string is a file, any other string is text.

    The requests of a trace are replayed on the server ``batching``. ``path`` is the name that messages
    give the source, by default its own.

    Raises:
        DocumentError: the source cannot be read, or is nothing that is known.
        ReplayError: a trace takes too many steps.
        BatchingError: no server can be so.
    """
    batching = (batching or Batching()).checked()
    if isinstance(source, str) and "\n" in source:
        source = source.encode("utf-8", "replace")
    if isinstance(source, bytes):
        traffic = read_traffic(BytesIO(source), path or "text", batching, skip_malformed=skip_malformed)
    elif isinstance(source, str | Path):
        with open_file(Path(source)) as stream:
            traffic = read_traffic(stream, path or str(source), batching, skip_malformed=skip_malformed)
    else:
        kind = type(source).__name__
        raise ArgumentError(f"load_histogram takes a path or text, found a value of type {kind}")
    return traffic.as_histogram(batching)


def read_traffic(stream: BinaryIO, name: str, batching: Batching, *, skip_malformed: bool = False) -> Traffic:
    """The traffic in ``stream``, which messages call ``name``; its decode is that of ``batching``.

    Raises:
        DocumentError: it is nothing that is known, a row is malformed and such are not skipped, or
            there is too much.
    """
    lines = Lines(stream=stream, name=name, skip_malformed=skip_malformed)
    kind, content = _read(lines, batching.query_len)
    return Traffic(
        kind=kind,
        name=Path(name).name,
        content=content,
        skipped=lines.skipped,
        first_skipped=lines.first_skipped,
    )


def _read(lines: Lines, query_len: int) -> tuple[str, Trace | Histogram]:
    """What ``lines`` are, and what they hold."""
    texts = iter(lines)
    remarks, first = _beginning(lines, texts)
    source = remarks or Path(lines.name).name
    whole = chain((first,), texts)
    if any(f'"{key}"' in first for key in (PROMPT, OUTPUT)):
        return "Mooncake JSON lines", read_mooncake(lines, whole)
    if first.strip() == "{" or (first.startswith("{") and f'"{COUNTS}"' in first):
        return "usage counts of a cache", read_usage(lines, whole, source)
    header = _header(first)
    for kind in CSV_TRACES:
        if set(kind.columns) <= set(header):
            return kind.title, read_csv_trace(kind, lines, texts, header)
    if set(REQUIRED) <= set(header):
        return "histogram CSV", read_histogram_csv(lines, texts, header, source)
    _refuse_near_miss(lines, header)
    return "vLLM's CUDA graph metrics", read_metrics_tables(lines, whole, source, query_len)


def _beginning(lines: Lines, texts: Iterator[str]) -> tuple[str, str]:
    """What the comments at the beginning say, and the first line below them."""
    remarks = ""
    for text in texts:
        if text.startswith(COMMENT):
            remark = text.removeprefix(COMMENT).strip().removeprefix(SOURCE_KEY).strip()
            remarks = f"{remarks}\n{remark}".strip()[:LONGEST_SOURCE]
        elif text.strip():
            return remarks, text
    raise lines.error_of_file("is empty")


def _header(text: str) -> Cells:
    try:
        return cells_of(text)
    except RowError:
        return ()


def _refuse_near_miss(lines: Lines, header: Cells) -> None:
    """Tells a CSV that lacks a column from files of other kinds."""
    kinds = {kind.title: kind.columns for kind in CSV_TRACES} | {"histogram CSV": REQUIRED}
    for title, columns in kinds.items():
        missing = [name for name in columns if name not in header]
        if len(missing) < len(columns):
            raise lines.error(f"column {missing[0]} is missing, which {title} has")
