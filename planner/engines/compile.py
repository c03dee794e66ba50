"""Plans of the engines beside vLLM: each by rules of its own, verified in the same way."""

from __future__ import annotations

from attrs import evolve

from planner.documents.deployment import Deployment
from planner.documents.digest import plan_digest
from planner.documents.plan import Decision, Plan
from planner.documents.traffic import without_traffic
from planner.engines.registry import compiled_by_engine
from planner.engines.shared import engine_faults, engine_name
from planner.errors import PlanError
from planner.estimate import estimate
from planner.rules.devices import device_findings
from planner.rules.entries import MAX_ENTRIES
from planner.rules.settings import SUPPORTED_ENGINES
from planner.verify import verify


def refuse_settings_of_other_engines(deployment: Deployment) -> None:
    """Refuse what the deployment's engine does not take.

    Raises:
        PlanError: there is such a setting.
    """
    for fault in engine_faults(deployment):
        raise PlanError(fault.message, fields=(fault.path,))


def compile_for_engine(deployment: Deployment) -> Plan:
    """The plan of a deployment of another engine than vLLM.

    Raises:
        PlanError: the engine would refuse to start, or would capture more graphs than a plan takes.
    """
    name, deployment = engine_name(deployment), without_traffic(deployment)
    compiled = compiled_by_engine(deployment)
    if sum(len(family.entries) for family in compiled.families) > MAX_ENTRIES:
        raise PlanError(f"{name} would capture more than {MAX_ENTRIES} graphs", fields=("engine.name",))
    resolved = {family.name: family.resolved for family in compiled.families}
    graphs = {family.name: family.entries for family in compiled.families}
    plan = Plan(
        name=deployment.name,
        digest=plan_digest(deployment, resolved, graphs),
        deployment=deployment,
        resolved=resolved,
        decisions=(
            *_version(deployment, name),
            *compiled.decisions,
            *(decision for family in compiled.families for decision in family.decisions),
        ),
        graphs=graphs,
    )
    findings = (*device_findings(deployment.device), *compiled.findings, *verify(plan))
    return evolve(plan, findings=findings, estimates=estimate(plan))


def _version(deployment: Deployment, name: str) -> tuple[Decision, ...]:
    if deployment.engine.version is not None:
        return ()
    newest, because = SUPPORTED_ENGINES[name][-1], "the newest version whose rules are known"
    return (Decision(path="engine.version", became=newest, rule="engine-default", because=because),)
