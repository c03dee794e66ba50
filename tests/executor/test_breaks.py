from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from executor.breaks import graph_break, recording_pieces
from executor.errors import CaptureError
from tests.executor.toys import add_in_place


class Listener:
    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []

    def break_at(self, operation: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.heard.append((operation, args, kwargs))


def test_a_marked_operation_is_a_plain_call_outside_of_recordings() -> None:
    total = torch.ones(2)
    add_in_place(total, torch.ones(2))
    assert total.tolist() == [2, 2]


def test_a_recording_of_pieces_is_told_instead_of_running_the_operation() -> None:
    listener, total = Listener(), torch.ones(2)
    with recording_pieces(listener):
        add_in_place(total, torch.ones(2))
    ((operation, args, kwargs),) = listener.heard
    assert total.tolist() == [1, 1]
    operation(*args, **kwargs)
    assert total.tolist() == [2, 2]


def test_a_value_that_is_returned_is_refused() -> None:
    @graph_break
    def wrong(tensor: torch.Tensor) -> None:
        return tensor + 1  # type: ignore[return-value]

    with pytest.raises(CaptureError, match="wrong: returns a value; write into a tensor that it is given"):
        wrong(torch.ones(1))


def test_a_marked_operation_inside_another_is_refused() -> None:
    @graph_break
    def outer(tensor: torch.Tensor) -> None:
        add_in_place(tensor, tensor)

    with pytest.raises(CaptureError, match="add_in_place: called from within a marked operation"):
        outer(torch.ones(1))
    add_in_place(torch.ones(1), torch.ones(1))  # the refusal leaves nothing behind


def test_a_call_from_another_thread_than_the_recording_one_is_refused() -> None:
    errors: list[BaseException] = []

    def call() -> None:
        try:
            add_in_place(torch.ones(1), torch.ones(1))
        except CaptureError as error:
            errors.append(error)

    with recording_pieces(Listener()):
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
    assert "another thread" in str(errors[0])


def test_one_recording_of_pieces_at_a_time() -> None:
    refused = pytest.raises(CaptureError, match="one PIECEWISE recording at a time")
    with recording_pieces(Listener()), refused, recording_pieces(Listener()):
        pass
    with recording_pieces(Listener()):
        pass


def test_a_compiled_model_breaks_at_marked_operations() -> None:
    runs = []

    @graph_break
    def note(tensor: torch.Tensor) -> None:
        runs.append(tensor.shape)
        tensor.add_(1)

    def model(tensor: torch.Tensor) -> torch.Tensor:
        hidden = tensor * 2
        note(hidden)
        return hidden * 3

    compiled = torch.compile(model, backend="eager")
    for _ in range(3):
        assert compiled(torch.ones(2)).tolist() == [9, 9]
    assert len(runs) == 3
    listener = Listener()
    with recording_pieces(listener):
        compiled(torch.ones(2))
    assert len(listener.heard) == 1
