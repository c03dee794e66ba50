"""Writing: the same bytes everywhere, one line an entry, and what is read back is equal."""

import json
from collections.abc import Mapping
from typing import Any, get_args, get_origin

import pytest
import yaml
from attrs import evolve, fields, has, resolve_types
from hypothesis import given
from hypothesis import strategies as st

from planner.descriptors import DFLASH_CONTEXT_KV, PlanEntry, Prologue
from planner.documents import deployment as sections
from planner.documents import writer
from planner.documents.data import UNWRITTEN, as_data
from planner.documents.engine_sections import SglangSection, TensorrtLlmSection
from planner.documents.hf_config import FACTS
from planner.documents.load import load_deployment, load_plan
from planner.documents.plan import AttentionGroup, Decision, Finding, Microbatching, Plan, ResolvedFamily
from planner.documents.reader import read_yaml
from planner.documents.tree import MAX_KEY_LENGTH, Items, Table
from planner.documents.vllm_fields import vllm_fields
from planner.documents.writer import EMITTER, PurePythonEmitter, dump_deployment, dump_plan, plan_to_json
from planner.documents.writer import _dump as dump
from planner.errors import DocumentError
from planner.modes import AttentionSupport, CapturePolicy, CUDAGraphMode, Runner

EMITTERS = {EMITTER, PurePythonEmitter}

