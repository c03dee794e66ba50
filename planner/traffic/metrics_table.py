"""The tables that vLLM prints with ``--cudagraph-metrics``, in a server's log or cut out of it.

Each is of the steps since the one before, some ten seconds, so that several add up and tell of time.
Uniform decode is told from other batches by its FULL graph; decode without one counts by its tokens.

Source: vLLM 0.33 (``cudagraph_metrics`` of its ObservabilityConfig).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from attrs import Factory, define

from planner.modes import CUDAGraphMode
from planner.traffic.batching import BLOCKS
from planner.traffic.histogram import Histogram, HistogramRow, histogram_of
from planner.traffic.histogram_csv import filled
from planner.traffic.lines import Lines, RowError
from planner.traffic.numbers import MAX_COUNT, MAX_TOKENS, whole

HEADER = re.compile(r"\| {0,9}Unpadded Tokens {0,99}\| {0,9}Padded Tokens {0,99}\|")

MAX_SIZES = 1_000_000

_ROW = re.compile(
    r"\| {0,9}(\d+) {0,99}\| {0,9}\d+ {0,99}\| {0,9}\d+ {0,99}"
    r"\| {0,9}(?:CUDAGraphMode\.)?([A-Z_]{1,40}) {0,99}\| {0,9}(\d+) {0,99}\|",
    re.ASCII,
)
_SEPARATOR = re.compile(r"\|(?:-{3,200}\|){5}")
_MODE = re.compile(r"- Mode: (?:CUDAGraphMode\.)?([A-Z_]{1,40})")


def read_metrics_tables(lines: Lines, texts: Iterable[str], source: str, query_len: int) -> Histogram:
    """The histogram of all tables in a log, whose decode requests have ``query_len`` tokens.

    Raises:
        DocumentError: a row of a table is malformed, and such are not skipped; or there are none.
    """
    tables = _Tables(query_len)
    for text in texts:
        try:
            tables.take(text)
        except RowError as error:
            lines.malformed(str(error))
        if tables.num_sizes > MAX_SIZES:
            raise lines.error(f"more than {MAX_SIZES} rows; give a part of the log")
    if not tables.found:
        raise lines.error_of_file(
            "holds no trace, histogram or table that is known: give a CSV trace of Azure, BurstGPT or vidur, "
            "Mooncake's JSON lines, a CSV with num_tokens and count, what vLLM prints with "
            "--cudagraph-metrics, or the usage counts of a cache"
        )
    return filled(histogram_of(_grouped(tables.found), source=source), lines)


@define
class _Tables:
    """The tables that were found so far, and the state at the current line."""

    query_len: int
    found: list[dict[tuple[int, int | None], int]] = Factory(list)
    mode: CUDAGraphMode | None = None
    num_sizes: int = 0
    is_within: bool = False

    def take(self, text: str) -> None:
        """Adds what stands in a line.

        Raises:
            RowError: it is a row of a table, but malformed.
        """
        if mode := _MODE.search(text):
            self.mode = CUDAGraphMode.__members__.get(mode[1])
        is_header = HEADER.search(text) is not None
        if is_header:
            self.found.append({})
            self.num_sizes += 1
            self.is_within = True
        rows = _ROW.findall(text) if self.found else []
        for num_tokens, mode_name, count in rows:
            self._add(num_tokens, mode_name, count)
        if rows or is_header or _SEPARATOR.search(text):
            return
        if self.is_within and text.count("|") > 1 and text.rstrip().endswith("|"):
            raise RowError("not a row of the table: tokens, padded tokens, paddings, mode and count")
        self.is_within = False

    def _add(self, num_tokens: str, mode_name: str, count: str) -> None:
        tokens = whole("Unpadded Tokens", num_tokens, 1, MAX_TOKENS)
        mode = CUDAGraphMode.__members__.get(mode_name)
        if mode is None:
            raise RowError(f"Runtime Mode: {mode_name} is none")
        is_decode = mode is CUDAGraphMode.FULL and self.mode is not CUDAGraphMode.FULL
        num_reqs = tokens // self.query_len if is_decode and tokens % self.query_len == 0 else None
        table = self.found[-1]
        self.num_sizes += (tokens, num_reqs) not in table
        table[tokens, num_reqs] = table.get((tokens, num_reqs), 0) + whole("Count", count, 0, MAX_COUNT)


def _grouped(tables: list[dict[tuple[int, int | None], int]]) -> list[list[HistogramRow]]:
    """The rows of tables by time span, so many tables in each that there are few."""
    per_span = -(-len(tables) // BLOCKS)
    return [
        [
            HistogramRow(num_tokens=num_tokens, num_reqs=num_reqs, count=count)
            for table in tables[start : start + per_span]
            for (num_tokens, num_reqs), count in table.items()
        ]
        for start in range(0, len(tables), per_span)
    ]
