"""The traffic that a plan was compiled for, read again: a plan keeps the SHA-256 of its counts only."""

from __future__ import annotations

from pathlib import Path

from attrs import frozen

from planner.documents.deployment import Deployment
from planner.documents.plan import Finding, Plan, Severity
from planner.documents.traffic import FROM_CACHE, OtherTrafficError, with_traffic
from planner.errors import GraphplanError
from planner.modes import CapturePolicy

NOT_COMPARED = "whether the plan is current was not looked at"


@frozen
class OwnTraffic:
    """The ``deployment`` of a plan with its traffic; where that is not to be had, ``finding`` says why."""

    deployment: Deployment
    finding: Finding | None = None


def own_traffic(plan: Plan, folder: Path) -> OwnTraffic:
    """The deployment of ``plan`` as it was compiled; relative names of files start at ``folder``."""
    capture = plan.deployment.capture
    if capture.policy is not CapturePolicy.TRAFFIC or capture.traffic_sha256 is None:
        return OwnTraffic(plan.deployment)
    if capture.traffic in (None, FROM_CACHE):
        source = "the counts of a cache" if capture.traffic else "counts that are in no file"
        return _without(plan, Severity.INFO, "traffic-not-read", f"the plan was made for {source}")
    try:
        return OwnTraffic(with_traffic(plan.deployment, folder))
    except OtherTrafficError as error:
        return _without(
            plan,
            Severity.WARNING,
            "traffic-changed",
            f"{capture.traffic} counts other traffic than the plan was made for: its SHA-256 is "
            f"{error.digest}, not {capture.traffic_sha256}",
            f"planner compile PLAN --traffic {capture.traffic} -o PLAN, or bring back the old file",
        )
    except GraphplanError as error:
        is_gone = not (folder / capture.traffic).exists()
        severity = Severity.INFO if is_gone else Severity.WARNING
        return _without(
            plan, severity, "traffic-not-read", f"the traffic that the plan was made for: {error}"
        )


def _without(plan: Plan, severity: str, code: str, message: str, fix: str | None = None) -> OwnTraffic:
    finding = Finding(severity=severity, code=code, message=f"{message}; {NOT_COMPARED}", fix=fix)
    return OwnTraffic(plan.deployment, finding)
