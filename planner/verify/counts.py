"""How many graphs a plan records: a PIECEWISE entry is one for each piece of the model.

Source: vLLM 0.33, which cuts a compiled model at the attention of each layer (rules 11.4).
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.documents.deployment import Deployment
from planner.documents.plan import TARGET, Finding, Severity
from planner.estimate.shape import family_shape
from planner.verify.survey import Survey


def graph_count_found(survey: Survey) -> Iterator[Finding]:
    """The number of recorded graphs of a vLLM family with PIECEWISE entries."""
    pieces = sum(len(group.cases) * sum(not full for full, *_ in group.shapes) for group in survey.groups)
    if not pieces or survey.domain.lookup is not None:
        return
    full, layers = len(survey.entries) - pieces, _num_layers(survey.plan.deployment, survey.family)
    message = f"{pieces} PIECEWISE and {full} FULL entries"
    if layers is None:
        message += "; a PIECEWISE entry records one graph more than the model has layers"
    else:
        total = pieces * (layers + 1) + full
        message += f" record {total} graphs, {layers + 1} for each PIECEWISE entry of {layers} layers"
    yield Finding(severity=Severity.INFO, code="graph-count", message=f"graphs.{survey.family}: {message}")


def _num_layers(deployment: Deployment, family: str) -> int | None:
    """Layers at which a rank's model is cut, where its config says so."""
    draft = deployment.speculative
    config = deployment.model.config if family == TARGET else draft and draft.config
    shape = family_shape(deployment, family)
    return None if config is None or shape.is_assumed else shape.num_breaks
