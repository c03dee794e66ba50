"""The digest of a plan: equal for plans that capture the same graphs for the same deployment."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

from planner.descriptors import PlanEntry
from planner.documents.data import entry_data, plain
from planner.documents.deployment import Deployment, Json
from planner.documents.plan import Plan, ResolvedFamily

PREFIX = "sha256:"


def canonical_json(data: Json) -> bytes:
    """The one JSON text of ``data`` that digests are taken over."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")


def plan_digest(
    deployment: Deployment,
    resolved: Mapping[str, ResolvedFamily],
    graphs: Mapping[str, Sequence[PlanEntry]],
) -> str:
    """SHA-256 over the canonical JSON of what decides a capture.

    The deployment's name does not, nor does where its traffic lies: the digest of what was counted does.
    """
    described = plain(deployment)
    described.pop("name", None)
    if "traffic_sha256" in (capture := described.get("capture", {})):
        capture.pop("traffic", None)
    entries = {family: [entry_data(entry) for entry in graph] for family, graph in graphs.items()}
    data = {"deployment": described, "resolved": plain(resolved), "graphs": entries}
    return PREFIX + hashlib.sha256(canonical_json(data)).hexdigest()


def is_edited(plan: Plan) -> bool:
    """Whether the plan was changed after its digest was taken; one without a digest was not."""
    return plan.digest is not None and plan.digest != plan_digest(plan.deployment, plan.resolved, plan.graphs)
