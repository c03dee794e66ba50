from planner import load_plan
from planner.modes import CapturePolicy
from planner.policies.compare import under_other_policies
from planner.queries import Query
from tests.planner.policies.documents import compiled

SECTIONS = {
    "scheduler": {"max_num_seqs": 128},
    "speculative": {"method": "ngram", "num_speculative_tokens": 15},
}


def test_a_batch_without_a_graph_of_the_engine_has_one_under_covering() -> None:
    query = Query(num_reqs=40, num_tokens=640, uniform_token_count=16, max_query_len=16)
    (other,) = under_other_policies(compiled("engine", **SECTIONS), query, "target")
    assert other.policy is CapturePolicy.COVERING
    assert other.entry is not None
    assert (other.entry.num_tokens, other.padding(640)) == (640, 0)
    (other,) = under_other_policies(compiled("covering", **SECTIONS), query, "target")
    assert (other.policy, other.entry, other.padding(640)) == (CapturePolicy.ENGINE, None, 0)


def test_plans_that_no_deployment_explains_are_compared_with_nothing() -> None:
    graphs = {"target": [{"mode": "PIECEWISE", "num_tokens": 8}]}
    plan = load_plan({"apiVersion": "graphplan/v1", "kind": "Plan", "graphs": graphs})
    assert list(under_other_policies(plan, Query(num_reqs=1, num_tokens=1), "target")) == []