AWKWARD = """0.30 no 1e5 ~ null # - 1:30 0o17 [ ' " \\ ... --- true = << é 😀 % @a ? sha256:0 1_0 y"""
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    [*AWKWARD.split(), "", " x", "x ", "a: b", "- a", "\n", "\u2028", "\x85", "\xa0", "\ufeff", "x" * 160]
)
integers = st.integers(-(10**18) + 1, 10**18 - 1)
floats = st.floats(allow_nan=False, allow_infinity=False)
json_leaves = st.none() | st.booleans() | integers | floats | texts
json_values = st.recursive(
    json_leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
facts = st.dictionaries(st.sampled_from(sorted(FACTS)), json_values, max_size=3)
sha256s = st.text("0123456789abcdef", min_size=64, max_size=64)
configs = st.builds(sections.HfConfig, facts=facts, sha256=sha256s)


def limited(field: Any) -> st.SearchStrategy[int]:
    return st.integers(field.metadata.get("minimum", -5), min(field.metadata.get("maximum", 10**9), 10**9))


def values_of(annotation: Any, field: Any) -> st.SearchStrategy[Any]:
    """Values of a field of a section, by its type."""
    if "choices" in field.metadata:
        return st.sampled_from(field.metadata["choices"])
    inner = [part for part in get_args(annotation) if part not in (type(None), ...)]
    origin = get_origin(annotation)
    if origin is tuple:
        return st.lists(values_of(inner[0], field), max_size=3).map(tuple)
    if origin is Mapping:
        return st.dictionaries(texts, values_of(inner[1], field), max_size=3)
    if inner:
        return st.one_of([values_of(part, field) for part in inner])
    if annotation is int:
        return limited(field)
    known = {
        str: texts,
        bool: st.booleans(),
        float: st.floats(0, field.metadata.get("maximum", 1e6)),
        Any: json_values,
        sections.HfConfig: configs,
    }
    if annotation in known:
        return known[annotation]
    return section(annotation) if has(annotation) else st.sampled_from(list(annotation))


def section(cls: Any) -> st.SearchStrategy[Any]:
    resolve_types(cls)
    known = {field.name: values_of(field.type, field) for field in fields(cls) if field.name not in UNWRITTEN}
    given_values = st.fixed_dictionaries({}, optional=known)
    if not hasattr(cls, "vllm_config"):
        return given_values.map(lambda values: cls(**values))
    others = {
        name: setting
        for name, setting in vllm_fields(cls.vllm_config).items()
        if name not in known and not setting.choices and not setting.bounds
    }
    types = {
        "bool": st.booleans(),
        "int": integers,
        "float": floats,
        "str": texts,
        "any": json_values,
        "dict": st.just({"a": "b"}),
        "list": st.just([]),
    }
    ignored = st.fixed_dictionaries({}, optional={name: types[known.type] for name, known in others.items()})
    return st.builds(lambda values, rest: cls(**values, ignored=rest), given_values, ignored)


def as_vllm_takes_it(deployment: sections.Deployment) -> sections.Deployment:
    """``deployment`` without what only other engines take, and traffic that is in no file."""
    tokens, capture = deployment.scheduler.max_num_batched_tokens, deployment.capture
    if capture.policy is CapturePolicy.TRAFFIC and capture.traffic is not None:
        capture = evolve(capture, traffic="cache")
    return evolve(
        deployment,
        parallel=evolve(deployment.parallel, enable_dp_attention=None),
        scheduler=evolve(
            deployment.scheduler, max_num_batched_tokens=None if tokens is None else max(tokens, 1)
        ),
        capture=capture,
    )


other_engines = st.builds(
    sections.Deployment,
    engine=st.just(sections.EngineSection(name="sglang")),
    sglang=section(SglangSection),
) | st.builds(
    sections.Deployment,
    engine=st.just(sections.EngineSection(name="tensorrt-llm")),
    tensorrt_llm=section(TensorrtLlmSection),
)
deployments = other_engines | st.builds(
    sections.Deployment,
    name=st.none() | texts,
    engine=section(sections.EngineSection),
    model=section(sections.ModelSection),
    parallel=section(sections.ParallelSection),
    scheduler=section(sections.SchedulerSection),
    speculative=st.none() | section(sections.SpeculativeSection),
    lora=st.none() | section(sections.LoraSection),
    compilation=section(sections.CompilationSection),
    device=section(sections.DeviceSection),
    capture=section(sections.CaptureSection),
).map(as_vllm_takes_it)
counts = st.integers(1, 1 << 20)
entries = st.builds(
    PlanEntry,
    mode=st.sampled_from([CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE]),
    num_tokens=counts,
    num_reqs=st.none() | counts,
    uniform_token_count=st.none() | counts,
    max_query_len=st.none() | counts,
    num_active_loras=st.integers(0, 9),
    num_ubatches=st.integers(1, 3),
    prologue=st.none() | st.builds(Prologue, st.just(DFLASH_CONTEXT_KV), counts),
)
sizes = st.lists(counts, max_size=4).map(tuple)
resolved = st.builds(
    ResolvedFamily,
    runner=st.sampled_from(list(Runner)),
    cudagraph_mode=st.sampled_from(list(CUDAGraphMode)),
    cudagraph_capture_sizes=sizes,
    max_cudagraph_capture_size=st.integers(0, 999),
    decode_query_len=st.none() | counts,
    uniform_query_lens=sizes,
    lora_cases=st.lists(st.integers(0, 9), max_size=3).map(tuple),
    attention_groups=st.lists(
        st.builds(
            AttentionGroup,
            kind=texts,
            backend=texts,
            support=st.sampled_from(list(AttentionSupport)),
        ),
        max_size=2,
    ).map(tuple),
    microbatching=st.none()
    | st.builds(
        Microbatching, num_ubatches=counts, decode_token_threshold=counts, prefill_token_threshold=counts
    ),
)
plans = st.builds(
    Plan,
    name=st.none() | texts,
    digest=st.none() | texts,
    deployment=deployments,
    resolved=st.dictionaries(texts, resolved, max_size=2),
    decisions=st.lists(
        st.builds(Decision, path=texts, asked=json_values, became=json_values, rule=texts, because=texts),
        max_size=2,
    ).map(tuple),
    findings=st.lists(
        st.builds(
            Finding,
            severity=st.sampled_from(["error", "info"]),
            code=texts,
            message=texts,
            fix=st.none() | texts,
        ),
        max_size=2,
    ).map(tuple),
    graphs=st.dictionaries(texts, st.lists(entries, max_size=4).map(tuple), max_size=3),
)


@given(plans)
def test_a_plan_is_read_back_equal_and_written_the_same(plan):
    text = dump_plan(plan)
    loaded = load_plan(text + "\n")
    assert loaded == plan
    assert dump_plan(loaded) == text


@given(deployments)
def test_a_deployment_is_read_back_equal_and_written_the_same(deployment):
    text = dump_deployment(deployment)
    loaded = load_deployment(text)
    assert loaded == deployment
    assert dump_deployment(loaded) == text


@given(plans)
def test_both_emitters_write_the_same_bytes(plan):
    data = as_data(plan)
    assert len({dump(data, emitter) for emitter in EMITTERS}) == 1


@given(plans)
def test_pyyaml_reads_the_same_data(plan):
    assert yaml.safe_load(dump_plan(plan)) == as_data(plan)


@given(plans)
def test_json_holds_the_same_document(plan):
    text = plan_to_json(plan)
    assert json.loads(text) == as_data(plan)
    assert load_plan(json.loads(text)) == plan


@given(st.lists(entries, max_size=4))
def test_a_plan_in_json_is_a_plan_file_too(listed):
    plan = Plan(name="é\x7f\u2028😀\ufeff", graphs={"target": tuple(listed)})
    assert load_plan(plan_to_json(plan)) == plan


PLAN = Plan(
    name="example",
    digest="sha256:00",
    deployment=sections.Deployment(
        engine=sections.EngineSection(version="0.33", env={"A": "1"}),
        model=sections.ModelSection(
            config=sections.HfConfig(
                facts={"head_dim": 128, "layer_types": ["a", "b"], "dflash_config": {}}, sha256="0" * 64
            )
        ),
        parallel=sections.ParallelSection(
            tensor_parallel_size=2, ignored={"node_rank": 0, "eplb_config": {"a": 1e-06}}
        ),
        lora=sections.LoraSection(),
        compilation=sections.CompilationSection(cudagraph_capture_sizes=(1, 2)),
        device=sections.DeviceSection(compute_capability="9.0", memory_gib=139.0),
    ),
    resolved={
        "target": ResolvedFamily(
            runner=Runner.V2,
            cudagraph_mode=CUDAGraphMode.FULL_AND_PIECEWISE,
            cudagraph_capture_sizes=(1, 2, 4),
            attention_groups=(
                AttentionGroup(kind="full_attention", backend="FLASH_ATTN", support=AttentionSupport.ALWAYS),
            ),
        )
    },
    decisions=(Decision(path="compilation.cudagraph_mode", asked="FULL", rule="r", because="it is so"),),
    findings=(Finding(severity="warning", code="decode-hole", message="33 to 128 requests", fix="a: 1"),),
    graphs={
        "target": (
            PlanEntry(CUDAGraphMode.PIECEWISE, 512),
            PlanEntry(CUDAGraphMode.FULL, 32, 2, 16, None, 1, 2, Prologue(DFLASH_CONTEXT_KV, 32)),
        ),
        "draft": (),
    },
)

TEXT = """\
apiVersion: graphplan/v1
kind: Plan
name: example
digest: "sha256:00"
deployment:
  engine:
    version: "0.33"
    env:
      A: "1"
  model:
    config:
      head_dim: 128
      layer_types: [a, b]
      dflash_config: {}
    config_sha256: "0000000000000000000000000000000000000000000000000000000000000000"
  parallel:
    tensor_parallel_size: 2
    node_rank: 0
    eplb_config:
      a: 1.0e-06
  lora: {}
  compilation:
    cudagraph_capture_sizes: [1, 2]
  device:
    compute_capability: "9.0"
    memory_gib: 139
resolved:
  target:
    runner: v2
    cudagraph_mode: FULL_AND_PIECEWISE
    cudagraph_capture_sizes: [1, 2, 4]
    attention_groups: [{kind: full_attention, backend: FLASH_ATTN, support: ALWAYS}]
decisions:
- {path: compilation.cudagraph_mode, asked: FULL, rule: r, because: it is so}
findings:
- {severity: warning, code: decode-hole, message: 33 to 128 requests, fix: "a: 1"}
graphs:
  target:
  - {mode: PIECEWISE, num_tokens: 512}
  - {mode: FULL, num_tokens: 32, num_reqs: 2, uniform_token_count: 16, num_active_loras: 1, num_ubatches: 2, prologue: {kind: dflash_context_kv, num_context_tokens: 32}}
  draft: []
"""  # noqa: E501 - an entry is one line


def test_a_plan_reads_well():
    assert dump_plan(PLAN) == TEXT


def test_an_entry_takes_one_line_however_long_it_is():
    finding = Finding(severity="info", code="c", message="word " * 500, fix="é😀" * 300)
    plan = evolve(PLAN, findings=(finding,))
    assert len(dump_plan(plan).splitlines()) == len(TEXT.splitlines())
    assert load_plan(dump_plan(plan)).findings == (finding,)


def test_an_empty_plan_is_short():
    assert dump_plan(Plan(graphs={})) == "apiVersion: graphplan/v1\nkind: Plan\ngraphs: {}\n"


def test_a_deployment_says_what_was_given_only():
    text = "apiVersion: graphplan/v1\nkind: Deployment\nmodel:\n  enforce_eager: false\nlora: {}\n"
    assert dump_deployment(load_deployment(text)) == text


@pytest.mark.parametrize(
    "text", ["0.33", "no", "1e5", "0o17", "1_000", "y", "~", "", "12:30", "2024-01-01", "a: b"]
)
def test_a_string_that_a_reader_could_mistake_is_quoted(text):
    assert f'name: "{text}"' in dump_deployment(sections.Deployment(name=text))


@pytest.mark.parametrize("text", ["FULL", "0.5.23", "a b", "v2", "model/x-1", "2 requests"])
def test_an_ordinary_string_is_not_quoted(text):
    assert f"name: {text}\n" in dump_deployment(sections.Deployment(name=text))


def test_the_longest_keys_read_back_from_yaml_and_json_however_they_are_escaped():
    key = "\u2028" * MAX_KEY_LENGTH
    text = dump_plan(evolve(PLAN, decisions=(Decision(path="a", asked={key: 1}, rule="r", because="b"),)))
    plan = load_plan(text)
    assert load_plan(plan_to_json(plan)) == plan


@pytest.mark.parametrize("limit", ["MAX_BYTES", "MAX_NODES"])
def test_a_document_that_nothing_could_read_back_is_not_written(limit, monkeypatch):
    size = len(TEXT.encode()) if limit == "MAX_BYTES" else _nodes(read_yaml(TEXT))
    monkeypatch.setattr(writer, limit, size)
    assert dump_plan(PLAN) == TEXT
    monkeypatch.setattr(writer, limit, size - 1)
    with pytest.raises(DocumentError, match="are read back; give fewer"):
        dump_plan(PLAN)


def _nodes(node):
    """Keys and values of a tree, as the reader counts them."""
    if isinstance(node, Items):
        return 1 + sum(_nodes(item) for item in node.items)
    if isinstance(node, Table):
        return 1 + sum(1 + _nodes(value) for value in node.values.values())
    return 1


@pytest.mark.parametrize("number", [1e-6, -1e-6, 1e22, 1.5e-7, 5e-324, 0.1])
def test_json_has_numbers_in_the_notation_that_documents_are_read_in(number):
    plan = evolve(
        PLAN, decisions=(Decision(path="a", asked=[number, "x: 1e-06"], rule="r", because="1e-06"),)
    )
    assert load_plan(plan_to_json(plan)) == plan
    assert json.loads(plan_to_json(plan))["decisions"][0]["asked"] == [number, "x: 1e-06"]
