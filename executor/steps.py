"""Steps as runners tell of them: how one is padded, what it computed, and what a drafter learns of it."""

from __future__ import annotations

import torch
from attrs import frozen

from executor.dispatching import Key
from executor.inputs.batch import ScheduledBatch
from planner.descriptors import BatchDescriptor
from planner.modes import CUDAGraphMode


@frozen(kw_only=True)
class StepOutput:
    """What a step computed for the real tokens of its batch, and the graph that did it.

    The tensors are views: they hold until the next step.
    """

    key: Key
    mode: CUDAGraphMode
    hidden_states: torch.Tensor
    aux_hidden_states: tuple[torch.Tensor, ...]


@frozen(kw_only=True)
class PaddedStep:
    """How a step runs: by which graph, and with how many tokens and requests, padding included."""

    key: Key
    mode: CUDAGraphMode
    num_tokens: int
    num_reqs: int
    num_ubatches: int = 1
    batch_descriptor: BatchDescriptor | None = None
    num_tokens_across_dp: torch.Tensor | None = None


@frozen(kw_only=True)
class DraftBatch:
    """What the drafter learns of a step of its target. Every tuple has one item a request.

    ``step`` is what the target ran, ``num_rejected`` counts the last of each request's tokens that were
    refused, ``anchors`` are the tokens that come next. ``num_reqs_across_dp`` is the largest number of
    requests of any data-parallel rank.
    """

    step: ScheduledBatch
    num_rejected: tuple[int, ...]
    anchors: tuple[int, ...]
    num_reqs_across_dp: int | None = None
