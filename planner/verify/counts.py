"""How many graphs a plan records: a PIECEWISE entry is one for each piece of the model.

Source: vLLM 0.33, which cuts a compiled model at the attention of each layer (rules 11.4).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from planner.documents.deployment import HfConfig
from planner.documents.plan import TARGET, Finding, Severity
from planner.verify.survey import Survey


def graph_count_found(survey: Survey) -> Iterator[Finding]:
    """The number of recorded graphs of a vLLM family with PIECEWISE entries."""
    pieces = sum(len(group.cases) * sum(not full for full, *_ in group.shapes) for group in survey.groups)
    if not pieces or survey.domain.lookup is not None:
        return
    full, deployment = len(survey.entries) - pieces, survey.plan.deployment
    if survey.family == TARGET:
        config = deployment.model.config
    else:
        config = deployment.speculative.config if deployment.speculative else None
    layers = _num_layers(config)
    message = f"{pieces} PIECEWISE and {full} FULL entries"
    if layers is None:
        message += "; a PIECEWISE entry records one graph more than the model has layers"
    else:
        total = pieces * (layers + 1) + full
        message += f" record {total} graphs, {layers + 1} for each PIECEWISE entry of {layers} layers"
    yield Finding(severity=Severity.INFO, code="graph-count", message=f"graphs.{survey.family}: {message}")


def _num_layers(config: HfConfig | None) -> int | None:
    """Layers of the language model inside, where its config says so plainly."""
    facts = config.facts if config else {}
    text = facts.get("text_config")
    for place in (text if isinstance(text, Mapping) else {}, facts):
        layers = place.get("num_hidden_layers")
        if isinstance(layers, int) and not isinstance(layers, bool) and layers > 0:
            return layers
    return None
