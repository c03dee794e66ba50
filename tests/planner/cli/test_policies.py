import gzip
import json
from pathlib import Path

import pytest

from cache.store import PlanCache
from planner import compile_plan, load_deployment, load_plan
from planner.documents.plan import TARGET
from planner.modes import CapturePolicy
from planner.traffic.histogram import Histogram, HistogramRow, dump_histogram, histogram_of
from planner.traffic.lines import SKIPPING
from tests.planner.cli.conftest import PROJECT, Run
from tests.planner.traffic.texts import AZURE

DEPLOYMENT = """\
apiVersion: graphplan/v1
kind: Deployment
name: chat
scheduler: {max_num_seqs: 64}
"""
ROWS = [HistogramRow(num_tokens=reqs, num_reqs=reqs, count=count) for reqs, count in ((3, 50), (20, 30))]
COUNTED: Histogram = histogram_of([ROWS, ROWS])


@pytest.fixture
def deployment(tmp_path: Path) -> Path:
    path = tmp_path / "deployment.yaml"
    path.write_text(DEPLOYMENT)
    (tmp_path / "traffic.csv").write_text(dump_histogram(COUNTED))
    return path


def test_a_policy_on_the_command_line_comes_before_that_of_the_document(run: Run, deployment: Path) -> None:
    covering = run("compile", deployment, "--policy", "covering", "-q")
    assert covering.exit_code == 0
    plan = load_plan(covering.stdout)
    assert plan.deployment.capture.policy is CapturePolicy.COVERING
    deployment.write_text(DEPLOYMENT + "capture: {policy: covering}\n")
    assert run("compile", deployment, "-q").stdout == covering.stdout
    engine = load_plan(run("compile", deployment, "--policy", "engine", "-q").stdout)
    assert engine.graphs != plan.graphs


def test_traffic_on_the_command_line_is_planned_for(run: Run, deployment: Path) -> None:
    traffic = deployment.with_name("traffic.csv")
    result = run("compile", deployment, "--traffic", traffic, "--max-graphs", "5")
    plan = load_plan(result.stdout)
    assert plan.deployment.capture.policy is CapturePolicy.TRAFFIC
    assert plan.deployment.capture.traffic_sha256 == COUNTED.digest
    assert len(plan.resolved[TARGET].cudagraph_capture_sizes) == 5
    assert "what other numbers of sizes would cost" in result.stderr
    words = " ".join(result.stderr.split())
    assert "5 10 " in words
    assert "5 sizes, as many as max_graphs 5 allows" in words


def test_a_command_line_of_an_engine_takes_a_policy_too(run: Run) -> None:
    result = run("compile", "--policy", "covering", "-q", "vllm", "serve", "--max-num-seqs", "12", "org/name")
    assert "policy: covering" in result.stdout


def test_the_plan_of_a_traffic_policy_is_compiled_anew_from_the_file_beside_it(
    run: Run, deployment: Path
) -> None:
    deployment.write_text(DEPLOYMENT + "capture: {policy: traffic, traffic: traffic.csv}\n")
    plan = deployment.with_name("plan.yaml")
    assert run("compile", deployment, "-o", plan, "-q").exit_code == 0
    before = plan.read_bytes()
    assert run("compile", plan, "-o", plan, "-q").exit_code == 0
    assert plan.read_bytes() == before
    deployment.with_name("traffic.csv").unlink()
    result = run("compile", plan)
    assert result.exit_code == 2
    assert "traffic.csv: no such file" in result.stderr
    assert run("compile", plan, "--policy", "covering", "-q").exit_code == 0


def test_counts_of_a_cache_are_traffic(run: Run, deployment: Path, tmp_path: Path) -> None:
    served = compile_plan(load_deployment(deployment))
    folder = tmp_path / "cache"
    with PlanCache(folder) as cache:
        cache.put_plan(served)
        replayed = {entry: 10 for entry in served.entries() if entry.uniform_token_count}
        cache.add_usage(str(served.digest), TARGET, replayed)
    deployment.write_text(DEPLOYMENT + "capture: {policy: traffic, traffic: cache, max_graphs: 6}\n")
    result = run("compile", deployment, "--cache", folder, "-q")
    assert result.exit_code == 0, result.stderr
    plan = load_plan(result.stdout)
    assert plan.deployment.capture.traffic == "cache"
    assert len(plan.resolved[TARGET].cudagraph_capture_sizes) == 6


