"""``planner check``: findings of both kinds of document, and what a changed plan says."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from planner import compile_plan, dump_plan, load_deployment
from planner.cli import server_logs
from planner.traffic.histogram import Histogram, HistogramRow
from tests.planner.cli.conftest import DEPLOYMENT, PLAN_BY_HAND, PROJECT, Run, one_line

LOGS = PROJECT / "tests" / "data" / "server-logs"
DFLASH = PROJECT / "plans" / "compiled" / "qwen3-8b-dflash.yaml"
DFLASH_LOG = LOGS / "qwen3-8b-dflash.log"


def codes(run: Run, path: Path) -> dict[str, str]:
    """Severity of each finding by its code."""
    (report,) = json.loads(run("check", path, "--format", "json").stdout)
    return {finding["code"]: finding["severity"] for finding in report["findings"]}


def test_a_good_deployment_and_its_plan_pass(run: Run, deployment: Path, plan: Path, by_hand: Path) -> None:
    result = run("check", deployment, plan, by_hand)
    assert result.exit_code == 0
    assert result.stderr == ""
    kinds = [line.split()[:2] for line in result.stdout.splitlines()[:3]]
    assert kinds == [[str(deployment), "Deployment"], [str(plan), "Plan"], [str(by_hand), "Plan"]]
    assert codes(run, plan) == codes(run, deployment)


def test_an_edited_plan_is_reported_and_read_all_the_same(run: Run, plan: Path) -> None:
    plan.write_text(plan.read_text().replace("num_tokens: 64}", "num_tokens: 63}"))
    result = run("check", plan)
    assert result.exit_code == 0
    assert run("check", plan, "--strict").exit_code == 1
    assert codes(run, plan)["edited"] == "warning"
    assert "fix: planner compile PLAN -o PLAN" in result.stdout


def test_an_edited_name_is_no_edit(run: Run, plan: Path) -> None:
    before = codes(run, plan)
    plan.write_text(plan.read_text().replace("name: small", "name: large"))
    assert codes(run, plan) == before


def test_a_plan_whose_deployment_compiles_to_other_graphs_is_stale(run: Run, plan: Path) -> None:
    plan.write_text(plan.read_text().replace("max_num_seqs: 8", "max_num_seqs: 4"))
    result = run("check", plan, "--strict")
    assert result.exit_code == 1
    assert codes(run, plan).items() >= {"edited": "warning", "stale": "warning"}.items()
    assert "target +0 -" in result.stdout


def test_a_plan_without_a_digest_is_by_hand_and_never_stale(run: Run, plan: Path) -> None:
    lines = plan.read_text().replace("num_tokens: 64}", "num_tokens: 63}").splitlines(keepends=True)
    plan.write_text("".join(line for line in lines if not line.startswith("digest: ")))
    assert {"edited", "stale"}.isdisjoint(codes(run, plan))


def test_a_plan_whose_deployment_is_refused_is_an_error(run: Run, plan: Path) -> None:
    plan.write_text(
        plan.read_text().replace("    cudagraph_mode: FULL\n", "    cudagraph_capture_sizes: []\n", 1)
    )
    assert run("check", plan).exit_code == 1
    assert codes(run, plan)["deployment-refused"] == "error"


def test_an_impossible_plan_fails(run: Run, by_hand: Path) -> None:
    by_hand.write_text(by_hand.read_text().replace("num_tokens: 4", "num_tokens: 3"))
    result = run("check", by_hand)
    assert result.exit_code == 1
    assert "error" in codes(run, by_hand).values()


def test_errors_stand_before_warnings_and_notes(run: Run, plan: Path) -> None:
    text = plan.read_text().replace("num_tokens: 32, num_reqs: 8", "num_tokens: 33, num_reqs: 8")
    plan.write_text(text)
    assert list(codes(run, plan).values()) == sorted(
        codes(run, plan).values(), key=["error", "warning", "info"].index
    )
    assert "error" in codes(run, plan).values()


def test_every_file_is_looked_at_and_the_worst_decides(run: Run, deployment: Path, by_hand: Path) -> None:
    by_hand.write_text(by_hand.read_text().replace("num_tokens: 4", "num_tokens: 3"))
    result = run("check", "no-such-file", by_hand, deployment)
    assert result.exit_code == 2
    assert one_line(result.stderr) == "planner: error: no-such-file: no such file"
    assert [line.split()[1] for line in result.stdout.splitlines()[:3]] == ["-", "Plan", "Deployment"]


def test_a_refused_deployment_names_its_file(run: Run, deployment: Path) -> None:
    deployment.write_text(DEPLOYMENT.replace("cudagraph_mode: FULL", "cudagraph_capture_sizes: []"))
    result = run("check", deployment)
    assert result.exit_code == 2
    assert one_line(result.stderr).startswith(
        f"planner: error: {deployment}: compilation.cudagraph_capture_sizes, compilation.cudagraph_mode: "
    )
    assert result.stdout.split()[-1] == "refused"


def test_json_holds_what_the_text_says(run: Run, deployment: Path) -> None:
    result = run("check", deployment, "no-such-file", "--format", "json")
    assert result.exit_code == 2
    first, second = json.loads(result.stdout)
    assert (first["file"], first["kind"], first["error"]) == (str(deployment), "Deployment", None)
    assert (second["kind"], second["error"], second["findings"]) == (None, "no-such-file: no such file", [])


def test_standard_input_is_checked(run: Run) -> None:
    result = run("check", "-", input=DEPLOYMENT)
    assert result.exit_code == 0
    assert result.stdout.startswith("standard input  Deployment")


def test_a_plan_is_shown_beside_what_its_server_printed(run: Run) -> None:
    result = run("check", DFLASH, "--log", DFLASH_LOG)
    assert result.exit_code == 0
    block = result.stdout.split("\n\n")[1].splitlines()
    assert block[0] == f"against {DFLASH_LOG}"
    cells = {line.split()[0]: line.split()[1:] for line in block[2:]}
    assert cells["vllm"] == ["0.33", "0.33.0"]
    assert cells["cudagraph_mode"] == ["FULL_AND_PIECEWISE", "FULL_AND_PIECEWISE"]
    assert " ".join(cells["capture"]) == "- 21 s, 1.12 GiB, the most of 2 ranks"
    assert "log-" not in result.stdout


def test_a_server_that_did_something_else_fails(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(DFLASH_LOG.read_bytes().replace(b"51/51", b"50/50").replace(b"496, 512]", b"496]"))
    result = run("check", DFLASH, "--log", log)
    assert result.exit_code == 1
    assert [line.split()[:2] for line in result.stdout.splitlines() if " log-" in line] == [
        ["error", "log-sizes-differ"],
        ["error", "log-graph-count-differs"],
    ]
    assert "target PIECEWISE" in result.stdout
    assert result.stdout.count("differs\n") == 2


def test_a_deployment_is_compiled_and_compared(run: Run) -> None:
    deployment = PROJECT / "plans" / "deployments" / "llama-3.1-8b-24gb.yaml"
    result = run("check", deployment, "--log", LOGS / "llama-3.1-8b-24gb-out-of-memory.json.log")
    assert result.exit_code == 1
    assert "the server's capture ended at 3 of 5 FULL graphs of target" in result.stdout


def test_a_log_that_is_silent_on_the_graphs_fails_only_when_strict(run: Run) -> None:
    log = b"Graph capturing finished in 3 secs, took 0.25 GiB\n"
    assert run("check", DFLASH, "--log", "-", input=log).exit_code == 0
    result = run("check", DFLASH, "--log", "-", "--strict", input=log)
    assert result.exit_code == 1
    assert "against standard input" in result.stdout
    assert "not in the log" in result.stdout


def test_json_holds_the_comparison(run: Run) -> None:
    (report,) = json.loads(run("check", DFLASH, "--log", DFLASH_LOG, "--format", "json").stdout)
    log = report["log"]
    assert log["file"] == str(DFLASH_LOG)
    assert log["server"]["graphs"][0] == {
        "family": "target",
        "mode": "PIECEWISE",
        "captured": 51,
        "total": 51,
    }
    assert log["server"]["ranks"][1] == {"process": "Worker_TP1", "seconds": 21.0, "gib": 1.07}
    assert {"subject": "tensor_parallel_size", "plan": 2, "server": 2, "agrees": True, "note": None} in log[
        "compared"
    ]
    runner = next(one for one in log["compared"] if one["subject"] == "runner")
    assert runner == {
        "subject": "runner",
        "plan": "v2",
        "server": "v2",
        "agrees": True,
        "note": None,
    }
    (report,) = json.loads(run("check", DFLASH, "--format", "json").stdout)
    assert report["log"] is None


def test_a_log_of_something_else_is_bad_input(run: Run, plan: Path, by_hand: Path) -> None:
    result = run("check", plan, "--log", by_hand)
    assert result.exit_code == 2
    assert one_line(result.stderr).startswith(
        f"planner: error: {by_hand}: has nothing to compare: no line of"
    )


def test_a_log_that_cannot_be_read_is_bad_input(run: Run, plan: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    faults = {
        tmp_path / "no-such-log": "no such file",
        tmp_path: "is a folder",
        tmp_path / "pipe": "is a pipe or a device; give a file",
        "/dev/zero": "is a pipe or a device; give a file",
        "\0": "cannot be read",
    }
    for log, fault in faults.items():
        result = run("check", plan, "--log", log)
        assert result.exit_code == 2
        assert fault in one_line(result.stderr)


def test_a_log_without_end_is_bad_input(run: Run, plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_logs, "MAX_BYTES", 3 << 20)
    result = run("check", plan, "--log", "-", input=b"\0" * (4 << 20))
    assert result.exit_code == 2
    assert "standard input: larger than 3 MiB; give the part" in one_line(result.stderr)


def test_the_log_of_another_server_fails(run: Run) -> None:
    result = run("check", DFLASH, "--log", LOGS / "llama-3.1-70b-eagle3-v1.log")
    assert result.exit_code == 1
    assert "log-other-model" in result.stdout
    assert "tensor_parallel_size: 2 in the plan, 8 in the server" in result.stdout


def test_a_log_that_stops_before_the_capture_fails(run: Run) -> None:
    whole = DFLASH_LOG.read_bytes()
    result = run("check", DFLASH, "--log", "-", input=whole[: whole.index(b"Capturing CUDA graphs")])
    assert result.exit_code == 1
    assert "the log stops before any graph was captured" in result.stdout


def test_a_capture_that_was_cut_shows_how_far_it_came(run: Run) -> None:
    deployment = PROJECT / "plans" / "deployments" / "llama-3.1-8b-24gb.yaml"
    result = run("check", deployment, "--log", LOGS / "llama-3.1-8b-24gb-out-of-memory.json.log")
    (line,) = (line for line in result.stdout.splitlines() if line.startswith("  target FULL"))
    assert line.split() == ["target", "FULL", "5", "3", "incomplete"]


def test_one_log_is_of_one_server(run: Run, plan: Path, by_hand: Path) -> None:
    result = run("check", plan, by_hand, "--log", DFLASH_LOG)
    assert result.exit_code == 2
    assert "--log is compared with one FILE, not with 2" in one_line(result.stderr)


def test_standard_input_is_the_document_or_the_log(run: Run) -> None:
    result = run("check", "-", "--log", "-", input=DEPLOYMENT)
    assert result.exit_code == 2
    assert "standard input (-) can be given once only" in one_line(result.stderr)


CORPUS = PROJECT / "tests" / "data" / "corpus" / "vllm"
EXAMPLES = PROJECT / "plans" / "examples"


def test_every_server_of_a_manifest_is_checked(run: Run) -> None:
    reports = json.loads(run("check", CORPUS / "30-two-servers.yaml", "--format", "json").stdout)
    assert [report["server"] for report in reports] == ["deployment/prefill/vllm", "deployment/decode/vllm"]
    named = run("check", CORPUS / "30-two-servers.yaml", "--name", "decode", "--format", "json")
    assert [report["server"] for report in json.loads(named.stdout)] == ["deployment/decode/vllm"]


def test_options_for_one_server_are_refused_for_several(run: Run) -> None:
    result = run("check", CORPUS / "30-two-servers.yaml", "--model-config", "x.json")
    assert result.exit_code == 2
    assert "give one with --name" in one_line(result.stderr)


def test_findings_of_a_manifest_are_annotations_of_its_lines(run: Run) -> None:
    file = EXAMPLES / "kubernetes-vllm.yaml"
    result = run("check", file, "--device", "H100", "--format", "github")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    sizes = 1 + file.read_text().splitlines().index("        - --cudagraph-capture-sizes")
    assert lines[0].startswith(
        f"::warning file={file},line={sizes},title=decode-hole::deployment/qwen/vllm: "
    )
    assert all(line.startswith("::notice ") for line in lines[1:])
    assert run("check", file, "--device", "H100", "--format", "github", "--strict").exit_code == 1


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("43-misspelt-flag.yaml", "line=10,col=7::pod/p/c: --max-num-sqs: is no flag"),
        ("46-value-from-a-config-map.yaml", "line=9,col=7::pod/p/c: VLLM_USE_V2_MODEL_RUNNER: "),
        ("44-variable-that-matters.sh", "line=1,col=41::line 1: --max-num-seqs: "),
    ],
)
def test_errors_are_annotations_too(run: Run, name: str, place: str) -> None:
    result = run("check", CORPUS / name, "--format", "github")
    assert result.exit_code == 2
    assert result.stdout.startswith(f"::error file={CORPUS / name},{place}")


def test_a_refused_combination_is_annotated_at_its_flag(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text(
        "vllm serve Qwen/Qwen3-8B \\\n"
        "  --cudagraph-capture-sizes 1 2 4 \\\n"
        "  --max-cudagraph-capture-size 8\n"
    )
    result = run("check", file, "--format", "github")
    assert result.exit_code == 2
    assert result.stdout.startswith(f"::error file={file},line=")
    assert ",line=1:" not in result.stdout


def test_documents_are_annotated_without_lines(run: Run, deployment: Path) -> None:
    result = run("check", deployment, "--format", "github")
    assert all(f"file={deployment},title=" in line for line in result.stdout.splitlines())


def test_files_that_start_nothing_are_passed_over_if_asked(
    run: Run, tmp_path: Path, deployment: Path
) -> None:
    service = tmp_path / "service.yaml"
    service.write_text("apiVersion: v1\nkind: Service\nmetadata: {name: vllm-openai}\nspec: {ports: []}\n")
    other = tmp_path / "notes.txt"
    other.write_text("nothing")
    assert run("check", service, other, "--skip-others").exit_code == 0
    assert run("check", service).exit_code == 2
    assert run("check", other).exit_code == 2
    result = run("check", other, deployment, "--skip-others", "--format", "json")
    assert [report["file"] for report in json.loads(result.stdout)] == [str(deployment)]


def test_a_manifest_comes_from_standard_input_too(run: Run) -> None:
    text = (EXAMPLES / "kubernetes-vllm.yaml").read_text()
    result = run("check", "-", "--format", "github", input=text)
    assert result.stdout.startswith("::warning line=")


def test_a_value_that_nothing_asks_for_is_told_once_for_all_files(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("vllm serve m --max-num-seqs $M")
    (tmp_path / "b.sh").write_text("vllm serve m")
    result = run("check", "--set", "M=4", "--set", "N=4", tmp_path / "a.sh", tmp_path / "b.sh")
    assert result.exit_code == 0
    assert result.stderr == "planner: note: --set N has no effect: nothing asks for its value\n"


def test_what_a_script_takes_from_elsewhere_is_a_finding(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("source .env\nfor i in 1; do vllm serve m; done\n")
    (report,) = json.loads(run("check", tmp_path / "a.sh", "--format", "json").stdout)
    found = [finding["message"] for finding in report["findings"] if finding["code"] == "command-line"]
    assert "line 1: .env is not read; give what it sets with --set" in found
    assert any("the server is started in the loop of line 2" in message for message in found)


def test_a_manifest_without_a_server_says_where_it_may_be(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("# vllm serve\ninclude: [b.yaml]\nservices:\n  a: {image: x}\n")
    result = run("check", tmp_path / "a.yaml")
    assert result.exit_code == 2
    assert "include b.yaml is not read; import it by itself" in one_line(result.stderr)
    assert run("check", "--skip-others", tmp_path / "a.yaml").exit_code == 0


def test_the_hook_and_the_workflow_call_what_exists(run: Run) -> None:
    hooks = (PROJECT / ".pre-commit-hooks.yaml").read_text()
    workflow = (EXAMPLES / "check-plans.workflow.yml").read_text()
    assert "entry: planner check --skip-others" in hooks
    options = set(re.findall(r"--[a-z-]+", hooks + workflow))
    described = run("check", "--help").stdout
    assert options
    assert all(option in described for option in options)


# Plans of the traffic policy ----------------------------------------------------------------------

FOR_TRAFFIC = """\
apiVersion: graphplan/v1
kind: Deployment
scheduler: {max_num_seqs: 64}
capture: {policy: traffic, traffic: traffic.csv, max_graphs: 6}
"""
COUNTS = "num_reqs,num_tokens,count\n3,3,50\n20,20,30\n"


@pytest.fixture
def traffic_plan(run: Run, tmp_path: Path) -> Path:
    """The plan of a deployment that names a histogram beside it."""
    (tmp_path / "traffic.csv").write_text(COUNTS)
    (tmp_path / "for-traffic.yaml").write_text(FOR_TRAFFIC)
    path = tmp_path / "for-traffic.plan.yaml"
    assert run("compile", tmp_path / "for-traffic.yaml", "-o", path, "-q").exit_code == 0
    return path


def test_a_plan_for_traffic_passes_wherever_it_is_checked_from(
    run: Run, traffic_plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("check", traffic_plan, "--strict").exit_code == 0
    assert codes(run, traffic_plan) == codes(run, traffic_plan.with_name("for-traffic.yaml"))
    monkeypatch.chdir(traffic_plan.parent)
    assert run("check", traffic_plan.name, "--strict").exit_code == 0
    assert run("check", "-", "--strict", input=traffic_plan.read_text()).exit_code == 0


def test_a_plan_for_traffic_of_an_absolute_name_passes(run: Run, traffic_plan: Path, tmp_path: Path) -> None:
    absolute = f"traffic: {tmp_path / 'traffic.csv'},"
    traffic_plan.write_text(traffic_plan.read_text().replace("traffic: traffic.csv,", absolute))
    elsewhere = tmp_path / "folder"
    elsewhere.mkdir()
    moved = traffic_plan.rename(elsewhere / "plan.yaml")
    assert run("check", moved, "--strict").exit_code == 0


def test_a_plan_whose_traffic_is_gone_is_checked_as_far_as_it_goes(run: Run, traffic_plan: Path) -> None:
    traffic_plan.with_name("traffic.csv").unlink()
    result = run("check", traffic_plan, "--strict")
    assert result.exit_code == 0
    assert codes(run, traffic_plan)["traffic-not-read"] == "info"
    words = " ".join(result.stdout.split())
    assert "traffic.csv: no such file; whether the plan is current was not looked at" in words


def test_a_plan_whose_traffic_cannot_be_read_any_more_is_told(run: Run, traffic_plan: Path) -> None:
    traffic_plan.with_name("traffic.csv").write_text(f"{COUNTS}many,1,1\n")
    assert run("check", traffic_plan).exit_code == 0
    assert codes(run, traffic_plan)["traffic-not-read"] == "warning"


def test_a_plan_whose_traffic_has_changed_is_told_with_what_to_do(run: Run, traffic_plan: Path) -> None:
    histogram = traffic_plan.with_name("traffic.csv")
    histogram.write_text(COUNTS.replace("30", "31"))
    result = run("check", traffic_plan)
    assert result.exit_code == 0
    assert codes(run, traffic_plan)["traffic-changed"] == "warning"
    assert "counts other traffic than the plan was made for" in " ".join(result.stdout.split())
    assert run("compile", traffic_plan, "--traffic", histogram, "-o", traffic_plan, "-q").exit_code == 0
    assert run("check", traffic_plan, "--strict").exit_code == 0


def test_a_plan_for_traffic_goes_stale_like_any_other(run: Run, traffic_plan: Path) -> None:
    traffic_plan.write_text(traffic_plan.read_text().replace("max_num_seqs: 64", "max_num_seqs: 32"))
    assert codes(run, traffic_plan).items() >= {"edited": "warning", "stale": "warning"}.items()


def test_a_plan_for_the_counts_of_a_cache_is_not_compared(run: Run, traffic_plan: Path) -> None:
    traffic_plan.write_text(traffic_plan.read_text().replace("traffic: traffic.csv", "traffic: cache"))
    assert run("check", traffic_plan).exit_code == 0
    assert codes(run, traffic_plan)["traffic-not-read"] == "info"


def test_a_plan_that_was_compiled_for_counts_from_python_is_not_compared(run: Run, tmp_path: Path) -> None:
    rows = (HistogramRow(num_tokens=3, num_reqs=3, count=5),)
    deployment = load_deployment(FOR_TRAFFIC.replace("traffic: traffic.csv, ", ""))
    path = tmp_path / "plan.yaml"
    path.write_text(dump_plan(compile_plan(deployment, histogram=Histogram(rows=rows))))
    assert run("check", path).exit_code == 0
    assert codes(run, path)["traffic-not-read"] == "info"


def test_the_policy_of_a_plan_by_hand_that_names_no_traffic_is_no_news(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "by-hand.yaml"
    path.write_text(PLAN_BY_HAND + "deployment: {capture: {policy: traffic}}\n")
    result = run("check", path)
    assert result.exit_code == 0
    assert "traffic-not-read" not in codes(run, path)
