"""Every source of the corpus gives the Deployment that was written for it by hand."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from planner.compile import compile_plan
from planner.documents.load import load_deployment
from planner.documents.writer import dump_deployment
from planner.errors import DocumentError
from tests.planner.importers.corpus import (
    ACCEPTED,
    OPTIONS,
    REFUSED,
    SOURCES,
    beside,
    case_name,
    import_case,
)


def test_each_source_is_either_accepted_or_refused() -> None:
    assert Counter(ACCEPTED + REFUSED) == Counter(SOURCES)
    assert set(OPTIONS) <= set(map(case_name, SOURCES))


def test_the_corpus_has_at_least_sixty_sources_of_all_engines() -> None:
    engines = Counter(source.parent.name for source in ACCEPTED)
    assert engines.keys() == {"vllm", "sglang", "tensorrt-llm"}
    assert sum(engines.values()) >= 60


@pytest.mark.parametrize("source", ACCEPTED, ids=case_name)
def test_a_source_gives_the_deployment_that_was_written_for_it(source: Path) -> None:
    assert import_case(source).deployment == load_deployment(beside(source, ".expected.yaml"))


@pytest.mark.parametrize("source", ACCEPTED, ids=case_name)
def test_what_is_imported_is_written_and_read_back_and_planned(source: Path) -> None:
    deployment = import_case(source).deployment
    assert load_deployment(dump_deployment(deployment)) == deployment
    assert compile_plan(deployment).digest


@pytest.mark.parametrize("source", REFUSED, ids=case_name)
def test_a_source_is_refused_with_the_message_that_was_written_for_it(source: Path) -> None:
    with pytest.raises(DocumentError) as error:
        import_case(source)
    assert beside(source, ".refused.txt").read_text().strip() in str(error.value)
