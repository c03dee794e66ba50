"""From keys and values to fields: unknown keys, enumerations, limits, and vLLM's other settings."""

import pytest

from planner.documents import sources
from planner.documents.load import load_deployment, load_plan
from planner.documents.tree import MAX_KEY_LENGTH
from planner.errors import DocumentError
from planner.modes import (
    AttentionSupport,
    CapturePolicy,
    CompilationMode,
    CUDAGraphMode,
    PerformanceMode,
    Runner,
)

DEPLOYMENT = "apiVersion: graphplan/v1\nkind: Deployment\n"
PLAN = "apiVersion: graphplan/v1\nkind: Plan\n"


def deployment(text):
    return load_deployment(DEPLOYMENT + text + "\n", path="d.yaml")


def plan(text):
    return load_plan(PLAN + text + "\n", path="p.yaml")


# body (its first line is line 3), key, line, column, words of the message
REFUSED = [
    ("scheduler: {max_num_seqz: 1}", "scheduler.max_num_seqz", 3, 13, "did you mean max_num_seqs?"),
    ("scheduler:\n  max_num_seqs: 010", "scheduler.max_num_seqs", 4, 17, "found '010'"),
    ("scheduler: {max_num_seqs: 0}", "scheduler.max_num_seqs", 3, 27, "the smallest value is 1"),
    ("engine: {optimization_level: 4}", "engine.optimization_level", 3, 30, "the largest value is 3"),
    ("modle: {}", "modle", 3, 1, "did you mean model?"),
    ("zzz: {}", "zzz", 3, 1, "known here are name, engine"),
    ("scheduler: {ignored: {a: 1}}", "scheduler.ignored", 3, 13, "unknown key"),
    ("scheduler: [1]", "scheduler", 3, 12, "expected a mapping"),
    ("engine: {runner: v3}", "engine.runner", 3, 18, "not one of v1, v2"),
    ("engine: {runner: 2}", "engine.runner", 3, 18, "not one of v1, v2"),
    ("engine: {env: {A: [1]}}", "engine.env.A", 3, 19, "expected a string, found a list"),
    ("engine: {env: {A: }}", "engine.env.A", 3, 19, "expected a string"),
    (
        "compilation: {cudagraph_mode: FULL_DECODE}",
        "compilation.cudagraph_mode",
        3,
        31,
        "mean FULL_DECODE_ONLY?",
    ),
    ("compilation: {cudagraph_mode: 3}", "compilation.cudagraph_mode", 3, 31, "not one of NONE, PIECEWISE"),
    ("compilation: {cudagraph_mode: '0'}", "compilation.cudagraph_mode", 3, 31, "not one of"),
    ("compilation: {cudagraph_mode: [2, 0]}", "compilation.cudagraph_mode", 3, 31, "found a list"),
    ("compilation: {mode: 4}", "compilation.mode", 3, 21, "not one of"),
    ("model: {attention_support: 3}", "model.attention_support", 3, 28, "not one of NEVER"),
    (
        "compilation: {cudagraph_capture_sizes: 8}",
        "compilation.cudagraph_capture_sizes",
        3,
        40,
        "expected a list",
    ),
    (
        "compilation: {cudagraph_capture_sizes: [1, x]}",
        "compilation.cudagraph_capture_sizes[1]",
        3,
        44,
        "'x'",
    ),
    (
        "compilation: {cudagraph_capture_sizes: [1, -2]}",
        "compilation.cudagraph_capture_sizes[1]",
        3,
        44,
        "small",
    ),
    ("compilation: {pass_config: {a: [yes]}}", "compilation.pass_config.a[0]", 3, 33, "quotes"),
    ("model: {enforce_eager: yes}", "model.enforce_eager", 3, 24, "expected true or false"),
    ("device: {memory_gib: .inf}", "device.memory_gib", 3, 22, "expected a number"),
    ("lora: {max_lora_rank: 17}", "lora.max_lora_rank", 3, 23, "it takes 1, 8, 16"),
    ("parallel: {node_rank: -1}", "parallel.node_rank", 3, 23, "at least 0"),
    ("parallel: {data_parallel_rpc_port: 70000}", "parallel.data_parallel_rpc_port", 3, 36, "at most 65535"),
    ("parallel: {data_parallel_backend: mpi}", "parallel.data_parallel_backend", 3, 35, "ray, mp"),
    ("parallel: {numa_bind: 1}", "parallel.numa_bind", 3, 23, "expected true or false"),
    ("parallel: {numa_bind: }", "parallel.numa_bind", 3, 23, "expected true or false"),
    ("parallel: {numa_bind_nodes: [a]}", "parallel.numa_bind_nodes[0]", 3, 30, "whole number"),
    ("parallel: {world_size: 2}", "parallel.world_size", 3, 12, "unknown key"),
    ("parallel: {_coord_store_port: 2}", "parallel._coord_store_port", 3, 12, "unknown key"),
    ("attention: {flash_attn_version: 5}", "attention.flash_attn_version", 3, 33, "expected 2 or 3 or 4"),
    ("attention: {bakend: x}", "attention.bakend", 3, 13, "did you mean backend?"),
    ("attention: {backend_per_kind: {a: [1]}}", "attention.backend_per_kind.a", 3, 35, "found a list"),
    ("kv_transfer: {kv_role: both}", "kv_transfer.kv_role", 3, 24, "kv_producer"),
    ("kv_transfer: {kv_ip: 127.0.0.1}", "kv_transfer.kv_ip", 3, 15, "unknown key"),
    ("scheduler: {watermark: 1.0}", "scheduler.watermark", 3, 24, "below 1"),
    ("engine: {node_rank: 0}", "engine.node_rank", 3, 10, "unknown key"),
]


