"""Greedy decoding of a batch of prompts, with a drafter or without one.

Without rounding, the tokens do not depend on the drafter: each is the target's own first choice, and a
draft only decides how many of them one step finds. Ties go to the lowest token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import torch
from attrs import define, field, frozen

from executor.draft_runner import DraftRunner
from executor.errors import InputError
from executor.inputs.batch import ScheduledBatch
from executor.inputs.kv_cache import NULL_BLOCK
from executor.runner import TargetRunner
from executor.steps import DraftBatch, StepOutput
from planner.modes import CUDAGraphMode


class BlockPool:
    """Blocks of the cache that no request owns."""

    def __init__(self, num_blocks: int) -> None:
        self._free = list(range(num_blocks - 1, NULL_BLOCK, -1))

    @property
    def num_free(self) -> int:
        """Blocks left."""
        return len(self._free)

    def take(self, count: int) -> tuple[int, ...]:
        """Hands out ``count`` blocks.

        Raises:
            InputError: fewer are left.
        """
        if count > len(self._free):
            raise InputError(f"{count} blocks are needed, {len(self._free)} are left; give the cache more")
        return tuple(self._free.pop() for _ in range(count))

    def give_back(self, blocks: Sequence[int]) -> None:
        """Takes blocks back."""
        self._free.extend(reversed(blocks))


@frozen(kw_only=True)
class DecodeResult:
    """What was generated. The tuples have one item a prompt, in order.

    ``accepted`` counts, for each verification that followed a complete draft, the proposals that it
    confirmed; ``gaps`` are the differences of the two best logits where a token was chosen. ``modes``
    counts the target's steps by runtime mode.
    """

    tokens: tuple[tuple[int, ...], ...]
    accepted: tuple[tuple[int, ...], ...]
    gaps: tuple[tuple[float, ...], ...]
    modes: Mapping[CUDAGraphMode, int]

    @property
    def mean_acceptance(self) -> float:
        """Confirmed proposals a verification; 0 without any."""
        lengths = [length for request in self.accepted for length in request]
        return sum(lengths) / len(lengths) if lengths else 0.0


@frozen(kw_only=True)
class Comparison:
    """How two decodings of the same prompts differ, each prompt up to its first difference.

    ``num_equal`` tokens agree. ``near_ties`` are differences where the two best logits lie within the
    tolerance, ``faults`` all others, both as (prompt, token).
    """

    num_equal: int
    near_ties: tuple[tuple[int, int], ...]
    faults: tuple[tuple[int, int], ...]


def compare_tokens(plain: DecodeResult, other: DecodeResult, tolerance: float) -> Comparison:
    """Compares the tokens of ``other`` to those of ``plain``; ``tolerance`` is a difference of logits.

    Behind its first difference a prompt has another context, so that nothing there can be compared.
    """
    num_equal = 0
    near_ties: list[tuple[int, int]] = []
    faults: list[tuple[int, int]] = []
    for index, (expected, found) in enumerate(zip(plain.tokens, other.tokens, strict=True)):
        pairs = zip(expected, found, strict=True)
        first = next((place for place, (one, two) in enumerate(pairs) if one != two), len(expected))
        num_equal += first
        if first < len(expected):
            close = plain.gaps[index][first] <= tolerance
            (near_ties if close else faults).append((index, first))
    return Comparison(num_equal=num_equal, near_ties=tuple(near_ties), faults=tuple(faults))


@define(eq=False)
class _Request:
    """A prompt on its way. ``tokens`` are prompt and output, of which ``num_computed`` are in the cache."""

    index: int
    tokens: list[int]
    num_prompt: int
    most: int
    blocks: tuple[int, ...] = ()
    num_computed: int = 0
    drafts: tuple[int, ...] = ()
    accepted: list[int] = field(factory=list)
    gaps: list[float] = field(factory=list)

    @property
    def is_prefilling(self) -> bool:
        return self.num_computed < self.num_prompt

    @property
    def is_finished(self) -> bool:
        return len(self.tokens) >= self.num_prompt + self.most


@frozen
class _Piece:
    """What one request runs in a step: ``tokens``, of which the last ``num_drafts`` are proposals."""

    request: _Request
    tokens: tuple[int, ...]
    num_drafts: int

    @property
    def num_sampled(self) -> int:
        """Rows of the step whose choice counts: none ahead of the prompt's end."""
        request = self.request
        if not request.is_prefilling:
            return len(self.tokens)
        return 1 if request.num_computed + len(self.tokens) == request.num_prompt else 0


