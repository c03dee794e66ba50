"""Words of a command line, and text in which something is not known.

What nobody here looks up (a variable, a substitution, a key of a secret) is a *hole* in a text until
the text is cut into words; a word then lists its holes, so that whoever needs it can refuse it by name.
"""

from __future__ import annotations

import re

from attrs import frozen

from planner.documents.tree import Scalar
from planner.errors import DocumentError

_HOLE = re.compile("\x01([^\x01\x02]*)\x02")
_MARKS = re.compile("[\x01\x02]")


@frozen
class Word:
    """One word as the command would receive it.

    ``unknown`` lists what was not looked up, such as ``$MODEL``. ``line`` and ``column`` are counted
    from 1; a word that no text stands behind has neither. ``path`` is the file of a word that does not
    stand in the source itself.
    """

    text: str
    line: int | None = None
    column: int | None = None
    unknown: tuple[str, ...] = ()
    path: str | None = None


def hole(found: str) -> str:
    """What stands in a text for ``found``, which is not known."""
    return f"\x01{found}\x02"


def unmarked(text: str, path: str | None) -> str:
    """``text``, which has no holes yet.

    Raises:
        DocumentError: it has a character that would be taken for the mark of one.
    """
    if found := _MARKS.search(text):
        raise DocumentError(f"the character U+{ord(found[0]):04X} is not allowed here", path=path)
    return text


def word_of(text: str, line: int | None, column: int | None) -> Word:
    """The word that ``text`` with its holes is."""
    if "\x01" not in text:
        return Word(text, line, column)
    return Word(_HOLE.sub(r"\1", text), line, column, tuple(_HOLE.findall(text)))


def scalar_word(scalar: Scalar, text: str) -> Word:
    """The word of a scalar, of which ``text`` was made."""
    line, column = scalar.place or (None, None)
    return word_of(text, line, column)


def refusal(word: Word, path: str | None, key: str | None = None) -> DocumentError:
    """The error that ``word`` has to be known and is not."""
    found = word.unknown[0]
    option = (
        f"--set {found.removeprefix('$')}=VALUE" if found[1:].isidentifier() else f"--set '{found}=VALUE'"
    )
    message = f"{found} is not looked up or run here; give its value with {option}"
    return DocumentError(message, path=word.path or path, line=word.line, column=word.column, key=key)
