"""Reading text as the command does."""

from __future__ import annotations

from io import BytesIO

from planner.traffic.batching import Batching
from planner.traffic.histogram import Histogram
from planner.traffic.load import Traffic, read_traffic
from planner.traffic.trace import Trace


def read(text: str | bytes, *, query_len: int = 1, skip_malformed: bool = False) -> Traffic:
    data = text.encode() if isinstance(text, str) else text
    return read_traffic(
        BytesIO(data), "folder/file", Batching(query_len=query_len), skip_malformed=skip_malformed
    )


def trace(text: str | bytes, **options: bool) -> Trace:
    content = read(text, **options).content  # type: ignore[arg-type]
    assert isinstance(content, Trace)
    return content


def histogram(text: str | bytes, **options: int) -> Histogram:
    content = read(text, **options).content  # type: ignore[arg-type]
    assert isinstance(content, Histogram)
    return content


def requests(text: str | bytes, **options: bool) -> list[tuple[float, int, int]]:
    """Seconds since the first arrival, tokens of the prompt and of the output."""
    found = trace(text, **options)
    return [
        (at / 1e9, prompt, output)
        for at, prompt, output in zip(found.arrivals, found.prompts, found.outputs, strict=True)
    ]
