"""Structured logs: what captures did, as events with fields, and a formatter that writes JSON lines.

Events go to the logger ``graphplan.executor`` of the standard library, the cache's warnings to
``graphplan.cache``. Nothing is printed until somebody sets handlers up. Steps log nothing.
"""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

from executor.records import CaptureRecord, CaptureReport
from planner.errors import clear_line

ROOT = "graphplan"
LOGGER = logging.getLogger(f"{ROOT}.executor")
# Without it, Python prints warnings to stderr by itself where nobody set handlers up.
LOGGER.addHandler(logging.NullHandler())

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""What every record of a log has; the rest are the event's own fields."""


class JsonLines(logging.Formatter):
    """Writes each record as one line of JSON: time, level, logger, event, and the fields of the event."""

    def format(self, record: logging.LogRecord) -> str:
        """One line without its end."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        line.update(
            (name, value) for name, value in vars(record).items() if name not in _STANDARD | set(line)
        )
        if record.exc_info is not None and record.exc_info[0] is not None:
            line["error"] = clear_line(f"{record.exc_info[0].__name__}: {record.exc_info[1]}")
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps({name: _written(value) for name, value in line.items()}, ensure_ascii=True)


def _written(value: Any) -> Any:
    """``value`` as JSON has it; what it has no word for as text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _written(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_written(item) for item in value]
    return str(value)


def log_as_json(stream: TextIO | None = None, level: int = logging.INFO) -> logging.Handler:
    """Writes all events of graphplan as JSON lines to ``stream``, by default stderr, and nowhere else.

    Returns the handler, which ``logging.getLogger("graphplan").removeHandler`` takes away again.
    """
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonLines())
    root = logging.getLogger(ROOT)
    root.addHandler(handler)
    root.setLevel(level)
    root.propagate = False
    return handler


def log_capture(report: CaptureReport, tried: Iterable[CaptureRecord]) -> None:
    """Logs how a capture stands, and each entry just ``tried`` that has no graph or was not rebuilt."""
    for record in tried:
        if record.error is not None:
            LOGGER.warning("entry failed", extra={"family": report.family, **record.as_json()})
        elif record.refused is not None:
            LOGGER.info("entry not rebuilt", extra={"family": report.family, **record.as_json()})
    LOGGER.info(
        "captured",
        extra={
            "family": report.family,
            "device": report.device,
            "seconds": round(report.seconds, 6),
            "num_bytes": report.num_bytes,
            "num_captured": len(report.captured),
            "num_restored": sum(record.restored for record in report.records),
            "num_failed": len(report.failed),
            "num_remaining": report.num_remaining,
        },
    )


def log_lookup(family: str, *, found: bool, reason: str) -> None:
    """Logs whether the cache knew a capture, and if not, why."""
    LOGGER.info("cache looked up", extra={"family": family, "found": found, "reason": reason})
