"""Traces of requests: what is read of each kind, and how malformed rows are told."""

from __future__ import annotations

import pytest

from planner.errors import DocumentError
from planner.traffic import lines, trace
from planner.traffic.lines import SKIPPING
from tests.planner.traffic.reading import read, requests
from tests.planner.traffic.reading import trace as trace_in
from tests.planner.traffic.texts import AZURE, AZURE_2024, BURSTGPT, MOONCAKE, VIDUR


def test_azure_times_count_from_the_first_request() -> None:
    assert requests(AZURE) == [(0.0, 374, 44), (4.314579, 396, 109), (4.541877, 879, 55)]


def test_azure_of_2024_has_offsets_and_requests_may_stand_in_any_order() -> None:
    assert requests(AZURE_2024) == [(0.0, 2399, 6), (0.00993, 2162, 5)]


def test_offsets_of_time_zones_count() -> None:
    rows = "2024-05-10T01:00:00+01:00,1,2\n2024-05-10 00:00:01Z,3,4\n2024-05-10 02:00:02 +0200,5,6\n"
    assert requests("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows) == [(0, 1, 2), (1, 3, 4), (2, 5, 6)]


def test_burstgpt_requests_that_failed_are_left_out_and_counted() -> None:
    assert requests(BURSTGPT) == [(0.0, 472, 18), (113.0, 417, 276)]
    assert trace_in(BURSTGPT).without_output == 1


def test_vidur_may_write_whole_numbers_with_a_point() -> None:
    assert requests(VIDUR) == [(0.0, 374, 44), (1.25, 396, 109)]


def test_mooncake_times_are_milliseconds() -> None:
    assert requests(MOONCAKE) == [(0.0, 6758, 500), (3.052, 7322, 490)]


def test_columns_are_found_by_name_with_others_between_them() -> None:
    text = "id,num_decode_tokens,arrived_at,num_prefill_tokens\r\nx,3,0.5,2\r\n\r\n# half time\r\ny,5,2,4\r\n"
    assert requests(text) == [(0.0, 2, 3), (1.5, 4, 5)]


def test_a_byte_order_mark_is_no_part_of_the_first_column() -> None:
    assert requests(b"\xef\xbb\xbf" + AZURE.encode()) == requests(AZURE)


AZURE_ROW = "2023-11-16 18:15:46.68,374,44"
MALFORMED = {
    "2023-11-16 18:15:46.68,374": "a row of 2 cells, below a header of 3",
    "2023-11-16 18:15:46.68,374,44,1": "a row of 4 cells, below a header of 3",
    "2023-11-16,374,44": "TIMESTAMP: expected a time such as 2023-11-16 18:15:46.68, found '2023-11-16'",
    "2023-13-16 18:15:46,374,44": "TIMESTAMP: there is no time '2023-13-16 18:15:46'",
    "1066-10-14 09:00:00,374,44": "TIMESTAMP: -28502722800 is too small; the smallest value is 0",
    f"{AZURE_ROW[:-2]}": "GeneratedTokens: expected a whole number, found nothing",
    f"{AZURE_ROW}.5": "GeneratedTokens: expected a whole number, found '44.5'",
    f"{AZURE_ROW[:-2]}-4": "GeneratedTokens: -4 is too small; the smallest value is 0",
    f"{AZURE_ROW[:-2]}٤": "GeneratedTokens: expected a whole number, found '٤'",
    f"{AZURE_ROW}000000000": "GeneratedTokens: 44000000000 is too large; the largest value is 10000000",
    f"{AZURE_ROW[:-2]}{'9' * 5000}": "GeneratedTokens: a number of more than 40 digits is too large; the "
    "largest value is 10000000",
    '"2023-11-16 18:15:46.68,374,44': "not CSV: unexpected end of data",
}


@pytest.mark.parametrize(("row", "what"), MALFORMED.items(), ids=range(len(MALFORMED)))
def test_a_malformed_row_is_told_with_its_line_and_skipped_only_on_request(row: str, what: str) -> None:
    text = f"{AZURE}{row}\n{AZURE_ROW}\n"
    with pytest.raises(DocumentError) as caught:
        read(text)
    assert str(caught.value).startswith(f"folder/file:5:1: {what}")
    assert str(caught.value).endswith(f"; {SKIPPING}")
    found = read(text, skip_malformed=True)
    assert found.skipped == 1
    assert found.first_skipped.startswith(f"line 5: {what}")
    assert len(found.content) == 4  # type: ignore[arg-type]


def mooncake(timestamp: str = "1", prompt: str = "2", output: str = "3") -> str:
    return f'{{"timestamp": {timestamp}, "input_length": {prompt}, "output_length": {output}}}'


MALFORMED_MOONCAKE = {
    mooncake()[:-1]: "not JSON: ",
    "[1]": "expected a JSON object, found '[1]'",
    mooncake().replace("output", "out"): "output_length: expected a number, found nothing",
    mooncake('"1"'): "timestamp: expected a number, found '\"1\"'",
    mooncake("true"): "timestamp: expected a number, found 'true'",
    mooncake("NaN"): "timestamp: expected a number from 0 to 9000000000000, found 'nan'",
    mooncake("-1"): "timestamp: expected a number from 0 to 9000000000000, found '-1'",
    mooncake("9" * 400): "timestamp: expected a number from 0 to 9000000000000, found '9999",
    mooncake(prompt="NaN"): "input_length: expected a whole number, found nan",
    mooncake(prompt="Infinity"): "input_length: expected a whole number, found inf",
    mooncake(prompt="2.5"): "input_length: expected a whole number, found 2.5",
    mooncake(prompt="9" * 400): "input_length: a number of more than 40 digits is too large",
    mooncake(output="-1"): "output_length: -1 is too small; the smallest value is 0",
    mooncake(output="9" * 5000): "a number of thousands of digits",
    "[" * 100_000: "a number of thousands of digits, or lists nested as deep",
}


@pytest.mark.parametrize(("row", "what"), MALFORMED_MOONCAKE.items(), ids=range(len(MALFORMED_MOONCAKE)))
def test_a_malformed_object_is_told_with_its_line(row: str, what: str) -> None:
    with pytest.raises(DocumentError) as caught:
        read(MOONCAKE + row + "\n")
    assert str(caught.value).startswith(f"folder/file:3:1: {what}")
    assert len(str(caught.value)) < 1500
    assert read(MOONCAKE + row + "\n", skip_malformed=True).skipped == 1


def test_a_first_line_that_is_cut_off_is_still_mooncakes() -> None:
    with pytest.raises(DocumentError, match="file:1:1: not JSON"):
        read('{"timestamp": 1, "input_length": 2, "ou\n' + MOONCAKE)


def test_a_line_that_is_too_long_is_malformed_and_the_next_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LONGEST_LINE", 64)
    text = AZURE + "x" * 1000 + "\n" + AZURE_ROW + "\n"
    with pytest.raises(DocumentError, match="file:5:1: longer than 64 bytes, which no row is; correct it"):
        read(text)
    assert len(trace_in(text, skip_malformed=True)) == 4


def test_a_line_of_other_bytes_is_malformed() -> None:
    with pytest.raises(DocumentError, match="file:5:1: not UTF-8 text; correct it"):
        read(AZURE.encode() + b"\xff\xfe\n")


def test_too_many_requests_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MAX_REQUESTS", 2)
    with pytest.raises(DocumentError, match="file:4:1: more than 2 requests; give a part of the trace"):
        read(AZURE)


@pytest.mark.parametrize(
    "text", [AZURE.splitlines()[0], "arrived_at,num_prefill_tokens,num_decode_tokens\n1,1,0"]
)
def test_a_trace_without_any_served_request_is_refused(text: str) -> None:
    with pytest.raises(DocumentError, match="file: has no request that generated a token"):
        read(text)
