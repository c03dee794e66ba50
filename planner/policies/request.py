"""What a policy is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from attrs import frozen

from planner.describe import counted
from planner.documents.deployment import Deployment
from planner.documents.plan import Decision, Finding
from planner.errors import PlanError
from planner.modes import CUDAGraphMode, Runner
from planner.policies.needs import Need, Needs, needs_of
from planner.policies.prune import plan_of, pruned, surveys_of
from planner.rules.family import Family
from planner.rules.settings import Settings
from planner.rules.sizes import MAX_FIELD, TOKENS_FIELD, CaptureSizes
from planner.verify.holes import HoleGroup, grouped_decode_holes
from planner.verify.survey import Survey

Build = Callable[[Sequence[int]], tuple[Family, ...]]
"""The families that the engine's rules make of capture sizes."""


@frozen(slots=False)
class PolicyRequest:
    """A deployment whose mode is resolved, and the sizes that the engine itself would use for it."""

    deployment: Deployment
    settings: Settings
    mode: CUDAGraphMode
    engine_sizes: CaptureSizes
    build: Build

    @cached_property
    def engine(self) -> Outcome:
        """What the engine would capture, dead graphs included."""
        families = self.build(self.engine_sizes.sizes)
        return Outcome(self.engine_sizes.sizes, families, surveys_of(self.deployment, families))

    @cached_property
    def needs(self) -> Needs:
        """What the sizes have to cover."""
        return needs_of(plan_of(self.deployment, self.engine.families), self.settings)

    @property
    def has_mixed(self) -> bool:
        """Whether batches with prefill run in graphs."""
        return self.mode.mixed_mode() is not CUDAGraphMode.NONE

    @property
    def asked_max(self) -> int | None:
        """The maximum that the user wrote."""
        return self.deployment.compilation.max_cudagraph_capture_size

    def outcome(self, sizes: Sequence[int]) -> Outcome:
        """What is captured with ``sizes``."""
        families = pruned(self.deployment, self.build(sizes))
        return Outcome(tuple(sizes), families, surveys_of(self.deployment, families))

    def maximum(self, default: int) -> int:
        """The largest size: the user's, else the widest decode batch and at least ``default``, aligned.

        Raises:
            PlanError: the user's cannot be kept, or is smaller than a decode batch.
        """
        needs, asked = self.needs, self.asked_max
        length = max((need.query_len for need in needs.all), default=1)
        if asked is None:
            unit = mixed_unit(needs)
            return max(needs.num_tokens, default // unit * unit)
        limit = self.settings.max_num_batched_tokens
        if asked > limit:
            raise PlanError(
                f"{asked} is asked as maximum, but a step has at most {limit} tokens; lower the one or raise "
                "the other",
                fields=(MAX_FIELD, TOKENS_FIELD),
            )
        if self.settings.runner is Runner.V1 and asked % length:
            raise PlanError(
                f"{asked} is asked as maximum, but the v1 runner captures whole requests of {length} tokens; "
                f"write {-(-asked // length) * length}",
                fields=(MAX_FIELD,),
            )
        if asked < needs.num_tokens:
            need = max(needs.all, key=lambda need: need.num_tokens)
            raise PlanError(
                f"{asked} is asked as maximum, but decode of {counted(need.widest, 'request')} of "
                f"{need.query_len} has {counted(need.num_tokens, 'token')}; raise it to that, lower "
                "max_num_seqs, or set policy engine",
                fields=(MAX_FIELD, "capture.policy"),
            )
        return asked


def mixed_unit(needs: Needs) -> int:
    """What sizes beyond those of decode are multiples of: the longest decode request, and the alignment."""
    longest = max((need.query_len for need in needs.all), default=1)
    return needs.alignment.whole(Need(longest, needs.max_num_seqs))


@frozen(slots=False)
class Outcome:
    """Capture sizes, the graphs that follow from them, and what those cover."""

    sizes: tuple[int, ...]
    families: tuple[Family, ...]
    surveys: tuple[Survey, ...]

    @cached_property
    def holes(self) -> tuple[tuple[Survey, HoleGroup], ...]:
        """Decode batches without the FULL graph that they should have."""
        return tuple((survey, group) for survey in self.surveys for group in grouped_decode_holes(survey))

    @property
    def num_graphs(self) -> int:
        """Entries of all families."""
        return sum(len(family.entries) for family in self.families)

    @cached_property
    def worst_padding(self) -> float:
        """The largest padded share of a uniform decode batch in a graph, from 0 to 1."""
        return max(
            (
                1 - segment.fewest * length / segment.entry.num_tokens
                for survey in self.surveys
                for group in survey.groups
                for coverage in group.coverages
                if (length := coverage.batches.query_len) is not None and coverage.batches.num_ubatches == 1
                for segment in coverage.served
            ),
            default=0.0,
        )

    def is_within(self, other: Outcome) -> bool:
        """Whether no family has more graphs than that of ``other``."""
        counts = {family.name: len(family.entries) for family in other.families}
        return all(len(family.entries) <= counts.get(family.name, 0) for family in self.families)


@frozen
class Choice:
    """What a policy chose: its outcome, why, and what a person should know of what it was chosen for."""

    outcome: Outcome
    decisions: tuple[Decision, ...]
    findings: tuple[Finding, ...] = ()
