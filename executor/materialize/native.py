"""The compiled half: ``native.c``, built on first use into a folder that only this user can write."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from executor.backends.cuda_driver import library
from executor.errors import CaptureError
from executor.materialize.driver import MAX_FUNCTIONS
from executor.materialize.relocation import Relocation

SOURCE = Path(__file__).with_name("native.c")
COMPILERS = ("cc", "gcc", "clang")
COMPILE_SECONDS = 60
DRIVER_ERROR = 1_000_000_000
"""What ``gp_read`` adds to an error of the driver."""

FIRST_ROOM = 1 << 17
"""Words that a graph is given room for at first; one of a thousand kernels has some 60,000."""


class NativeError(CaptureError):
    """The compiled half cannot be had; the slower one does."""


class NativeCode:
    """Reads and builds graphs in C."""

    def __init__(self, folder: Path, driver: ctypes.CDLL | None = None) -> None:
        """Builds the library into ``folder`` unless it is there; ``driver`` is by default the real one.

        Raises:
            NativeError: there is no compiler, or the driver is too old.
        """
        self._code = ctypes.CDLL(str(built(folder)))
        self._seconds = (ctypes.c_double * 2)()
        self._code.gp_read.restype = ctypes.c_long
        name = (driver or library())._name  # noqa: SLF001 - ctypes has no other name for it
        if self._code.gp_open(name.encode()):
            raise NativeError("the CUDA driver lacks a function; its version is older than 12.4")

    @property
    def seconds(self) -> tuple[float, float]:
        """What building took so far, and instantiating."""
        return self._seconds[0], self._seconds[1]

    def read(self, graph: int, functions: list[int]) -> torch.Tensor:
        """The words of a graph; functions that are new are added.

        Raises:
            CaptureError: the driver refuses, or there are too many functions.
        """
        table = (ctypes.c_uint64 * MAX_FUNCTIONS)(*functions)
        count, room = ctypes.c_long(len(functions)), FIRST_ROOM
        while True:
            words = torch.empty(room, dtype=torch.int64)
            length = self._code.gp_read(
                ctypes.c_void_p(graph),
                ctypes.c_void_p(words.data_ptr()),
                ctypes.c_long(room),
                table,
                ctypes.byref(count),
                ctypes.c_long(MAX_FUNCTIONS),
            )
            if length < 0 or length >= DRIVER_ERROR:
                what = "more kernels than can be kept" if length < 0 else f"error {length - DRIVER_ERROR}"
                raise CaptureError(f"reading a graph: {what}")
            if length <= room:
                functions.extend(table[len(functions) : count.value])
                return words[:length].clone()
            room = length

    def mark_stack(self) -> None:
        """Leaves one number all over the free part of this thread's stack."""
        self._code.gp_mark_stack()

    def placed(self, graph: Relocation, starts: torch.Tensor) -> torch.Tensor:
        """The words of ``graph`` for regions that begin at ``starts``, int64.

        One call without the interpreter's lock, which a thread beside a busy one waits for each time.

        Raises:
            CaptureError: it has addresses beyond its words or regions.
        """
        words = torch.empty_like(graph.words)
        error = self._code.gp_place(
            ctypes.c_void_p(words.data_ptr()),
            ctypes.c_void_p(graph.words.data_ptr()),
            ctypes.c_long(len(words)),
            ctypes.c_void_p(graph.positions.data_ptr()),
            ctypes.c_void_p(graph.regions.data_ptr()),
            ctypes.c_long(len(graph.positions)),
            ctypes.c_void_p(starts.data_ptr()),
            ctypes.c_long(len(starts)),
        )
        if error:
            raise CaptureError("building a graph: its addresses are damaged")
        return words

    def build(self, words: torch.Tensor, functions: Sequence[int]) -> int:
        """An executable graph of ``words``, which must be contiguous.

        Raises:
            CaptureError: the words are damaged, or the driver refuses.
        """
        table = (ctypes.c_uint64 * len(functions))(*functions)
        executable = ctypes.c_void_p()
        error = self._code.gp_build(
            ctypes.c_void_p(words.data_ptr()),
            ctypes.c_long(len(words)),
            table,
            ctypes.c_long(len(functions)),
            ctypes.byref(executable),
            self._seconds,
        )
        if error or executable.value is None:
            what = "the graph's words are damaged" if error < 0 else f"the CUDA driver answers {error}"
            raise CaptureError(f"building a graph: {what}")
        return executable.value


def built(folder: Path) -> Path:
    """The library, compiled into ``folder`` if it is not there; its name has the source's hash.

    Raises:
        NativeError: there is no compiler, or it fails.
    """
    target = folder / f"graphs-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]}.so"
    if target.is_file():
        return target
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise NativeError(f"no C compiler ({', '.join(COMPILERS)}) was found")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as own:
        made = Path(own) / target.name
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(made), str(SOURCE), "-ldl"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NativeError(f"{compiler}: {error}") from None
        if done.returncode:
            raise NativeError(f"{compiler} fails: {done.stderr.strip().splitlines()[-1:]}")
        os.replace(made, target)
    return target