@pytest.mark.parametrize(
    ("body", "key", "line", "column", "words"), REFUSED, ids=[case[0] for case in REFUSED]
)
def test_what_vllm_would_not_take_is_refused_with_its_place(body, key, line, column, words):
    with pytest.raises(DocumentError) as caught:
        deployment(body)
    error = caught.value
    assert (error.path, error.line, error.column, error.key) == ("d.yaml", line, column, key)
    assert words in error.message
    assert str(error).startswith(f"d.yaml:{line}:{column}: {key}: ")


def test_a_huge_unknown_key_is_cut_in_the_message():
    with pytest.raises(DocumentError) as caught:
        deployment(f'"{"k" * 100_000}\\n": 1')
    assert len(str(caught.value)) < 300
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("body", "section", "field", "value"),
    [
        ("engine: {version: 0.30}", "engine", "version", "0.30"),
        ("engine: {runner: V1}", "engine", "runner", Runner.V1),
        ("engine: {performance_mode: Interactivity}", "engine", "performance_mode",
         PerformanceMode.INTERACTIVITY),
        ("capture: {policy: engine}", "capture", "policy", CapturePolicy.ENGINE),
        ("engine: {env: {VLLM_USE_V2_MODEL_RUNNER: 1}}", "engine", "env", {"VLLM_USE_V2_MODEL_RUNNER": "1"}),
        ("compilation: {cudagraph_mode: full_and_piecewise}", "compilation", "cudagraph_mode",
         CUDAGraphMode.FULL_AND_PIECEWISE),
        ("compilation: {cudagraph_mode: 2}", "compilation", "cudagraph_mode", CUDAGraphMode.FULL),
        ("compilation: {cudagraph_mode: none}", "compilation", "cudagraph_mode", CUDAGraphMode.NONE),
        ("compilation: {mode: 3}", "compilation", "mode", CompilationMode.VLLM_COMPILE),
        ("compilation: {mode: 'NONE'}", "compilation", "mode", CompilationMode.NONE),
        ("compilation: {cudagraph_capture_sizes: []}", "compilation", "cudagraph_capture_sizes", ()),
        ("compilation: {compile_sizes: [8, \"8\", x]}", "compilation", "compile_sizes", (8, "8", "x")),
        ("model: {attention_support: Uniform_Batch}", "model", "attention_support",
         AttentionSupport.UNIFORM_BATCH),
        ("device: {memory_gib: 139}", "device", "memory_gib", 139.0),
        ("device: {compute_capability: 9.0}", "device", "compute_capability", "9.0"),
    ],
)  # fmt: skip
def test_values_are_read_as_their_field_asks(body, section, field, value):
    read = getattr(getattr(deployment(body), section), field)
    assert read == value
    assert type(read) is type(value)


