"""A stranger's file line by line: lines of bounded length, and malformed ones reported by their number."""

from __future__ import annotations

from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE, BOM_UTF32_LE
from collections.abc import Iterator
from typing import BinaryIO

from attrs import define

from planner.documents.tree import printable
from planner.errors import DocumentError

LONGEST_LINE = 1 << 20
"""Bytes; a request of Mooncake's trace has some thousand."""

SKIPPING = "correct it, or leave such rows out with planner traffic --skip-malformed"
"""What to do about a malformed row, whoever reads it: a histogram is read wherever a trace is."""

COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "Zstandard",
    b"\xfd7zXZ\0": "xz",
    b"BZh": "bzip2",
    b"PK\x03\x04": "zip",
}
"""How compressed files begin."""

# UTF-32 begins with the mark of UTF-16, so it comes first.
WIDE_TEXT = {
    BOM_UTF32_LE: "UTF-32",
    BOM_UTF32_BE: "UTF-32",
    BOM_UTF16_LE: "UTF-16",
    BOM_UTF16_BE: "UTF-16",
}
"""How text begins whose letters have several bytes each."""

LOOKED_AT = 1 << 12
"""Bytes from the beginning of a file that tell what it is."""


class RowError(Exception):
    """What is wrong with one row; the message is part of a line."""


def no_text(beginning: bytes) -> str | None:
    """Why a file that begins so has no rows of text, and what to do; ``None`` where it may have."""
    for magic, name in COMPRESSED.items():
        if beginning.startswith(magic):
            return f"is {name}-compressed; unpack it"
    for mark, name in WIDE_TEXT.items():
        if beginning.startswith(mark):
            return f"is {name}; convert it to UTF-8"
    if b"\0" not in beginning:
        return None
    looked_at = beginning[:LOOKED_AT]
    # In UTF-16, every other byte of plain letters is 0.
    for zeros, others in ((looked_at[1::2], looked_at[::2]), (looked_at[::2], looked_at[1::2])):
        if zeros and not zeros.strip(b"\0") and others and b"\0" not in others:
            return "is UTF-16; convert it to UTF-8"
    return "is binary; give text, such as CSV"


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
            DocumentError: the stream is no text at all; or a line is no UTF-8 text or too long, and
                malformed lines are not skipped.
        """
        for read in iter(lambda: self.stream.readline(LONGEST_LINE + 1), b""):
            self.number += 1
            if self.number == 1 and (reason := no_text(read)):
                raise self.error_of_file(reason)
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
            raise self.error(f"{what}; {SKIPPING}")
        if not self.skipped:
            self.first_skipped = f"line {self.number}: {what}"
        self.skipped += 1

    def error(self, message: str) -> DocumentError:
        """An error at the current line."""
        return DocumentError(message, path=printable(self.name), line=max(self.number, 1), column=1)

    def error_of_file(self, message: str) -> DocumentError:
        """An error of the whole file."""
        return DocumentError(message, path=printable(self.name))
