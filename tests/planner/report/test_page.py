"""The page as a whole: what stands in it, whose text it trusts, and what it needs."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from attrs import evolve

import planner
from planner.documents.plan import Decision, Finding, Plan, Severity
from planner.errors import MachineError
from planner.report.page import report
from planner.traffic.histogram import HistogramRow, histogram_of

PLANS = Path(__file__).resolve().parents[3] / "plans"
EVIL = '<script>alert("x")</script><img src=https://example.org/x onerror=alert(1)>'


class Elements(HTMLParser):
    """Tags with their attributes, and the ids of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def named(self, tag: str) -> list[dict[str, str | None]]:
        """The attributes of all elements ``tag``."""
        return [attributes for name, attributes in self.found if name == tag]

    def values(self, name: str) -> list[str]:
        """The values of the attribute ``name`` in the whole page."""
        return [value for _, attributes in self.found if (value := attributes.get(name)) is not None]


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planner.load_plan(PLANS / "compiled/qwen3-8b-dflash.yaml")


@pytest.fixture(scope="module")
def page(plan: Plan) -> str:
    return report(plan, name="qwen3-8b-dflash.yaml")


def test_every_family_has_a_map_and_its_graphs(page: str) -> None:
    for text in (
        "<h4>Family target</h4>",
        "<h4>Family draft</h4>",
        "83 graphs of target, in capture order",
        "32 graphs of draft, in capture order",
    ):
        assert text in page


def test_findings_stand_with_their_fixes(page: str) -> None:
    assert "<td>decode-hole</td>" in page
    assert "<td>max_cudagraph_capture_size: 2048</td>" in page


def test_a_decision_stands_with_its_reason(page: str) -> None:
    assert "<td>compilation.max_cudagraph_capture_size</td>" in page
    assert "<td>the draft pass is uniform and decodes only</td>" in page


def test_the_same_plan_gives_the_same_bytes(plan: Plan, page: str) -> None:
    assert report(plan, name="qwen3-8b-dflash.yaml") == page


def test_a_page_runs_nothing_and_fetches_nothing(page: str) -> None:
    elements = Elements(page)
    for tag in ("script", "img", "iframe", "object", "embed", "base"):
        assert not elements.named(tag)
    assert elements.named("meta")[2]["content"].startswith("default-src 'none'")  # type: ignore[union-attr]
    links = [*elements.values("href"), *elements.values("src")]
    assert links
    assert all(link.startswith(("#", "data:")) for link in links)
    assert "@import" not in page
    assert "http" not in re.sub("http-equiv", "", page)


def test_ids_are_unique_and_references_lead_somewhere(plan: Plan) -> None:
    elements = Elements(report(plan, against=plan))
    ids = elements.values("id")
    assert len(ids) == len(set(ids))
    referred = {name for value in elements.values("aria-labelledby") for name in value.split()}
    referred |= {value[1:] for value in elements.values("href") if value.startswith("#")}
    for attribute in ("style", "clip-path", "fill"):
        referred |= {
            found for value in elements.values(attribute) for found in re.findall(r"url\(#(.+?)\)", value)
        }
    assert referred <= set(ids)


def test_charts_take_all_their_colours_from_the_style_sheet(page: str) -> None:
    for drawing in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        assert not re.search(r"#[0-9a-f]{6}|rgb\(|font-family", drawing)
    style = page[page.index("<style>") : page.index("</style>")]
    light, dark = style.split("@media (prefers-color-scheme: dark)")[:2]
    for name in set(re.findall(r"var\((--[\w-]+)\)", page)):
        assert f"{name}:" in light
        assert f"{name}:" in dark


def test_every_chart_says_in_words_what_it_shows(page: str) -> None:
    drawings = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(drawings) == 5
    for drawing in drawings:
        assert re.search(r"<title id=[^>]+>[^<]+</title><desc id=[^>]+>[^<]+</desc>", drawing)
        assert 'role="img"' in drawing
    assert (
        "Decode of 16 tokens a request: in 32 graphs, eagerly: decode of 33 to 128 requests of 16 tokens."
        in page
    )


