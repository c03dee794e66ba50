"""The fake CUDA driver, compiled once a session, and both halves that read and build graphs over it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from executor.materialize.driver import GraphCode
from executor.materialize.native import NativeCode
from executor.materialize.plain import PlainCode
from tests.executor.materialize.drawings import LAYOUTS
from tests.executor.materialize.fake_cuda import FakeCuda, compiled
from tests.executor.materialize.machine import Machine
from tests.executor.materialize.worlds import Make, World


@pytest.fixture(scope="session")
def fake_library(tmp_path_factory: pytest.TempPathFactory) -> FakeCuda:
    return FakeCuda(compiled(tmp_path_factory.mktemp("fake") / "libfakecuda.so"))


@pytest.fixture(scope="session")
def functions(fake_library: FakeCuda) -> list[int]:
    """One function for each of ``LAYOUTS``."""
    return [fake_library.function(f"kernel_{n}", layout, a8=1 << 16) for n, layout in enumerate(LAYOUTS)]


@pytest.fixture(scope="session")
def native_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("native")


@pytest.fixture
def fake(fake_library: FakeCuda) -> Iterator[FakeCuda]:
    """The fake, which must have no more graphs at the end of a test than at its beginning."""
    before = fake_library.alive
    yield fake_library
    fake_library.fail("")
    fake_library.fake_forget_ranges()
    assert fake_library.alive == before


@pytest.fixture
def native(fake: FakeCuda, native_folder: Path) -> NativeCode:
    return NativeCode(native_folder, fake.library)


@pytest.fixture
def plain(fake: FakeCuda) -> PlainCode:
    return PlainCode(fake.library)


@pytest.fixture(params=["native", "plain"])
def code(request: pytest.FixtureRequest) -> GraphCode:
    """Either half."""
    half: GraphCode = request.getfixturevalue(request.param)
    return half


@pytest.fixture
def half(native: NativeCode) -> GraphCode:
    """The half that worlds use: the compiled one, unless a module says otherwise."""
    return native


@pytest.fixture
def world(fake: FakeCuda, half: GraphCode) -> Iterator[Make]:
    """Makes worlds, which end with the test."""
    made: list[World] = []
    keep = fake.on_launch(Machine.run_kernel)

    def make(kind: type[World] = World, **options: Any) -> World:
        made.append(kind(fake, half, **options))
        return made[-1]

    yield make
    for each in made:
        each.manager.release_graphs()
        assert each.manager.pool.recordings == 0  # type: ignore[attr-defined]
    Machine.programs.clear()
    Machine.errors.clear()
    fake.fake_on_launch(None)
    del keep
