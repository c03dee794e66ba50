"""Collectives on the tape: noted while recording, as on a GPU, and carried out at replay.

Nothing of another rank is needed to record one. So a rank that fails to record leaves no other waiting
within a collective.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

NAMESPACE = "c10d"
"""Operations of PyTorch's process groups: what ``torch.distributed`` calls."""


def is_collective(function: Any) -> bool:
    """Whether a dispatched call is one among ranks."""
    return bool(function.namespace == NAMESPACE)


def pending(function: Any, args: Sequence[Any]) -> Any:
    """What a collective returns that nobody carries out: its tensors as they are, and finished work."""
    from torch._C._distributed_c10d import FakeWork

    work = FakeWork().boxed()
    return (args[0], work) if len(function._schema.returns) > 1 else work  # noqa: SLF001 - says what it returns


def carry_out(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Makes the call and waits until it is done."""
    from torch._C._distributed_c10d import Work

    returned = function(*args, **kwargs)
    work = returned[-1] if isinstance(returned, tuple) else returned
    Work.unbox(work).wait()
