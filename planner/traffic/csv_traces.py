"""Traces in CSV: Azure's, BurstGPT's and vidur's; each is known by its columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from attrs import frozen

from planner.traffic.csv_rows import Cells, csv_rows
from planner.traffic.lines import Lines
from planner.traffic.numbers import MAX_TOKENS, date_time, seconds, whole
from planner.traffic.trace import Request, Trace, trace_of


@frozen
class CsvTrace:
    """A kind of trace: what people call it, and its columns of arrival, prompt and output.

    ``time`` reads the arrival: column and text to nanoseconds.
    """

    title: str
    arrival: str
    prompt: str
    output: str
    time: Callable[[str, str], int]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it is known by."""
        return (self.arrival, self.prompt, self.output)

    def request(self, cells: Cells) -> Request:
        """The request in the cells of these columns.

        Raises:
            RowError: there is none.
        """
        arrival, prompt, output = cells
        return Request(
            self.time(self.arrival, arrival),
            whole(self.prompt, prompt, 0, MAX_TOKENS),
            whole(self.output, output, 0, MAX_TOKENS),
        )


CSV_TRACES = (
    CsvTrace("Azure CSV", "TIMESTAMP", "ContextTokens", "GeneratedTokens", date_time),
    CsvTrace("BurstGPT CSV", "Timestamp", "Request tokens", "Response tokens", seconds),
    CsvTrace("vidur CSV", "arrived_at", "num_prefill_tokens", "num_decode_tokens", seconds),
)


def read_csv_trace(kind: CsvTrace, lines: Lines, texts: Iterable[str], header: Cells) -> Trace:
    """The trace below a ``header``.

    Raises:
        DocumentError: a row is malformed, and such are not skipped; or there are none, or too many.
    """
    return trace_of(csv_rows(lines, texts, header, kind.columns, kind.request), lines)
