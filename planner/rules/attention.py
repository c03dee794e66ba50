"""What attention can replay: the minimum over all KV groups, the draft's own, and where it comes from.

A support level that the user writes wins over the engine's own selection by model and device
(planner.backends), that over backend names alone, and those over an assumption.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from attrs import evolve, frozen

from planner.documents.deployment import Deployment, unless_auto
from planner.documents.plan import AttentionGroup, Finding, Severity
from planner.errors import PlanError
from planner.modes import AttentionSupport
from planner.rules.settings import Settings

if TYPE_CHECKING:
    from planner.backends.groups import BackendGroup
    from planner.models.facts import ModelFacts

ASSUMED_CAPABILITY = (9, 0)
MAX_KV_GROUPS = 256
"""Most KV groups of a model: far above any real one, as each family of a plan lists them."""

DRAFT_BACKEND_FIELD = "speculative.attention_backend"


@frozen(kw_only=True)
class Attention:
    """Attention of one deployment.

    ``support`` is the minimum over all groups, drafts included; ``deciding`` names the group that
    sets it. ``draft_support`` is that of the draft's layers alone. ``varlen_max_query_len`` bounds
    the query length of FULL graphs over mixed lengths, ``None`` where there are none.
    """

    support: AttentionSupport
    deciding: str | None = None
    draft_support: AttentionSupport = AttentionSupport.ALWAYS
    varlen_max_query_len: int | None = None
    groups: tuple[AttentionGroup, ...] = ()
    draft_groups: tuple[AttentionGroup, ...] = ()
    findings: tuple[Finding, ...] = ()


def attention_of(deployment: Deployment, settings: Settings) -> Attention:
    """What the attention of ``deployment`` can replay.

    Raises:
        PlanError: the engine refuses the settings, or no backend of a given name is known.
    """
    model = deployment.model
    backend = deployment.attention_backend
    if model.attention_support is not None:
        found = Attention(support=model.attention_support)
    elif settings.target is not None and not model.attention_backends:
        found = _selected(deployment, settings, settings.target)
    elif names := _written_backends(deployment, backend):
        found = _named(deployment, settings, names)
    else:
        found = Attention(support=AttentionSupport.ALWAYS, findings=(_ASSUMED_SUPPORT,))
    if model.varlen_max_query_len is not None:
        found = evolve(found, varlen_max_query_len=model.varlen_max_query_len)
    found = _with_draft_as_written(deployment, settings, found)
    return found if model.attention_support is not None else _least(found)


def _least(found: Attention) -> Attention:
    """``found`` at the minimum of its groups, with the first group that sets it."""
    support, deciding = found.support, found.deciding
    for group in found.groups:
        if group.support < support:
            support, deciding = group.support, f"{group.kind}:{group.backend}"
    return evolve(found, support=support, deciding=deciding)


def _with_draft_as_written(deployment: Deployment, settings: Settings, found: Attention) -> Attention:
    """``found`` with what the user says of the draft's layers in place of what was derived for them."""
    speculative = deployment.speculative
    if speculative is None:
        return found
    support, backend = speculative.attention_support, unless_auto(speculative.attention_backend)
    if support is None:
        derived = settings.target is not None and deployment.model.attention_support is None
        if backend is None or derived:
            return found
        named = _support_of(deployment, settings, WrittenBackend(backend, DRAFT_BACKEND_FIELD))
        support = named.support
        found = evolve(found, findings=(*found.findings, *named.findings))
    written = AttentionGroup(kind="draft", backend=backend or "as written", support=support)
    others = tuple(group for group in found.groups if group not in found.draft_groups)
    return evolve(found, draft_support=support, groups=(*others, written), draft_groups=(written,))


def _selected(deployment: Deployment, settings: Settings, target: ModelFacts) -> Attention:
    """The engine's own selection for the model."""
    from planner.backends.request import backend_request
    from planner.backends.selection import select_backends

    capability, assumed = _capability(settings)
    selection = select_backends(
        backend_request(
            deployment,
            target=target,
            draft=settings.draft,
            compute_capability=capability,
            runner=settings.runner,
        )
    )
    return Attention(
        support=AttentionSupport.ALWAYS,
        draft_support=selection.draft_support or AttentionSupport.ALWAYS,
        varlen_max_query_len=selection.varlen_max_query_len,
        groups=_as_groups(selection.groups),
        draft_groups=_as_groups(selection.draft_groups),
        findings=(*_assumptions(selection.assumptions), *assumed),
    )