def test_a_cache_that_counted_nothing_is_no_traffic(run: Run, deployment: Path, tmp_path: Path) -> None:
    with PlanCache(tmp_path / "cache") as cache:
        cache.put_plan(compile_plan(load_deployment(deployment)))
    deployment.write_text(DEPLOYMENT + "capture: {policy: traffic, traffic: cache}\n")
    result = run("compile", deployment, "--cache", tmp_path / "cache")
    assert result.exit_code == 2
    assert "capture.traffic: no cache has counted batches of this deployment's plans" in result.stderr


def test_diff_shows_what_a_policy_changes(run: Run, deployment: Path) -> None:
    plan, other = deployment.with_name("plan.yaml"), deployment.with_name("other.yaml")
    run("compile", deployment, "-o", plan, "-q")
    run("compile", deployment, "-o", other, "-q", "--policy", "covering")
    result = run("diff", plan, other)
    assert result.exit_code == 1
    words = " ".join(result.stdout.split())
    assert 'settings capture {"policy": "covering"}' in words
    assert "uniform decode of 1 to 64 requests of 1 is padded by" in words


def test_explain_shows_the_padding_under_each_policy(run: Run, deployment: Path) -> None:
    plan = deployment.with_name("plan.yaml")
    run("compile", deployment, "-o", plan, "-q")
    batch = ("--num-reqs", "9", "--num-tokens", "9", "--uniform-token-count", "1")
    words = " ".join(run("explain", plan, *batch).stdout.split())
    assert "under other policies covering FULL 12 tokens, 12 requests of 1 3 tokens of padding" in words
    found = json.loads(run("explain", plan, *batch, "--format", "json").stdout)
    assert found["other_policies"]["covering"]["padding_tokens"] == 3


def test_a_policys_many_sizes_keep_summary_and_diff_within_the_width(run: Run, deployment: Path) -> None:
    plan, other = deployment.with_name("plan.yaml"), deployment.with_name("other.yaml")
    histogram = PROJECT / "plans" / "traffic" / "azure-2023-conversation.csv"
    run("compile", deployment, "-o", plan, "-q")
    summary = run("compile", deployment, "-o", other, "--traffic", histogram, "--max-graphs", 24).stderr
    difference = run("diff", plan, other).stdout
    for text in (summary, difference):
        assert "sizes, as many as max_graphs 24 allows" in " ".join(text.split())
        assert max(map(len, text.splitlines())) <= 100


def test_one_size_is_one_size(run: Run, deployment: Path) -> None:
    deployment.write_text(DEPLOYMENT.replace("64", "1"))
    traffic = deployment.with_name("traffic.csv")
    stderr = run("compile", deployment, "--traffic", traffic, "--max-graphs", 1).stderr
    assert "sizes      1 token (1 size)\n" in stderr
    assert "decode     up to 1 request of 1 token\n" in stderr
    assert "1 size, as many as max_graphs 1 allows" in stderr


def test_traffic_for_wider_servers_is_told_on_compile_and_check(run: Run, deployment: Path) -> None:
    deployment.write_text(DEPLOYMENT.replace("64", "16"))
    plan = deployment.with_name("plan.yaml")
    traffic = deployment.with_name("traffic.csv")
    result = run("compile", deployment, "--traffic", traffic, "-o", plan)
    words = "37.5% of the counted decode steps have more than 16 requests"
    assert words in " ".join(result.stderr.split())
    assert words in " ".join(run("check", plan).stdout.split())


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (gzip.compress(AZURE.encode()), "traffic.csv: is gzip-compressed; unpack it\n"),
        (AZURE.encode("utf-16"), "traffic.csv: is UTF-16; convert it to UTF-8\n"),
        (b"\1\2\0\0\3\4", "traffic.csv: is binary; give text, such as CSV\n"),
        (f"{AZURE}yesterday,1,2\n".encode(), f"; {SKIPPING}\n"),
    ],
    ids=["gzip", "utf-16", "binary", "malformed row"],
)
def test_what_is_advised_about_traffic_can_be_done(
    run: Run, deployment: Path, content: bytes, what: str
) -> None:
    traffic = deployment.with_name("traffic.csv")
    traffic.write_bytes(content)
    result = run("compile", deployment, "--traffic", traffic)
    assert result.exit_code == 2
    assert result.stderr.endswith(what)
