"""The compiled half: it reads what the Python half reads; damaged words and a lack of memory do no harm."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

import pytest
import torch
from hypothesis import given

from executor.errors import CaptureError
from executor.materialize import native as module
from executor.materialize.native import SOURCE, NativeCode, NativeError, built
from executor.materialize.plain import PlainCode
from executor.materialize.words import KERNEL
from tests.executor.materialize.drawings import EVERYTHING, SOME, drawings
from tests.executor.materialize.fake_cuda import HERE, Drawing, FakeCuda, Node, compiled, compiler


@SOME
@given(drawing=drawings())
def test_both_halves_read_the_same(
    fake: FakeCuda, native: NativeCode, plain: PlainCode, functions: list[int], drawing: Drawing
) -> None:
    known: tuple[list[int], list[int]] = ([functions[3]], [functions[3]])
    with fake.drawn(drawing, functions) as graph:
        words = native.read(graph, known[0])
        assert torch.equal(words, plain.read(graph, known[1]))
    assert known[0] == known[1]


@SOME
@given(drawing=drawings())
def test_a_graph_that_needs_more_room_is_read_all_the_same(
    fake: FakeCuda, native: NativeCode, functions: list[int], drawing: Drawing
) -> None:
    with fake.drawn(drawing, functions) as graph, pytest.MonkeyPatch.context() as patch:
        expected = native.read(graph, [])
        for room in (1, 3, 9, max(len(expected) - 1, 1)):
            patch.setattr(module, "FIRST_ROOM", room)
            assert torch.equal(native.read(graph, []), expected)


def test_building_takes_time_that_is_told(fake: FakeCuda, native: NativeCode, functions: list[int]) -> None:
    known: list[int] = []
    assert native.seconds == (0.0, 0.0)
    with fake.drawn(EVERYTHING, functions) as graph:
        fake.cuGraphExecDestroy(ctypes.c_void_p(native.build(native.read(graph, known), known)))
    assert min(native.seconds) > 0


def test_the_library_is_compiled_once(native_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler()
    target = built(native_folder)
    monkeypatch.setattr(module.shutil, "which", lambda _: None)
    assert built(native_folder) == target
    assert [each.name for each in native_folder.iterdir()] == [target.name]


def test_without_a_compiler_the_compiled_half_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.shutil, "which", lambda _: None)
    with pytest.raises(NativeError, match="no C compiler"):
        built(tmp_path / "cold")
    assert not (tmp_path / "cold").exists()


def test_a_compiler_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler()
    broken = tmp_path / "broken.c"
    broken.write_text("int gp_open(\n")
    monkeypatch.setattr(module, "SOURCE", broken)
    with pytest.raises(NativeError, match="fails"):
        built(tmp_path / "folder")
    assert not list((tmp_path / "folder").iterdir())


def test_an_older_driver_is_refused(tmp_path: Path, native_folder: Path) -> None:
    old = compiled(tmp_path / "old.so", "-DcuGraphGetEdges_v2=cuGraphGetEdges")
    with pytest.raises(NativeError, match="older"):
        NativeCode(native_folder, ctypes.CDLL(str(old)))


def test_no_memory_is_an_error_and_not_a_crash(
    fake: FakeCuda, functions: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapper = tmp_path / "failing_memory.c"
    text = (HERE / "failing_memory.c").read_text()
    wrapper.write_text(text.replace("#include NATIVE", f'#include "{SOURCE}"'))
    monkeypatch.setattr(module, "SOURCE", wrapper)
    code = NativeCode(tmp_path / "folder", fake.library)
    limit = ctypes.CDLL(str(built(tmp_path / "folder"))).fake_memory
    known: list[int] = []
    with fake.drawn(EVERYTHING, functions) as graph:
        words = code.read(graph, known)
        for calls in range(4):
            limit(ctypes.c_long(calls))
            with pytest.raises(CaptureError, match="error 2"):
                code.read(graph, [])
        before = fake.alive
        for calls in range(2):
            limit(ctypes.c_long(calls))
            with pytest.raises(CaptureError, match="answers 2"):
                code.build(words, known)
        assert fake.alive == before


def test_too_many_kernels_are_refused(
    fake: FakeCuda, native: NativeCode, functions: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_FUNCTIONS", 2)
    known = [functions[1]]
    with fake.drawn(EVERYTHING, functions) as graph, pytest.raises(CaptureError, match="more kernels"):
        native.read(graph, known)
    assert known == [functions[1]]


SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g")


def harness(folder: Path) -> tuple[Path, bool]:
    """``damage.c``, with what the compiler has against reading beyond ends; whether it has."""
    target = folder / "damage"
    command = [compiler(), f'-DNATIVE="{SOURCE}"', "-O1", "-o", str(target), str(HERE / "damage.c")]
    for more in (SANITIZERS, ()):
        made = subprocess.run(
            [*command, *more, "-ldl"], capture_output=True, text=True, timeout=60, check=False
        )
        if not made.returncode:
            return target, bool(more)
    raise AssertionError(made.stderr)


def test_damaged_words_never_touch_memory_beyond_them(fake: FakeCuda, tmp_path: Path) -> None:
    program, _ = harness(tmp_path)
    functions = [fake.function("kernel", ((0, 16),), a8=1 << 16) for _ in range(3)]
    kernels = [
        Node(KERNEL, {4: (2,) * 8} if number else {}, number, params=bytes(range(16)), packed=number == 1)
        for number in range(3)
    ]
    others = [node for node in EVERYTHING.nodes if node.kind != KERNEL]
    drawing = Drawing(
        [*kernels, *others], [(0, 1, 0), (1, 2, 1 << 40), (2, 3, 0), (3, 4, 0), (3, 5, 0), (4, 5, 0)]
    )
    with fake.drawn(drawing, functions) as graph:
        words = PlainCode(fake.library).read(graph, [])
    (tmp_path / "words").write_bytes(words.numpy().tobytes())
    env = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}  # which many containers forbid
    command = [str(program), str(fake.path), str(tmp_path / "words"), "20000", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    succeeded, refused, failed, alive = map(int, done.stdout.split())
    assert min(succeeded, refused, failed) > 100
    assert alive == 0
