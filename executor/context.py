"""The forward context: what changes from step to step and layers read while a forward runs.

The one ambient value of the executor. Each thread has its own and begins with none; a thread or task
that is started within a block inherits nothing. Source: vLLM 0.33, its forward context (rules 9).

Blocks are left in the reverse order in which they were entered. A generator that is suspended inside
a block leaves its context set for whoever drives it, and so do tasks that share a thread: leave the
block before a ``yield`` or an ``await``. A block that is left out of order raises ContextError.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

import torch
from attrs import define, field

from executor.dp_metadata import MAX_INT32, DPMetadata, exchanges_tokens
from executor.errors import ContextError
from executor.parallel import ParallelInfo
from planner.descriptors import BatchDescriptor
from planner.errors import argument_error
from planner.modes import CUDAGraphMode
from planner.rules.ubatch_slices import UbatchSlice

PerLayer: TypeAlias = Mapping[str, Any]
"""A value for each layer, by the layer's name."""

F = TypeVar("F", bound=Callable[..., Any])


def _breaks_compiled_graph(function: F) -> F:
    """``function`` called at every step of a compiled model, its result never part of a graph.

    The attribute is what ``torch.compiler.disable`` sets; calling that would import TorchDynamo, which
    takes seconds.
    """
    function.__dict__["_torchdynamo_disable"] = True
    return function


# Compared by identity: it holds tensors, which have no truth value to compare by.
@define(eq=False)
class ForwardContext:
    """What one forward, or one microbatch of it, reads.

    ``no_compile_layers`` maps names of layers to their modules. ``attn_metadata`` (``None`` where a
    forward runs without attention) and ``slot_mapping`` map names of attention layers to the batch's
    metadata and KV slots, or are lists of such maps, one a microbatch of ``ubatch_slices``.
    ``dp_metadata`` is there where ranks exchange tokens. ``cudagraph_runtime_mode`` and
    ``batch_descriptor`` say which graph serves the step. ``is_padding`` is a mask over tokens, true for
    rows that are none. ``skip_compiled`` has the model's ``forward`` called past its compiled form.
    ``all_moe_layers`` are the expert layers in the order of the forward and ``moe_layer_index`` the next
    of them, so that a compiled graph holds no names. ``additional_kwargs`` are for the user's own.

    Raises:
        ContextError: the mode is none that a step runs in, or lists of microbatches differ in length.
    """

    no_compile_layers: Mapping[str, Any]
    attn_metadata: PerLayer | Sequence[PerLayer] | None
    slot_mapping: Mapping[str, torch.Tensor] | Sequence[Mapping[str, torch.Tensor]]
    dp_metadata: DPMetadata | None = None
    cudagraph_runtime_mode: CUDAGraphMode = CUDAGraphMode.NONE
    batch_descriptor: BatchDescriptor | None = None
    ubatch_slices: Sequence[UbatchSlice] | None = None
    is_padding: torch.Tensor | None = None
    skip_compiled: bool = False
    all_moe_layers: Sequence[str] | None = None
    moe_layer_index: int = 0
    additional_kwargs: dict[str, Any] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        mode: object = self.cudagraph_runtime_mode
        if not isinstance(mode, CUDAGraphMode) or not mode.is_valid_runtime_mode():
            raise ContextError(f"cudagraph_runtime_mode is {mode}; a step runs in NONE, PIECEWISE or FULL")
        lengths = {} if self.ubatch_slices is None else {"ubatch_slices": len(self.ubatch_slices)}
        lengths |= _num_maps("attn_metadata", self.attn_metadata) | _num_maps(
            "slot_mapping", self.slot_mapping
        )
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            raise ContextError(f"{listed}; give one element for each microbatch")

    @_breaks_compiled_graph
    def next_moe_layer(self) -> str:
        """The name of the expert layer that runs now; each call moves on to the next.

        Raises:
            ContextError: the context names no expert layers, or all of them have run.
        """
        if self.all_moe_layers is None:
            raise ContextError("the forward context names no expert layers; give ParallelInfo all_moe_layers")
        if not 0 <= self.moe_layer_index < len(self.all_moe_layers):
            raise ContextError(
                f"expert layer {self.moe_layer_index} is asked for, but the forward context names "
                f"{len(self.all_moe_layers)}; enter a new context for every forward"
            )
        name = self.all_moe_layers[self.moe_layer_index]
        self.moe_layer_index += 1
        return name


def _num_maps(name: str, value: object) -> dict[str, int]:
    """How many microbatches ``value`` has a map for, by ``name``; nothing where it is no list.

    Raises:
        ContextError: it is neither a map nor a list of maps.
    """
    maps = value if isinstance(value, list | tuple) else () if value is None else (value,)
    for item in maps:
        if not isinstance(item, Mapping):
            raise ContextError(
                f"{name} holds a value of type {type(item).__name__}; "
                "give a mapping by layer name, or a list of them, one a microbatch"
            )
    return {name: len(maps)} if maps is value else {}