def test_a_draft_schedule_keeps_tuples_of_any_length():
    read = deployment("speculative: {num_speculative_tokens_per_batch_size: [[1, 32, 7], [33, 64]]}")
    assert read.speculative.num_speculative_tokens_per_batch_size == ((1, 32, 7), (33, 64))


@pytest.mark.parametrize("null", ["null", "~", ""])
def test_null_means_not_given(null):
    read = deployment(f"name: {null}\nengine: {null}\nlora: {null}\ncompilation:\n  cudagraph_mode: {null}\n")
    assert read == deployment("")


def test_an_empty_mapping_turns_lora_on():
    assert deployment("lora: {}").lora is not None
    assert deployment("").lora is None


def test_other_settings_of_vllm_are_kept_in_order():
    read = deployment(
        "parallel: {worker_cls: auto, nnodes: 2, tensor_parallel_size: 2,\n"
        "  node_rank: 0, ray_runtime_env: null}\n"
        "lora: {max_lora_rank: 16, target_modules: [q_proj, 'no'], lora_dtype: auto}\n"
        "compilation: {inductor_compile_config: {a: {b: 1}}, custom_ops: [+rms_norm],\n"
        "  cudagraph_copy_inputs: true}\n"
    )
    assert list(read.parallel.ignored.items()) == [
        ("worker_cls", "auto"),
        ("nnodes", 2),
        ("node_rank", 0),
        ("ray_runtime_env", None),
    ]
    assert read.lora.ignored == {
        "max_lora_rank": 16,
        "target_modules": ["q_proj", "no"],
        "lora_dtype": "auto",
    }
    assert read.compilation.ignored["inductor_compile_config"] == {"a": {"b": 1}}


def test_settings_without_effect_are_named_by_their_place():
    read = deployment(
        "attention: {flash_attn_version: 3, use_non_causal: false}\n"
        "kv_transfer: {kv_connector: NixlConnector, kv_role: kv_both}\n"
        "scheduler: {watermark: 0.1}\n"
    )
    assert list(read.ignored_paths()) == [
        "attention.use_non_causal",
        "scheduler.watermark",
        "kv_transfer.kv_role",
    ]


REFUSED_PLANS = [
    ("name: x", None, 1, 1, "the key graphs is missing"),
    ("graphs:", "graphs", 3, 8, "required"),
    ("graphs: {target: }", "graphs.target", 3, 18, "expected a list"),
    ("graphs: {target: [{num_tokens: 1}]}", "graphs.target[0]", 3, 19, "the key mode is missing"),
    ("graphs: {target: [{mode: FULL, num_token: 1}]}", "graphs.target[0].num_token",
     3, 32, "did you mean num_tokens?"),
    ("graphs: {target: [{mode: FULL, num_tokens: }]}", "graphs.target[0].num_tokens", 3, 44, "required"),
    ("graphs: {target: [{mode: FULL_DECODE_ONLY, num_tokens: 1}]}", "graphs.target[0].mode",
     3, 26, "PIECEWISE or FULL"),
    ("graphs: {target: [{mode: NONE, num_tokens: 1}]}", "graphs.target[0].mode",
     3, 26, "PIECEWISE or FULL"),
    ("graphs: {target: [{mode: FULL, num_tokens: 0}]}", "graphs.target[0].num_tokens",
     3, 44, "smallest value is 1"),
    ("graphs: {t: [{mode: FULL, num_tokens: 1, with_lora: true}]}", "graphs.t[0].with_lora",
     3, 42, "unknown key"),
    ("graphs: {t: [{mode: FULL, num_tokens: 1, prologue: {kind: x, num_context_tokens: 1}}]}",
     "graphs.t[0].prologue.kind", 3, 59, "dflash_context_kv"),
    ("graphs: {}\ndeployment: {kind: Deployment}", "deployment.kind", 4, 14, "unknown key"),
    ("graphs: {}\nresolved: {target: {runner: v2}}", "resolved.target", 4, 20, "cudagraph_mode is missing"),
    ("graphs: {}\nresolved: {t: {runner: v2, cudagraph_mode: FULL, lora_cases: [0, 99999999999]}}",
     "resolved.t.lora_cases[1]", 4, 66, "largest value is 65537"),
    ("graphs: {}\nresolved: {t: {runner: v1, cudagraph_mode: FULL, decode_query_len: -3}}",
     "resolved.t.decode_query_len", 4, 68, "smallest value is 1"),
    ("graphs: {}\nfindings: [{severity: fatal, code: c, message: m}]", "findings[0].severity",
     4, 23, "error or warning"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "key", "line", "column", "words"), REFUSED_PLANS)
