"""SGLang: deployment -> settings -> captured sizes -> families."""

from __future__ import annotations

from planner.documents.deployment import Deployment
from planner.engines.compiled import Compiled
from planner.engines.sglang.families import families_of
from planner.engines.sglang.findings import findings_of, refuse_token_keyed_graphs
from planner.engines.sglang.settings import settle


def compile_sglang(deployment: Deployment) -> Compiled:
    """What an SGLang server would capture.

    Raises:
        PlanError: the engine would refuse to start, or die of its capture.
    """
    refuse_token_keyed_graphs(deployment)
    settings = settle(deployment)
    return Compiled(
        families=families_of(deployment, settings),
        decisions=settings.decisions,
        findings=tuple(findings_of(deployment, settings)),
    )