def _as_groups(groups: Iterable[BackendGroup]) -> tuple[AttentionGroup, ...]:
    return tuple(
        AttentionGroup(
            kind=f"draft {group.kind}" if group.draft else str(group.kind),
            backend=group.backend,
            support=group.support,
        )
        for group in groups
    )


@frozen
class WrittenBackend:
    """A backend that the user names, the setting that names it, and for which kind of layers."""

    name: str
    field: str
    kind: str = "named"


def _written_backends(deployment: Deployment, backend: str | None) -> tuple[WrittenBackend, ...]:
    """The backends that the user names, ``backend`` the one for all layers.

    Without a model all of them are taken to have layers.

    Raises:
        PlanError: a kind that vLLM does not have, or too many names.
    """
    from planner.backends.request import PER_KIND_FIELD, backends_per_kind

    names = deployment.model.attention_backends or ()
    if len(names) > MAX_KV_GROUPS:
        message = f"{len(names)} backends are named, one a KV group; planning takes at most {MAX_KV_GROUPS}"
        raise PlanError(message, fields=("model.attention_backends",))
    if names:
        return tuple(WrittenBackend(name, "model.attention_backends") for name in names)
    for_all = () if backend is None else (WrittenBackend(backend, deployment.attention_backend_field),)
    return (
        *for_all,
        *(
            WrittenBackend(name, f"{PER_KIND_FIELD}.{kind}", kind)
            for kind, name in backends_per_kind(deployment).items()
            if unless_auto(name)
        ),
    )


def _named(deployment: Deployment, settings: Settings, names: Sequence[WrittenBackend]) -> Attention:
    """What the backends that the user names replay, as far as names tell."""
    found = [_support_of(deployment, settings, written) for written in names]
    bounds = [each.varlen_max_query_len for each in found if each.support is not AttentionSupport.ALWAYS]
    known_bounds = [bound for bound in bounds if bound is not None]
    findings = [finding for each in found for finding in each.findings]
    return Attention(
        support=AttentionSupport.ALWAYS,
        varlen_max_query_len=min(known_bounds) if known_bounds and len(known_bounds) == len(bounds) else None,
        groups=tuple(group for each in found for group in each.groups),
        findings=tuple(dict.fromkeys(findings)),
    )


def _support_of(deployment: Deployment, settings: Settings, written: WrittenBackend) -> Attention:
    """What one named backend replays on the deployment's device."""
    from planner.backends.named import support_of_backend_name
    from planner.backends.request import deployment_environment

    capability, assumed = _capability(settings)
    environment = deployment_environment(deployment, compute_capability=capability, runner=settings.runner)
    named = support_of_backend_name(written.name, environment, field=written.field)
    return Attention(
        support=named.support,
        varlen_max_query_len=named.varlen_max_query_len,
        groups=(AttentionGroup(kind=written.kind, backend=written.name.upper(), support=named.support),),
        findings=(*_assumptions(named.assumptions), *assumed),
    )


def _capability(settings: Settings) -> tuple[tuple[int, int], tuple[Finding, ...]]:
    """The device's compute capability; one that is not known is assumed, and that is a finding."""
    capability = settings.device.compute_capability
    return (ASSUMED_CAPABILITY, (_ASSUMED_DEVICE,)) if capability is None else (capability, ())


def _assumptions(assumptions: Iterable[str]) -> tuple[Finding, ...]:
    text = "; ".join(assumptions)
    if not text:
        return ()
    return (Finding(severity=Severity.INFO, code="assumed-installation", message=f"assumed: {text}"),)


_ASSUMED_SUPPORT = Finding(
    severity=Severity.INFO,
    code="assumed-attention-support",
    message="neither a model nor an attention backend is given: attention support ALWAYS is assumed",
    fix="model.config, model.attention_backend or model.attention_support",
)
_ASSUMED_DEVICE = Finding(
    severity=Severity.WARNING,
    code="assumed-device",
    message="device.compute_capability is not given: backends are those of 9.0 (Hopper)",
    fix='device.compute_capability: "9.0"',
)