class SpeculativeDecoder:
    """Decodes prompts by steps of ``target``, drafted for by ``draft`` where one is given.

    A step has up to ``max_num_batched_tokens`` tokens, and up to ``prefill_chunk`` of one prompt. By
    default the runner's buffers are the limit.
    """

    def __init__(
        self,
        target: TargetRunner,
        draft: DraftRunner | None = None,
        *,
        max_num_batched_tokens: int | None = None,
        prefill_chunk: int | None = None,
    ) -> None:
        self.target, self.draft = target, draft
        most = target.buffers.max_num_tokens
        self.budget = most if max_num_batched_tokens is None else min(max_num_batched_tokens, most)
        self.prefill_chunk = self.budget if prefill_chunk is None else prefill_chunk
        reqs = target.buffers.max_num_reqs
        self.max_num_reqs = reqs if draft is None else min(reqs, draft.input_buffers.max_num_reqs)

    def generate(self, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> DecodeResult:
        """Continues every prompt by ``max_new_tokens`` tokens.

        Raises:
            InputError: a prompt is empty, or does not fit the cache with its continuation.
        """
        requests = [
            _Request(index, list(prompt), len(prompt), max_new_tokens) for index, prompt in enumerate(prompts)
        ]
        for request in requests:
            self._check(request)
        pool = BlockPool(self.target.kv_cache_config.num_blocks)
        modes: Counter[CUDAGraphMode] = Counter()
        waiting, running = list(reversed(requests)), list[_Request]()
        while self.goes_on(bool(waiting or running)):
            self._admit(waiting, running, pool)
            modes[self._step(running)] += 1
            for request in [request for request in running if request.is_finished]:
                running.remove(request)
                pool.give_back(request.blocks)
        return DecodeResult(
            tokens=tuple(tuple(request.tokens[request.num_prompt :]) for request in requests),
            accepted=tuple(tuple(request.accepted) for request in requests),
            gaps=tuple(tuple(request.gaps) for request in requests),
            modes=modes,
        )

    # What differs where several ranks decode together

    def goes_on(self, has_work: bool) -> bool:
        """Whether there is another step, when requests are left (``has_work``) or not."""
        return has_work

    def run_target(self, batch: ScheduledBatch) -> tuple[StepOutput, int | None]:
        """A step of the target, and the most requests of any data-parallel rank where there are several."""
        return self.target.step(batch), None

    def run_draft(self, batch: DraftBatch, aux_hidden_states: Sequence[torch.Tensor]) -> torch.Tensor:
        """The drafter's proposals for a step of the target."""
        if self.draft is None:
            raise InputError("there is no drafter; give the decoder one")
        return self.draft.step(batch, aux_hidden_states)

    def _check(self, request: _Request) -> None:
        length = request.num_prompt + request.most
        if not request.num_prompt or request.most < 1:
            raise InputError(f"prompt {request.index}: one token at least is given, and one is asked for")
        if length > self.target.max_model_len:
            raise InputError(
                f"prompt {request.index}: {length} tokens with its continuation; "
                f"max_model_len is {self.target.max_model_len}"
            )

    def _blocks_for(self, request: _Request) -> int:
        """Blocks of a whole request: its tokens, rejected proposals, and the drafter's queries ahead."""
        ahead = 0 if self.draft is None else 2 * self.draft.query_len
        length = min(request.num_prompt + request.most + ahead, self.target.max_model_len)
        return -(-length // self.target.kv_cache_config.block_size)

    def _admit(self, waiting: list[_Request], running: list[_Request], pool: BlockPool) -> None:
        while waiting and len(running) < self.max_num_reqs:
            count = self._blocks_for(waiting[-1])
            if count > pool.num_free and running:
                return
            request = waiting.pop()
            request.blocks = pool.take(count)
            running.append(request)

    def _step(self, running: Sequence[_Request]) -> CUDAGraphMode:
        pieces = tuple(self._schedule(running))
        batch = ScheduledBatch(
            token_ids=tuple(piece.tokens for piece in pieces),
            num_computed=tuple(piece.request.num_computed for piece in pieces),
            block_ids=tuple(piece.request.blocks for piece in pieces),
            is_prefilling=tuple(piece.request.is_prefilling for piece in pieces),
            num_drafts=tuple(piece.num_drafts for piece in pieces),
        )
        output, num_reqs_across_dp = self.run_target(batch)
        choices = self._choices(pieces, output.hidden_states)
        rejected = tuple(self._advance(piece, chosen) for piece, chosen in zip(pieces, choices, strict=True))
        if self.draft is not None:
            anchors = tuple(piece.request.tokens[piece.request.num_computed] for piece in pieces)
            drafting = DraftBatch(
                step=batch, num_rejected=rejected, anchors=anchors, num_reqs_across_dp=num_reqs_across_dp
            )
            proposals = self.run_draft(drafting, output.aux_hidden_states).tolist()
            for piece, drafts in zip(pieces, proposals, strict=True):
                piece.request.drafts = () if piece.request.is_prefilling else tuple(drafts)
        return output.mode

    def _schedule(self, running: Sequence[_Request]) -> Iterator[_Piece]:
        """Pieces of this step: requests in order while tokens are left in the budget."""
        left = self.budget
        for request in running:
            start = request.num_computed
            if request.is_prefilling:
                known = request.tokens[start : start + min(left, self.prefill_chunk)]
                drafts: Sequence[int] = ()
            else:
                known = request.tokens[start : start + left]
                room = min(left, self.target.max_model_len - start) - len(known)
                drafts = request.drafts[: max(room, 0)]
            if known:
                left -= len(known) + len(drafts)
                yield _Piece(request, (*known, *drafts), len(drafts))

    def _choices(self, pieces: Sequence[_Piece], hidden: torch.Tensor) -> Iterator[list[tuple[int, float]]]:
        """The target's choice, and its lead over the second, for the last rows of every piece."""
        rows: list[int] = []
        end = 0
        for piece in pieces:
            end += len(piece.tokens)
            rows.extend(range(end - piece.num_sampled, end))
        with torch.no_grad():
            chosen = hidden.index_select(0, torch.tensor(rows, dtype=torch.int64, device=hidden.device))
            logits = self.target.model.compute_logits(chosen)
            tokens = logits.argmax(-1).tolist()
            best = logits.float().topk(2, dim=-1).values
            gaps = (best[:, 0] - best[:, 1]).tolist()
        found = iter(zip(tokens, gaps, strict=True))
        for piece in pieces:
            yield [next(found) for _ in range(piece.num_sampled)]

    def _advance(self, piece: _Piece, choices: Sequence[tuple[int, float]]) -> int:
        """Takes over what the target confirmed; returns how many of the piece's tokens are rejected."""
        request = piece.request
        if not choices:
            request.num_computed += len(piece.tokens)
            return 0
        drafts = piece.tokens[len(piece.tokens) - piece.num_drafts :]
        accepted = 0
        while accepted < len(drafts) and drafts[accepted] == choices[accepted][0]:
            accepted += 1
        if self.draft is not None and len(drafts) == self.draft.query_len - 1:
            request.accepted.append(accepted)
        rejected = len(drafts) - accepted
        request.num_computed += len(piece.tokens) - rejected
        found = choices[: accepted + 1][: request.num_prompt + request.most - len(request.tokens)]
        request.tokens.extend(token for token, _ in found)
        request.gaps.extend(gap for _, gap in found)
        # A finished request may have computed tokens that it no longer wants.
        request.num_computed = min(request.num_computed, len(request.tokens) - 1)
        return rejected
