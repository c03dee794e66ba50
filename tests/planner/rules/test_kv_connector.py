"""KV connectors that the engine refuses to start with."""

from __future__ import annotations

import pytest

from planner import PlanError, compile_plan, load_deployment
from planner.documents.deployment import Deployment, KvTransferSection

BEGINNING = "apiVersion: graphplan/v1\nkind: Deployment\nkv_transfer: "


def test_a_connector_without_a_role_is_refused() -> None:
    with pytest.raises(PlanError, match="set kv_role to kv_both, kv_producer or kv_consumer") as caught:
        compile_plan(load_deployment(BEGINNING + "{kv_connector: NixlConnector}\n"))
    assert caught.value.fields == ("kv_transfer.kv_role", "kv_transfer.kv_connector")


def test_a_role_that_the_engine_does_not_know_is_refused() -> None:
    section = KvTransferSection(kv_connector="NixlConnector", ignored={"kv_role": "both"})
    with pytest.raises(PlanError, match="the role 'both', which the engine does not know"):
        compile_plan(Deployment(kv_transfer=section))


@pytest.mark.parametrize("role", ["kv_producer", "kv_consumer", "kv_both"])
def test_each_role_is_taken(role: str) -> None:
    section = f"{{kv_connector: NixlConnector, kv_role: {role}}}\n"
    assert compile_plan(load_deployment(BEGINNING + section)).graphs["target"]


def test_without_a_connector_no_role_is_needed() -> None:
    assert compile_plan(load_deployment(BEGINNING + "{}\n")).graphs["target"]
