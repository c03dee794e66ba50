"""The real driver's class over the fake library: what kernels and streams say of themselves; errors."""

from __future__ import annotations

import ctypes

import pytest

from executor.errors import CaptureError, ReplayError
from executor.materialize.driver import CudaDriver, KernelIdentity
from executor.materialize.native import NativeCode
from executor.materialize.plain import PlainCode
from executor.materialize.regions import Region
from tests.executor.materialize.drawings import EVERYTHING, LAYOUTS
from tests.executor.materialize.fake_cuda import FakeCuda

STREAM = 0x5000


@pytest.fixture
def driver(fake: FakeCuda, code: NativeCode | PlainCode) -> CudaDriver:
    return CudaDriver(code, fake.library)


def test_a_kernel_is_known_by_name_parameters_and_code(fake: FakeCuda, driver: CudaDriver) -> None:
    function = fake.function("gemm", LAYOUTS[2], a0=1024, a3=5, a5=77, a6=86, a8=4096)
    assert driver.identity(function) == KernelIdentity("gemm", LAYOUTS[2], (1024, 0, 0, 5, 0, 77, 86))
    assert driver.identity(function) == driver.identity(
        fake.function("gemm", LAYOUTS[2], a0=1024, a3=5, a5=77, a6=86, a8=1)
    )
    for other in (
        fake.function("gemm2", LAYOUTS[2], a0=1024, a3=5, a5=77, a6=86),
        fake.function("gemm", LAYOUTS[1], a0=1024, a3=5, a5=77, a6=86),
        fake.function("gemm", LAYOUTS[2], a0=1024, a3=5, a5=78, a6=86),
    ):
        assert driver.identity(function) != driver.identity(other)


def test_a_name_of_other_characters_is_still_a_name(fake: FakeCuda, driver: CudaDriver) -> None:
    handle = fake.fake_function(b"\xff\xfe", ctypes.c_size_t(0), None, None)
    assert driver.identity(handle).name == "\ufffd\ufffd"


def test_dynamic_shared_memory_is_read_and_raised(fake: FakeCuda, driver: CudaDriver) -> None:
    function = fake.function("gemm", a8=48 << 10)
    assert driver.dynamic_shared(function) == 48 << 10
    driver.allow_shared(function, 100 << 10)
    assert driver.dynamic_shared(function) == 100 << 10
    with pytest.raises(CaptureError, match="answers 1 to cuFuncSetAttribute"):
        driver.allow_shared(function, 1 << 30)


def test_nodes_of_the_graph_that_a_stream_records_are_counted(
    fake: FakeCuda, driver: CudaDriver, functions: list[int]
) -> None:
    assert driver.num_captured(STREAM) == 0
    with fake.drawn(EVERYTHING, functions) as graph:
        fake.fake_capture(ctypes.c_void_p(STREAM), ctypes.c_void_p(graph))
        assert driver.num_captured(STREAM) == len(EVERYTHING.nodes)
        assert driver.num_captured(STREAM + 8) == 0
        fake.fake_capture(ctypes.c_void_p(STREAM), None)
    assert driver.num_captured(STREAM) == 0


def test_the_owner_of_an_address_is_its_allocation(fake: FakeCuda, driver: CudaDriver) -> None:
    start = 0x7F00_1234_0000
    fake.fake_range(ctypes.c_uint64(start), ctypes.c_uint64(4096))
    assert driver.owner_of(start + 4095) == Region("", start, 4096)
    assert driver.owner_of(start + 4096) is None
    assert driver.owner_of(start - 1) is None


def test_a_graph_is_read_built_launched_and_destroyed(
    fake: FakeCuda, driver: CudaDriver, functions: list[int]
) -> None:
    launched = []
    keep = fake.on_launch(
        lambda function, params, size: launched.append((function, ctypes.string_at(params, size)))
    )
    plain = type(EVERYTHING)([each for each in EVERYTHING.nodes if each.kind == 0], [(0, 1, 0), (1, 2, 0)])
    with fake.drawn(plain, functions) as graph:
        words = driver.read(graph)
        driver.read(graph)
    assert list(driver.functions) == [functions[1], functions[3], functions[0]]
    made = driver.build(words, driver.functions)
    driver.launch(made, STREAM)
    assert launched == [
        (functions[1], bytes(range(20))),
        (functions[3], bytes(range(128))),
        (functions[0], b""),
    ]
    fake.fail("cuGraphLaunch", error=700)
    with pytest.raises(ReplayError, match="answers 700"):
        driver.launch(made, STREAM)
    driver.destroy(made)
    assert min(driver.seconds) > 0
    del keep
    fake.fake_on_launch(None)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("cuFuncGetName", "identity"),
        ("cuFuncGetAttribute", "identity"),
        ("cuFuncGetAttribute", "dynamic_shared"),
        ("cuStreamGetCaptureInfo_v2", "num_captured"),
    ],
)
def test_what_the_driver_answers_is_said(fake: FakeCuda, driver: CudaDriver, name: str, call: str) -> None:
    function = fake.function("gemm")
    fake.fail(name, error=3)
    with pytest.raises(CaptureError, match=f"the CUDA driver answers 3 to {name}"):
        getattr(driver, call)(function)
