"""From a deployment to the selection of its backends, and on to the mode that they allow."""

from collections.abc import Callable

import pytest
from attrs import frozen

from planner.backends.request import BackendRequest, backend_request
from planner.backends.selection import BackendSelection, select_backends
from planner.documents.deployment import Deployment
from planner.models.facts import ModelFacts, model_facts
from planner.modes import AttentionSupport, CompilationMode, CUDAGraphMode, Runner
from planner.rules.devices import device_of
from planner.rules.mode import ModeState, SupportRequest, mode_within_support
from planner.rules.runner import choose_runner


@frozen
class Selected:
    """One deployment's request and selection, and the runner that was chosen for it."""

    runner: Runner
    request: BackendRequest
    selection: BackendSelection

    def mode(
        self, requested: CUDAGraphMode, compile_mode: CompilationMode, *, piecewise: bool = True
    ) -> CUDAGraphMode:
        """The mode that is left of ``requested`` within the support of the selection."""
        compiled = compile_mode is CompilationMode.VLLM_COMPILE
        state = ModeState(cudagraph_mode=requested, compile_mode=compile_mode, splits_attention=compiled)
        deciding = self.selection.deciding
        return mode_within_support(
            state,
            SupportRequest(
                support=self.selection.support,
                backend=None if deciding is None else deciding.backend,
                query_len=1 + self.request.environment.num_speculative_tokens,
                breakable_graphs=piecewise and not compiled,
            ),
        ).cudagraph_mode

    def draft_mode(self, mode: CUDAGraphMode) -> CUDAGraphMode:
        """The mode of a DFlash draft under its target's resolved ``mode``."""
        support = self.selection.draft_support
        assert support is not None
        full = mode.decode_mode() is CUDAGraphMode.FULL
        if full and not support < AttentionSupport.UNIFORM_BATCH:
            return CUDAGraphMode.FULL_DECODE_ONLY
        return CUDAGraphMode.NONE


def _models(deployment: Deployment) -> tuple[ModelFacts, ModelFacts | None]:
    assert deployment.model.config is not None
    draft = None if deployment.speculative is None else deployment.speculative.config
    return (
        model_facts(deployment.model.config.facts),
        None if draft is None else model_facts(draft.facts, field="speculative.config"),
    )


@pytest.fixture(scope="session")
def request_of() -> Callable[[Deployment], tuple[Runner, BackendRequest]]:
    def request_of(deployment: Deployment) -> tuple[Runner, BackendRequest]:
        target, draft = _models(deployment)
        runner, _ = choose_runner(deployment, target=target, draft=draft)
        capability = device_of(deployment.device).compute_capability
        assert capability is not None
        request = backend_request(
            deployment, target=target, draft=draft, compute_capability=capability, runner=runner
        )
        return runner, request

    return request_of


@pytest.fixture(scope="session")
def select(
    request_of: Callable[[Deployment], tuple[Runner, BackendRequest]],
) -> Callable[[Deployment], Selected]:
    def select(deployment: Deployment) -> Selected:
        runner, request = request_of(deployment)
        return Selected(runner, request, select_backends(request))

    return select
