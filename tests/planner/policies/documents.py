"""Deployments and traffic that tests of policies are written with."""

from __future__ import annotations

from typing import Any

from planner import Deployment, Plan, compile_plan, load_deployment
from planner.documents.plan import TARGET, Decision, Finding
from planner.traffic.histogram import Histogram, HistogramRow, histogram_of

HOLES = ("decode-hole", "shadowed-by-tier", "mixed-hole", "misaligned-size")
UNWANTED = (*HOLES, "unreachable-entry", "unverified", "draft-buffer", "duplicate-entry", "dp-disagreement")


def deployed(policy: str = "covering", **sections: Any) -> Deployment:
    """A deployment under ``policy``; ``capture`` may say more about it."""
    capture = {"policy": policy, **sections.pop("capture", {})}
    document = {"apiVersion": "graphplan/v1", "kind": "Deployment", **sections, "capture": capture}
    return load_deployment(document)


def compiled(policy: str = "covering", **sections: Any) -> Plan:
    return compile_plan(deployed(policy, **sections))


def sizes_of(plan: Plan) -> tuple[int, ...]:
    return plan.resolved[TARGET].cudagraph_capture_sizes


def unwanted(plan: Plan) -> list[str]:
    """What no plan of a policy may have."""
    return [finding.message for finding in plan.findings if finding.code in UNWANTED]


def decision(plan: Plan, rule: str) -> Decision:
    (found,) = [one for one in plan.decisions if one.rule == rule]
    return found


def finding(plan: Plan, code: str) -> Finding:
    (found,) = [one for one in plan.findings if one.code == code]
    return found


def counted(*spans: dict[int, int]) -> Histogram:
    """Decode steps by requests, one mapping a time span."""
    return histogram_of(
        [
            [HistogramRow(num_tokens=reqs, num_reqs=reqs, count=count) for reqs, count in span.items()]
            for span in spans
        ]
    )