def test_every_table_has_a_caption(page: str) -> None:
    assert page.count("<table>") == page.count("<caption>") > 5


def test_text_of_a_document_is_only_ever_text(plan: Plan) -> None:
    hostile = evolve(
        plan,
        name=f"{EVIL}\u202e",
        findings=(Finding(severity=Severity.ERROR, code=EVIL, message=EVIL, fix=EVIL),),
        decisions=(Decision(path=EVIL, asked=EVIL, became=[EVIL], rule=EVIL, because=EVIL),),
        graphs={**plan.graphs, EVIL: plan.graphs["draft"]},
    )
    source = histogram_of([[HistogramRow(num_reqs=3, num_tokens=3, count=1)]], source=EVIL)
    page = report(hostile, against=evolve(plan, name=EVIL), histogram=source, name=EVIL, against_name=EVIL)
    elements = Elements(page)
    assert not elements.named("script")
    assert not elements.named("img")
    assert "&lt;script&gt;" in page
    assert "\u202e" not in page


def test_a_trade_off_that_is_none_is_left_out(plan: Plan) -> None:
    torn = Decision(
        path="x",
        became=[{"sizes": "many", "padding": None}, {"sizes": 10**400, "padding": 0.5}, 3],
        rule="traffic-curve",
        because="by hand",
    )
    assert "by number of capture sizes" not in report(evolve(plan, decisions=(torn,)))


def test_two_plans_stand_side_by_side_with_what_changed(plan: Plan) -> None:
    smaller = evolve(plan, name="smaller", graphs={"target": plan.graphs["target"][1:]})
    page = report(plan, against=smaller)
    assert "<h2>What changed</h2>" in page
    assert page.count("Coverage map: ") == 3
    assert "<td>+ new</td><td>draft</td>" in page
    assert "<td>PIECEWISE</td><td>512</td>" in page


def test_equal_plans_do_not_differ(plan: Plan) -> None:
    assert "Nothing: the plans do not differ." in report(plan, against=plan)


def test_traffic_weighs_the_padding() -> None:
    plan = planner.load_plan(PLANS / "compiled/llama-3.1-8b-24gb.yaml")
    steps = histogram_of([[HistogramRow(num_reqs=3, num_tokens=3, count=9)]], source="my server")
    page = report(plan, histogram=steps)
    assert "Traffic: my server" in page
    assert '<td>this plan</td><td class="number">25.0%</td><td class="number">0.0%</td>' in page


@pytest.mark.parametrize("package", ["jinja2", "matplotlib"])
def test_a_missing_package_is_told_with_its_remedy(
    plan: Plan, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MachineError, match=r"pip install 'graphplan\[report\]'"):
        report(plan)


@pytest.mark.parametrize("path", sorted(PLANS.glob("*.yaml")), ids=lambda path: path.stem)
def test_plans_by_hand_have_a_page(path: Path) -> None:
    assert "<svg" in report(planner.load_plan(path))


@pytest.mark.parametrize(
    "name", ["whisper-large-v3", "trtllm-qwen3-8b", "sglang-deepseek-v3-dp4-eagle", "llama-3.1-70b-eagle3-v1"]
)
def test_every_engine_and_kind_of_family_has_a_page(name: str) -> None:
    assert "<svg" in report(planner.load_plan(PLANS / f"compiled/{name}.yaml"))


def test_amounts_that_no_machine_has_are_drawn_no_larger_than_the_page() -> None:
    text = """\
apiVersion: graphplan/v1
kind: Plan
estimates:
  num_graphs: 1
  memory_gib: {expected: 1.0e+308, low: 0, high: 1.7e+308, source: formula, parts: {a: 1.0e+308, b: 1.0e+308}}
  seconds: {expected: 0, low: 5, high: 0, source: formula}
graphs:
  target: [{mode: FULL, num_tokens: 8}]
"""
    assert '<td>together</td><td class="number">1e+308</td>' in report(planner.load_plan(text))


def test_a_plan_of_no_graphs_has_a_page() -> None:
    assert "0</span>" in report(planner.load_plan("apiVersion: graphplan/v1\nkind: Plan\ngraphs: {}\n"))