class _Current(threading.local):
    context: ForwardContext | None = None


_current = _Current()


@_breaks_compiled_graph
def is_forward_context_available() -> bool:
    """Whether this thread has a forward context."""
    return _current.context is not None


@_breaks_compiled_graph
def get_forward_context() -> ForwardContext:
    """The forward context of this thread.

    A compiled model breaks its graph here and reads the context of every call. Tensors in it become
    inputs of the graph behind; a Python number in it is a constant there, and a new one recompiles.

    Raises:
        ContextError: this thread has none.
    """
    context = _current.context
    if context is None:
        raise ContextError(
            "no forward context is set on this thread; run within `with set_forward_context(...)`"
        )
    return context


@contextmanager
def override_forward_context(context: ForwardContext | None) -> Iterator[None]:
    """Within the block, ``context`` itself is this thread's context; ``None`` means that it has none.

    Raises:
        ContextError: ``context`` is something else, or the block is left out of order.
    """
    if context is not None and not isinstance(context, ForwardContext):
        raise ContextError(f"a value of type {type(context).__name__} is no ForwardContext; give one or None")
    outer = _current.context
    _current.context = context
    try:
        yield
    finally:
        if _current.context is not context:
            raise ContextError(
                "a forward context is left that is not the current one of this thread; "
                "leave the blocks in reverse order, and before a generator yields"
            )
        _current.context = outer


@contextmanager
def set_forward_context(
    attn_metadata: PerLayer | Sequence[PerLayer] | None,
    parallel: ParallelInfo,
    num_tokens: int | None = None,
    num_tokens_across_dp: torch.Tensor | None = None,
    cudagraph_runtime_mode: CUDAGraphMode = CUDAGraphMode.NONE,
    batch_descriptor: BatchDescriptor | None = None,
    ubatch_slices: Sequence[UbatchSlice] | None = None,
    slot_mapping: Mapping[str, torch.Tensor] | Sequence[Mapping[str, torch.Tensor]] | None = None,
    skip_compiled: bool = False,
    is_padding: torch.Tensor | None = None,
) -> Iterator[ForwardContext]:
    """Within the block, this thread has a new forward context; what it had before is back afterwards.

    ``num_tokens`` are the tokens of this rank, padding included, and ``num_tokens_across_dp`` those of
    every data-parallel rank as an int32 tensor on the CPU. Without a descriptor, a step of
    ``num_tokens`` is described by that number alone. The other arguments are fields of ForwardContext.

    Raises:
        ArgumentError: ``parallel`` is no ParallelInfo.
        ContextError: the arguments contradict each other, ranks exchange tokens and the vector is not
            given, or the block is left out of order.
    """
    if not isinstance(parallel, ParallelInfo):
        raise argument_error(
            "set_forward_context", "ParallelInfo", parallel, Deployment="ParallelInfo.of makes one of it"
        )
    if num_tokens is not None:
        _require_num_tokens(num_tokens)
        batch_descriptor = batch_descriptor or BatchDescriptor(num_tokens)
    dp_metadata = None
    if exchanges_tokens(parallel) and (attn_metadata is not None or num_tokens is not None):
        vector = _tokens_across_dp(parallel, num_tokens, num_tokens_across_dp)
        dp_metadata = DPMetadata.make(parallel, num_tokens or 0, vector)
    context = ForwardContext(
        no_compile_layers=parallel.no_compile_layers,
        attn_metadata=attn_metadata,
        slot_mapping=slot_mapping or {},
        dp_metadata=dp_metadata,
        cudagraph_runtime_mode=cudagraph_runtime_mode,
        batch_descriptor=batch_descriptor,
        ubatch_slices=ubatch_slices,
        is_padding=is_padding,
        skip_compiled=skip_compiled,
        all_moe_layers=parallel.all_moe_layers,
    )
    with override_forward_context(context):
        yield context


def _require_num_tokens(num_tokens: object) -> None:
    if not isinstance(num_tokens, int) or isinstance(num_tokens, bool) or not 0 <= num_tokens <= MAX_INT32:
        raise ContextError(f"num_tokens is {num_tokens!r}; give an integer from 0 to {MAX_INT32}")


def _tokens_across_dp(
    parallel: ParallelInfo, num_tokens: int | None, given: torch.Tensor | None
) -> torch.Tensor:
    """The tokens of every data-parallel rank; those of a single one are its own."""
    if given is not None:
        return given
    if parallel.data_parallel_size > 1:
        raise ContextError(
            f"{parallel.data_parallel_size} data-parallel ranks exchange tokens in this step; "
            "give num_tokens_across_dp, the tokens that they agreed on"
        )
    if num_tokens is None:
        raise ContextError("sequence-parallel experts share out the tokens of this step; give num_tokens")
    return torch.tensor([num_tokens], dtype=torch.int32, device="cpu")
