"""What lies in the gaps between a kernel's parameters, made the same whenever its call is recorded.

Parameters are structures on the host's stack. Their gaps keep what lay there before, addresses of tensors
among it, which look like parameters that were exchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class MarkedGaps(TorchDispatchMode):
    """Calls ``mark_stack`` ahead of every ATen call, so that gaps hold what that leaves there."""

    def __init__(self, mark_stack: Callable[[], None]) -> None:
        super().__init__()
        self._mark_stack = mark_stack

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        self._mark_stack()
        return func(*args, **(kwargs or {}))
