"""Dispatch below autograd, for the many small operations of a recording.

Under ``torch.no_grad`` every operation still passes PyTorch's autograd and view-tracking kernels, which
do nothing then. Leaving them out took 18 to 20 % off an operation's CPU time (torch 2.13, CPU). Inference
mode leaves them out too, but marks every tensor that a model makes, which then cannot be updated outside.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

_LEFT_OUT = ("AutogradCPU", "AutogradCUDA", "ADInplaceOrView")


def below_autograd() -> AbstractContextManager[Any]:
    """Within it, operations of this thread record nothing for a backward pass and track no views.

    Not for models that ``torch.compile`` made: they are guarded on the dispatch keys and would be compiled
    again.
    """
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.Undefined)  # noqa: SLF001 - as torch.func does
    for name in _LEFT_OUT:
        keys = keys | torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name))  # noqa: SLF001
    return torch._C._ExcludeDispatchKeyGuard(keys)  # noqa: SLF001
