"""What capture sizes decide and a user should know: holes, padding beyond buffers, sizes not kept."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from planner.documents.plan import TARGET, Finding
from planner.rules.encoder import ENCODER
from planner.rules.sizes import SizeRequest
from planner.verify.buffers import DRAFT_BUFFER, PaddedDecode, padded_decode
from planner.verify.holes import HoleGroup, MixedHole, grouped_decode_holes, grouped_mixed_holes
from planner.verify.sizing import sizes_found
from planner.verify.survey import Survey


@frozen
class MixedGroup:
    """Mixed holes and the LoRA cases that have them in common (none named: all)."""

    holes: tuple[MixedHole, ...]
    cases: tuple[int, ...]


@frozen
class Problems:
    """The problems of all families, each with the survey of its family, in the order of the plan."""

    surveys: tuple[Survey, ...]
    decode: tuple[tuple[Survey, HoleGroup], ...]
    mixed: tuple[tuple[Survey, MixedGroup], ...]
    padded: tuple[tuple[Survey, PaddedDecode], ...]
    sizes: tuple[Finding, ...]

    @property
    def any(self) -> bool:
        """Whether there are any."""
        return bool(self.num_holes or self.codes)

    @property
    def num_holes(self) -> int:
        """How many kinds of batches lack their graph."""
        return len(self.decode) + len(self.mixed)

    @property
    def codes(self) -> frozenset[str]:
        """The codes of the others."""
        return frozenset((*(DRAFT_BUFFER for _ in self.padded), *(found.code for found in self.sizes)))

    @property
    def target(self) -> Survey | None:
        """The survey of the target."""
        return next((survey for survey in self.surveys if survey.family == TARGET), None)


def problems_of(surveys: Sequence[Survey], request: SizeRequest | None) -> Problems:
    """The problems of a plan; ``request`` is what its capture sizes followed from, if it says so.

    An encoder's batches are images, of which requests and their tokens tell nothing.
    """
    surveys = tuple(survey for survey in surveys if survey.family != ENCODER)
    target = next((survey for survey in surveys if survey.family == TARGET), None)
    return Problems(
        surveys=surveys,
        decode=tuple((survey, group) for survey in surveys for group in grouped_decode_holes(survey)),
        mixed=tuple(
            (survey, MixedGroup(holes, cases))
            for survey in surveys
            for holes, cases in grouped_mixed_holes(survey)
        ),
        padded=tuple((survey, padded) for survey in surveys if (padded := padded_decode(survey))),
        sizes=tuple(sizes_found(target, request, surveys)) if target and request else (),
    )
