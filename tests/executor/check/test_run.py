from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch

from executor.breaks import graph_break
from executor.check import check_factory, check_forward
from executor.errors import InputError
from planner.descriptors import PlanEntry
from planner.modes import CUDAGraphMode

HERE = Path(__file__)


def line_of(function: Any, text: str) -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next(number for number, line in enumerate(lines) if text in line)


def codes(report: Any) -> list[str]:
    return [found.code for found in report.findings]


def test_one_call_cannot_be_compared() -> None:
    with pytest.raises(InputError, match="2 or more"):
        check_forward(lambda: None, repeats=1)


def test_all_faults_of_one_forward_are_found_in_one_go_errors_first() -> None:
    x = torch.ones(4)

    def forward() -> torch.Tensor:
        y = torch.nn.functional.dropout(x)
        for _ in range(3):
            y = y * y.sum().item()
        return y[y > 0]

    report = check_forward(forward)
    assert not report.ok
    assert codes(report)[-1] == "random"
    sync = next(found for found in report.findings if found.code == "host-sync")
    assert (sync.line, sync.count) == (line_of(forward, ".item()"), 3)
    assert sync.fix
    assert "data-dependent-shape" in codes(report)


def test_an_information_leaves_the_report_ok() -> None:
    x = torch.ones(4)
    report = check_forward(lambda: torch.nn.functional.dropout(x))
    assert report.ok
    assert codes(report) == ["random"]


def test_code_beneath_the_root_is_the_place_and_is_told_relative_to_it(tmp_path: Path) -> None:
    library = tmp_path / "library.py"
    library.write_text("def helper(x):\n    return x.sum().item()\n")
    model = tmp_path / "project" / "model.py"
    model.parent.mkdir()
    model.write_text("def forward(x, helper):\n\n    return helper(x)\n")
    scope: dict[str, Any] = {}
    for file in (library, model):
        exec(compile(file.read_text(), str(file), "exec"), scope)
    x = torch.ones(4)

    def forward() -> Any:
        return scope["forward"](x, scope["helper"])

    (inner,) = check_forward(forward).findings
    assert (inner.file, inner.line, inner.function) == (str(library), 2, "helper")
    (outer,) = check_forward(forward, root=model.parent).findings
    assert (outer.file, outer.line, outer.function) == ("model.py", 3, "forward")


def test_a_result_must_lie_in_the_static_tensor_of_its_name() -> None:
    x, logits = torch.ones(4), torch.zeros(4)

    def wrong() -> dict[str, torch.Tensor]:
        return {"logits": x * 2}

    def right() -> dict[str, torch.Tensor]:
        return {"logits": torch.mul(x, 2, out=logits)}

    (found,) = check_forward(wrong, static={"logits": logits}).findings
    assert (found.code, found.line) == ("moved-output", line_of(wrong, "x * 2"))
    assert check_forward(right, static={"logits": logits}).findings == ()


def test_a_moved_input_is_told_by_its_static_name() -> None:
    state = {"ids": torch.ones(4)}
    older: list[torch.Tensor] = []

    def step() -> torch.Tensor:
        older.append(state["ids"])
        result = state["ids"] + 1
        state["ids"] = spare.pop()
        return result

    spare = [torch.ones(4) for _ in range(4)]
    report = check_forward(step, static={"ids": spare[-1]})
    assert codes(report) == ["moved-tensor"]
    assert "ids" in report.findings[0].message


def test_a_compiled_model_is_checked_as_the_python_it_was_made_from() -> None:
    import torch._dynamo  # as it is loaded once something was compiled

    x = torch.ones(4)

    @torch.compile(backend="eager")
    def model(x: torch.Tensor) -> torch.Tensor:
        return x * x.sum().item()

    (found,) = check_forward(lambda: model(x)).findings
    assert found.code == "host-sync"
    assert found.file == str(HERE)


def test_a_gpu_named_in_the_model_is_played_by_the_cpu() -> None:
    x = torch.ones(4)

    def forward() -> torch.Tensor:
        y = x.cuda() + torch.ones(4, device="cuda") + x.to("cuda", torch.float32)
        return y + torch.tensor([1.0, 2.0, 3.0, 4.0]).cuda()

    (found,) = check_forward(forward).findings
    assert (found.code, found.line) == ("host-to-device", line_of(forward, ".cuda()") + 1)


def test_functions_of_torch_are_what_they_were_after_a_check_that_failed() -> None:
    before = torch.manual_seed, torch.cuda.synchronize

    def forward() -> None:
        raise ValueError("no")

    assert codes(check_forward(forward)) == ["raises"]
    assert (torch.manual_seed, torch.cuda.synchronize) == before


@graph_break
def attend(x: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(x * x.sum().item())


class Factory:
    """Forwards with a marked operation that waits for the device, and a fault at large sizes."""

    def __init__(self, limit: int = 1 << 20) -> None:
        self.inputs, self.output, self.limit = torch.ones(64), torch.zeros(64), limit
        self.calls: list[tuple[int, bool, CUDAGraphMode]] = []

    def __call__(self, desc: Any, warmup: bool) -> Any:
        num_tokens = desc.num_tokens

        def forward(mode: CUDAGraphMode) -> torch.Tensor:
            self.calls.append((num_tokens, warmup, mode))
            x = self.inputs[:num_tokens] * 2
            attend(x, self.output[:num_tokens])
            if num_tokens > self.limit:
                x.nonzero()
            return x + self.output[:num_tokens]

        return forward


FULL, PIECEWISE = CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE


def test_marked_operations_are_outside_of_the_graph_of_a_piecewise_entry_only() -> None:
    factory = Factory()
    assert check_factory(factory, [PlanEntry(PIECEWISE, 8)]).findings == ()
    (found,) = check_factory(factory, [PlanEntry(FULL, 8)]).findings
    assert found.code == "host-sync"
    assert found.function == "attend"
    assert factory.calls[:3] == [(8, True, CUDAGraphMode.NONE)] + [(8, False, PIECEWISE)] * 2
    assert factory.calls[3:] == [(8, True, CUDAGraphMode.NONE)] + [(8, False, CUDAGraphMode.NONE)] * 2


def test_a_place_is_told_once_with_the_entries_that_it_concerns() -> None:
    report = check_factory(Factory(limit=8), [PlanEntry(PIECEWISE, size) for size in (32, 16, 8)])
    (found,) = report.findings
    assert found.code == "data-dependent-shape"
    assert found.entries == ("PIECEWISE 32 tokens", "PIECEWISE 16 tokens")
    assert report.num_operations > 3


def test_a_value_given_to_a_marked_operation_is_baked_in() -> None:
    scale = iter(range(9))

    @graph_break
    def times(x: torch.Tensor, factor: int) -> None:
        x.mul_(factor)

    def create(desc: Any, warmup: bool) -> Any:  # noqa: ARG001
        x = torch.ones(4)
        return lambda mode: times(x, next(scale))  # noqa: ARG005

    assert codes(check_factory(create, [PlanEntry(PIECEWISE, 4)])) == ["baked-value"]
