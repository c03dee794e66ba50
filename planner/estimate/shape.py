"""The model behind a family of graphs, as far as their cost depends on it: its shape on one rank."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve, frozen

from planner.documents.deployment import Deployment, HfConfig
from planner.documents.plan import TARGET
from planner.errors import PlanError
from planner.models.facts import DTYPES, ModelFacts, model_facts
from planner.models.reader import ConfigReader
from planner.rules.encoder import ENCODER

ELEMENT_BYTES: Mapping[str, int] = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}

EXPERT_WIDTH_KEYS = ("moe_intermediate_size", "intermediate_size")
TEXT_KEYS = ("thinker_config", "text_config", "llm_config", "language_config")


@frozen(kw_only=True)
class Shape:
    """Widths in elements a token on one rank, ``num_layers`` those of one pipeline stage.

    ``num_breaks`` are the operations at which pieces end. ``mlp_width`` is what feed-forward parts hold at
    once, all experts of a token together. ``num_outputs`` are tensors of ``hidden_size`` that a forward
    returns. ``is_assumed`` says that no model was given.
    """

    num_layers: int
    num_breaks: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    mlp_width: int
    element_bytes: int
    max_model_len: int
    num_outputs: int = 1
    is_assumed: bool = False

    @property
    def num_pieces(self) -> int:
        """Graphs of one PIECEWISE entry."""
        return self.num_breaks + 1

    @property
    def activation_width(self) -> int:
        """Elements a token that are alive at the peak of a layer, attention's own workspace left out.

        Three tensors of the residual stream's width and beside them the widest of: gate, up and their
        product; queries, keys, values and the output of attention; a norm in float32.
        """
        attention = 2 * self.head_size * (self.num_heads + self.num_kv_heads)
        return 3 * self.hidden_size + max(self.mlp_width, attention, 4 * self.hidden_size)


DEFAULT_SHAPE = Shape(
    num_layers=32,
    num_breaks=32,
    hidden_size=4096,
    num_heads=32,
    num_kv_heads=8,
    head_size=128,
    mlp_width=3 * 14336,
    element_bytes=2,
    max_model_len=8192,
    is_assumed=True,
)
"""What stands for a model that is not given: a dense decoder of some 8 billion parameters."""


def family_shape(deployment: Deployment, family: str) -> Shape:
    """The shape of the model of ``family``: an assumed one where its config does not tell it."""
    try:
        return _family_shape(deployment, family)
    except PlanError:
        return DEFAULT_SHAPE


def _family_shape(deployment: Deployment, family: str) -> Shape:
    draft = deployment.speculative
    if family == TARGET:
        return _target_shape(deployment)
    if family == ENCODER:
        return _encoder_shape(deployment)
    if draft is not None and draft.config is not None:
        ranks = draft.draft_tensor_parallel_size or deployment.parallel.tensor_parallel_size or 1
        return _shape(draft.config, deployment, ranks, stages=1, num_outputs=1)
    return _one_layer(_target_shape(deployment))


def _target_shape(deployment: Deployment) -> Shape:
    config = deployment.model.config
    if config is None:
        return DEFAULT_SHAPE
    parallel = deployment.parallel
    return _shape(
        config,
        deployment,
        parallel.tensor_parallel_size or 1,
        stages=parallel.pipeline_parallel_size or 1,
        num_outputs=1 + _num_aux_outputs(deployment),
    )


def _shape(config: HfConfig, deployment: Deployment, ranks: int, *, stages: int, num_outputs: int) -> Shape:
    facts = model_facts(config.facts)
    breaks = len({layer.index for layer in facts.layers})
    length = deployment.model.max_model_len or facts.max_position_embeddings or DEFAULT_SHAPE.max_model_len
    heads = facts.num_attention_heads or 1
    head_size = facts.head_size or 1
    return Shape(
        num_layers=-(-facts.num_hidden_layers // stages),
        num_breaks=max(-(-breaks // stages), 1),
        hidden_size=facts.hidden_size or heads * head_size,
        num_heads=max(heads // ranks, 1),
        num_kv_heads=max((facts.num_key_value_heads or heads) // ranks, 1),
        head_size=head_size,
        mlp_width=_mlp_width(config.facts, facts, ranks),
        element_bytes=element_bytes(deployment, facts),
        max_model_len=length,
        num_outputs=num_outputs,
    )


def element_bytes(deployment: Deployment, facts: ModelFacts) -> int:
    """Bytes of an element of the activations: of what the deployment asks for, else of the model's type."""
    asked = DTYPES.get((deployment.model.dtype or "auto").removeprefix("torch."))
    name = asked or facts.dtype or "bfloat16"
    # An engine runs models that were saved in float32 in half precision unless it is asked not to.
    return 2 if asked is None and name == "float32" else ELEMENT_BYTES[name]


def text_facts(facts: Mapping[str, object]) -> ConfigReader:
    """The config of the language model inside a config."""
    reader = ConfigReader(facts)
    while (inner := reader.nested(*TEXT_KEYS)) is not None:
        reader = inner
    return reader


def _mlp_width(config: Mapping[str, object], facts: ModelFacts, ranks: int) -> int:
    dense = 3 * (facts.intermediate_size or 4 * (facts.hidden_size or 1)) // ranks
    if not facts.is_moe:
        return dense
    width = text_facts(config).largest(*EXPERT_WIDTH_KEYS) or 0
    chosen = facts.num_experts_per_token or 1
    return max(dense, chosen * (3 * width // ranks + (facts.hidden_size or 0)))


def _num_aux_outputs(deployment: Deployment) -> int:
    """Hidden states of single layers that the target also returns, for its drafter."""
    draft = deployment.speculative
    if draft is None:
        return 0
    if draft.config is not None:
        dflash = model_facts(draft.config.facts, field="speculative.config").dflash
        if dflash is not None:
            return len(dflash.target_layer_ids)
    return 3 if draft.method == "eagle3" else 0


def _one_layer(target: Shape) -> Shape:
    """A drafter of which nothing is known: one layer like those of its target."""
    return evolve(target, num_layers=1, num_breaks=1, num_outputs=1)


def _encoder_shape(deployment: Deployment) -> Shape:
    """A vision encoder, by what its config says; attention of one image at a time."""
    config = deployment.model.config
    vision = None if config is None else ConfigReader(config.facts).nested("vision_config")
    if vision is None:
        return evolve(_target_shape(deployment), num_outputs=1)
    hidden = vision.integer("hidden_size", "embed_dim", "d_model", minimum=1) or 1024
    heads = vision.integer("num_attention_heads", "num_heads", minimum=1) or 16
    layers = vision.integer("num_hidden_layers", "depth", "vision_n_layers", minimum=1) or 24
    return Shape(
        num_layers=layers,
        num_breaks=layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=heads,
        head_size=max(hidden // heads, 1),
        mlp_width=3 * (vision.integer("intermediate_size", minimum=1) or 4 * hidden),
        element_bytes=_target_shape(deployment).element_bytes,
        max_model_len=1,
    )
