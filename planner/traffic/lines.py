"""A stranger's file line by line: lines of bounded length, and malformed ones reported by their number."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator
from typing import BinaryIO

from attrs import define

from planner.documents.tree import printable
from planner.errors import DocumentError

LONGEST_LINE = 1 << 20
"""Bytes; a request of Mooncake's trace has some thousand."""


class RowError(Exception):
    """What is wrong with one row; the message is part of a line."""


@define(kw_only=True)
class Lines:
    """The lines of ``stream``, once; ``name`` is how messages call it.

    ``number`` is that of the last line, from 1. With ``skip_malformed``, ``skipped`` counts the rows
    that were left out, and ``first_skipped`` says what was wrong with the first.
    """

    stream: BinaryIO
    name: str
    skip_malformed: bool = False
    number: int = 0
    skipped: int = 0
    first_skipped: str = ""

    def __iter__(self) -> Iterator[str]:
        """Each line without its end.

        Raises:
            DocumentError: a line is no UTF-8 text or too long, and malformed lines are not skipped.
        """
        for read in iter(lambda: self.stream.readline(LONGEST_LINE + 1), b""):
            self.number += 1
            line = read.removeprefix(BOM_UTF8) if self.number == 1 else read
            if len(line) > LONGEST_LINE:
                self.malformed(f"longer than {LONGEST_LINE} bytes, which no row is")
                self._pass_rest(line)
                continue
            try:
                yield line.decode().rstrip("\r\n")
            except UnicodeDecodeError:
                self.malformed("not UTF-8 text")

    def _pass_rest(self, line: bytes) -> None:
        while line and not line.endswith(b"\n"):
            line = self.stream.readline(LONGEST_LINE)

    def malformed(self, what: str) -> None:
        """Takes note that the current line is left out.

        Raises:
            DocumentError: nothing may be left out.
        """
        if not self.skip_malformed:
            raise self.error(f"{what}; correct it, or skip such rows (--skip-malformed)")
        if not self.skipped:
            self.first_skipped = f"line {self.number}: {what}"
        self.skipped += 1

    def error(self, message: str) -> DocumentError:
        """An error at the current line."""
        return DocumentError(message, path=printable(self.name), line=max(self.number, 1), column=1)

    def error_of_file(self, message: str) -> DocumentError:
        """An error of the whole file."""
        return DocumentError(message, path=printable(self.name))