def test_a_plan_that_cannot_be_captured_as_written_is_refused(body, key, line, column, words):
    with pytest.raises(DocumentError) as caught:
        plan(body)
    error = caught.value
    assert (error.line, error.column, error.key) == (line, column, key)
    assert words in error.message


@pytest.mark.parametrize(
    ("mapping", "key"),
    [
        ({"scheduler": {"max_num_seqs": True}}, "scheduler.max_num_seqs"),
        ({"scheduler": {"max_num_seqs": "8"}}, "scheduler.max_num_seqs"),
        ({"scheduler": {"max_num_seqs": 8.0}}, "scheduler.max_num_seqs"),
        ({"model": {"enforce_eager": 1}}, "model.enforce_eager"),
        ({"engine": {"version": 0.33}}, "engine.version"),
        ({"engine": {"env": {"A": 1}}}, "engine.env.A"),
        ({"compilation": {"cudagraph_mode": True}}, "compilation.cudagraph_mode"),
        ({"compilation": {"cudagraph_capture_sizes": {1, 2}}}, "compilation.cudagraph_capture_sizes"),
        ({"device": {"memory_gib": float("nan")}}, "device.memory_gib"),
        ({"name": "\ud800"}, "name"),
        ({"engine": {1: 2}}, "engine"),
        ({"compilation": {"mode": CUDAGraphMode.FULL}}, "compilation.mode"),
    ],
)
def test_python_mappings_are_taken_at_their_word(mapping, key):
    with pytest.raises(DocumentError) as caught:
        load_deployment({"apiVersion": "graphplan/v1", "kind": "Deployment", **mapping})
    assert (caught.value.key, caught.value.line) == (key, None)


def test_python_mappings_may_hold_members_tuples_and_integers_for_floats():
    read = load_deployment(
        {
            "apiVersion": "graphplan/v1",
            "kind": "Deployment",
            "engine": {"runner": Runner.V1},
            "compilation": {"cudagraph_mode": 2, "cudagraph_capture_sizes": (1, 2), "mode": "vllm_compile"},
            "device": {"memory_gib": 80},
        }
    )
    assert read.engine.runner is Runner.V1
    assert read.compilation.cudagraph_mode is CUDAGraphMode.FULL
    assert read.compilation.cudagraph_capture_sizes == (1, 2)
    assert read.compilation.mode is CompilationMode.VLLM_COMPILE
    assert type(read.device.memory_gib) is float


def test_a_python_mapping_that_holds_itself_is_refused():
    mapping: dict[str, object] = {"apiVersion": "graphplan/v1", "kind": "Deployment"}
    mapping["engine"] = mapping
    with pytest.raises(DocumentError, match="64 levels"):
        load_deployment(mapping)


def test_python_values_that_are_shared_count_each_time(monkeypatch):
    monkeypatch.setattr(sources, "MAX_NODES", 1000)
    shared: list[object] = ["x"] * 10
    for _ in range(30):
        shared = [shared] * 10
    with pytest.raises(DocumentError, match="more than 1000 values"):
        load_deployment({"apiVersion": "graphplan/v1", "kind": "Deployment", "name": shared})


@pytest.mark.parametrize(
    "body",
    [
        "compilation: {pass_config: {%s: 1}}",
        "engine: {env: {%s: x}}",
        "parallel: {eplb_config: {%s: 1}}",
        "model: {config: {rope_scaling: {%s: 1}}}",
    ],
)
def test_a_key_is_no_longer_than_what_can_be_written_again(body):
    longest = "x" * MAX_KEY_LENGTH
    assert deployment(body % longest)
    with pytest.raises(DocumentError, match="a key of 161 characters is too long"):
        deployment(body % (longest + "x"))
