"""Which line of the model's code is running."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType, FrameType, TracebackType

import torch
from attrs import define, field, frozen

_LIBRARIES = tuple(f"{Path(sysconfig.get_path(name)).resolve()}/" for name in ("stdlib", "platstdlib"))
_PACKAGES = ("site-packages", "dist-packages")
_TORCH = f"{Path(torch.__file__).resolve().parent}/"
_EXECUTOR = f"{Path(__file__).resolve().parents[1]}/"
_CHECK = f"{_EXECUTOR}check/"
_MODELS = f"{_EXECUTOR}models/"

_NEVER, _MACHINERY, _CODE, _UNDER_ROOT = range(4)


@frozen
class Place:
    """A line of Python. ``file`` is absolute, or relative to the root that the check was given."""

    file: str
    line: int
    function: str


UNKNOWN = Place("<unknown>", 0, "")


def _resolved(root: Path | None) -> Path | None:
    return None if root is None else root.resolve()


@define
class Places:
    """Finds the innermost frame that is code of the model.

    PyTorch, the standard library and this check are never that. Other parts of the executor are only
    where nothing else is on the stack. Code beneath ``root``, where one is given, goes ahead of any
    other.
    """

    root: Path | None = field(default=None, converter=_resolved)
    _ranks: dict[str, int] = field(factory=dict, init=False)
    _shown_files: dict[str, str] = field(factory=dict, init=False)

    def here(self, outermost: CodeType) -> Place:
        """The place that runs now; frames outside of a call of ``outermost`` do not count."""
        return self._best(_frames(sys._getframe(1), outermost))  # noqa: SLF001 - the documented name

    def mentions(self, text: str, outermost: CodeType) -> bool:
        """Whether the function that runs now holds ``text`` as a constant."""
        found = self._best_frame(_frames(sys._getframe(1), outermost))  # noqa: SLF001 - as above
        return found is not None and text in found[0].co_consts

    def of_error(self, error: BaseException, outermost: CodeType) -> Place:
        """Where ``error`` was raised."""
        return self._best(_raised(error.__traceback__, outermost))

    def of_function(self, function: object) -> Place:
        """Where a function or an object's class is defined, as far as Python knows."""
        code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
        if not isinstance(code, CodeType):
            return UNKNOWN
        return self._shown(code.co_filename, code.co_firstlineno, code.co_qualname)

    def _best(self, frames: Iterable[tuple[FrameType, int]]) -> Place:
        best = self._best_frame(frames)
        return self._shown(best[0].co_filename, best[1], best[0].co_qualname) if best else UNKNOWN

    def _best_frame(self, frames: Iterable[tuple[FrameType, int]]) -> tuple[CodeType, int] | None:
        best, rank = None, _NEVER
        wanted = _CODE if self.root is None else _UNDER_ROOT
        for frame, line in frames:
            found = self._rank(frame.f_code.co_filename)
            if found > rank:
                best, rank = (frame.f_code, line), found
            if rank >= wanted:
                break
        return best

    def _rank(self, file: str) -> int:
        rank = self._ranks.get(file)
        if rank is None:
            rank = self._ranks[file] = self._judged(file)
        return rank

    def _judged(self, file: str) -> int:
        if file.startswith("<"):
            return _NEVER
        path = str(Path(file).resolve())
        is_installed = any(f"/{name}/" in path for name in _PACKAGES)
        if path.startswith((_TORCH, _CHECK)) or (path.startswith(_LIBRARIES) and not is_installed):
            return _NEVER
        if self.root is not None and Path(path).is_relative_to(self.root):
            return _UNDER_ROOT
        if path.startswith(_EXECUTOR) and not path.startswith(_MODELS):
            return _MACHINERY
        return _CODE

    def _shown(self, file: str, line: int, function: str) -> Place:
        shown = self._shown_files.get(file)
        if shown is None:
            shown = self._shown_files[file] = self._file_shown(file)
        return Place(shown, line, function)

    def _file_shown(self, file: str) -> str:
        path = Path(file) if file.startswith("<") else Path(file).resolve()
        if self.root is not None and path.is_relative_to(self.root):
            path = path.relative_to(self.root)
        return str(path)


def _frames(frame: FrameType | None, outermost: CodeType) -> Iterator[tuple[FrameType, int]]:
    while frame is not None and frame.f_code is not outermost:
        yield frame, frame.f_lineno
        frame = frame.f_back


def _raised(traceback: TracebackType | None, outermost: CodeType) -> list[tuple[FrameType, int]]:
    found: list[tuple[FrameType, int]] = []
    while traceback is not None:
        if traceback.tb_frame.f_code is outermost:
            found.clear()
        else:
            found.append((traceback.tb_frame, traceback.tb_lineno))
        traceback = traceback.tb_next
    return found[::-1]
