"""The model that an export is started with, compared with the one that its plan was made for."""

from __future__ import annotations

import os

from attrs import evolve, frozen

from planner.documents.deployment import Deployment, HfConfig
from planner.documents.load import load_deployment
from planner.documents.plan import Plan
from planner.errors import DocumentError, ExportError
from planner.exporters.check import planned_again
from planner.exporters.exported import Exported
from planner.importers.model_configs import find_model_config


@frozen
class ServedModel:
    """A model by the name that the command line has for it, with its config."""

    name: str
    config: HfConfig


def known_model(name: str) -> ServedModel | None:
    """The model ``name`` where its config is shipped, in a folder, or in the hub's cache."""
    try:
        found = find_model_config(name, os.environ)
        if found is None:
            return None
        document = {
            "apiVersion": "graphplan/v1",
            "kind": "Deployment",
            "model": {"config": str(found.path.resolve())},
        }
        config = load_deployment(document).model.config
    except DocumentError:
        # A path on the machine of the server, or a file that is no config: nothing to compare with.
        return None
    return None if config is None else ServedModel(name, config)


def served_note(
    exported: Exported, form: str, deployment: Deployment, captured: Plan, served: ServedModel | None
) -> str | None:
    """A remark where another model is served than that of ``deployment``, of which ``captured`` is the plan.

    Raises:
        ExportError: the engine captures other graphs with it, or does not start.
    """
    own = deployment.model.config
    if served is None or (own is not None and own.facts == served.config.facts):
        return None
    model = evolve(deployment.model, config=served.config)
    advice = "compile a plan for it, or name the plan's own model"
    try:
        plan = planned_again(exported, form, evolve(deployment, model=model))
    except ExportError as error:
        raise ExportError(
            f"--model {served.name} is another model than the plan's: {error.message}; {advice}",
            fields=("model.config",),
        ) from None
    if dict(plan.graphs) != dict(captured.graphs):
        if own is None:
            return f"the plan names no model; with {served.name}, other graphs are captured; {advice}"
        raise ExportError(
            f"--model {served.name} is another model than the plan's, and other graphs are captured with it; "
            f"{advice}",
            fields=("model.config",),
        )
    if own is None:
        return None
    return f"{served.name} is another model than the plan's; its graphs are of the same sizes"
