"""KV connectors that work layer by layer, so that no whole forward can be recorded around them.

Source: vLLM 0.33, what a connector's class says of CUDA graphs (rules 3.5). LMCache's looks at one key of
its extra settings alone; LMCache itself has other switches for the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attrs import frozen

from planner.documents.deployment import Deployment, Json
from planner.documents.plan import Finding, Severity
from planner.errors import PlanError
from planner.modes import CUDAGraphMode

LMCACHE = "LMCacheConnectorV1"
LAYERWISE_KEY = "use_layerwise"
LMCACHE_KEY = "lmcache.use_layerwise"
LMCACHE_ENV = "LMCACHE_USE_LAYERWISE"

CHILDREN = {"MultiConnector": "connectors"}
"""Connectors that consist of others, and the key of their extra settings that lists those."""

MAX_NESTING = 8
"""Up to how many connectors are looked for inside each other; real ones have one level."""


ROLE_FIELD = "kv_transfer.kv_role"
ROLES = ("kv_both", "kv_producer", "kv_consumer")


@frozen(kw_only=True)
class KvConnector:
    """One connector; ``path`` is its dotted place in the deployment."""

    name: str
    extra: Mapping[str, Json]
    path: str


def refuse_connector_without_role(deployment: Deployment) -> None:
    """Refuse a connector that is not told whether it sends, receives or does both.

    Raises:
        PlanError: the role is missing, or is none that the engine knows.
    """
    section = deployment.kv_transfer
    role = section.ignored.get("kv_role")
    if role is None and section.kv_connector is None:
        return
    if role not in ROLES:
        fault = "has no role" if role is None else f"has the role {role!r}, which the engine does not know"
        raise PlanError(
            f"the KV connector {fault}; set kv_role to {', '.join(ROLES[:-1])} or {ROLES[-1]}",
            fields=(ROLE_FIELD, "kv_transfer.kv_connector"),
        )


def layerwise_connector(deployment: Deployment) -> str | None:
    """The name of the connector that makes the engine record pieces only, ``None`` without one."""
    names = (connector.name for connector in connectors_of(deployment) if _says_layerwise(connector))
    return next(names, None)


def connectors_of(deployment: Deployment) -> tuple[KvConnector, ...]:
    """The connectors of a deployment, those inside others included."""
    section = deployment.kv_transfer
    if section.kv_connector is None:
        return ()
    outer = KvConnector(
        name=section.kv_connector, extra=section.kv_connector_extra_config, path="kv_transfer"
    )
    return (outer, *_inside(outer, MAX_NESTING))


def connector_findings(deployment: Deployment, mode: CUDAGraphMode) -> Iterator[Finding]:
    """What a person should know of the connectors beside the resolved ``mode``."""
    if not mode.has_full_cudagraphs():
        return
    by_env = deployment.engine.env.get(LMCACHE_ENV, "").strip().casefold() in ("1", "true", "yes", "on")
    for connector in connectors_of(deployment):
        switch = LMCACHE_KEY if connector.extra.get(LMCACHE_KEY) is True else LMCACHE_ENV if by_env else None
        if connector.name == LMCACHE and switch is not None:
            yield Finding(
                severity=Severity.WARNING,
                code="layerwise-connector-unseen",
                message=f"{switch} makes {LMCACHE} wait for each layer inside FULL graphs ({mode}), which "
                f"cannot be recorded: the engine looks at the extra setting {LAYERWISE_KEY} alone",
                fix=f"{connector.path}.kv_connector_extra_config.{LAYERWISE_KEY}: true",
            )
    module = deployment.kv_transfer.kv_connector_module_path
    if module is not None:
        yield Finding(
            severity=Severity.INFO,
            code="assumed-kv-connector",
            message=f"the KV connector {deployment.kv_transfer.kv_connector} of {module} is taken to go with "
            "FULL graphs",
        )


def _says_layerwise(connector: KvConnector) -> bool:
    """Whether the connector's class asks for pieces."""
    return connector.name == LMCACHE and bool(connector.extra.get(LAYERWISE_KEY))


def _inside(connector: KvConnector, levels: int) -> Iterator[KvConnector]:
    key = CHILDREN.get(connector.name)
    children = connector.extra.get(key) if key is not None and levels else None
    if not isinstance(children, list | tuple):
        return
    for index, child in enumerate(children):
        name = child.get("kv_connector") if isinstance(child, Mapping) else None
        extra = child.get("kv_connector_extra_config") if isinstance(child, Mapping) else None
        if isinstance(name, str):
            found = KvConnector(
                name=name,
                extra=extra if isinstance(extra, Mapping) else {},
                path=f"{connector.path}.kv_connector_extra_config.{key}[{index}]",
            )
            yield found
            yield from _inside(found, levels - 1)
