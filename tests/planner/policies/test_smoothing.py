from planner.policies.optimum import optimal_sizes
from planner.policies.smoothing import UNTESTED_WIDTH, WIDTHS, cross_validated, smoothed
from planner.traffic.histogram import Histogram
from planner.traffic.padding import padding_of
from tests.planner.policies.documents import counted


def fit(histogram: Histogram, width: int) -> tuple[int, ...]:
    optima = optimal_sizes(smoothed(histogram.decode_steps(), 64, width), range(65), range(1, 65), most=6)
    assert optima is not None
    return optima.sizes(optima.most)


def score(sizes: tuple[int, ...], histogram: Histogram) -> float:
    return padding_of(sizes, histogram.decode_steps()).share


def test_without_width_only_the_tail_is_added() -> None:
    weights = smoothed({10: 100}, 20, 0)
    assert weights[10] > 98 * sum(weights) / 100
    assert all(weight > 0 for weight in weights[1:])
    assert weights[0] == 0


def test_a_count_is_spread_evenly_to_both_sides_and_keeps_its_weight() -> None:
    narrow, wide = smoothed({16: 1000}, 64, 0), smoothed({16: 1000}, 64, 4)
    assert abs(sum(wide) - sum(narrow)) < sum(narrow) / 10_000
    without_tail = [weight - tail for weight, tail in zip(wide, smoothed({16: 1000}, 64, 0), strict=True)]
    assert without_tail[12] == without_tail[20] > without_tail[9] == without_tail[23] > 0
    assert without_tail[7] == without_tail[25] == 0


def test_what_would_be_spread_beyond_the_last_stays_within() -> None:
    inside, at_the_end = smoothed({30: 1000}, 64, 8), smoothed({64: 1000}, 64, 8)
    assert abs(sum(inside) - sum(at_the_end)) < sum(inside) / 10_000
    assert smoothed({100: 7}, 64, 3) == smoothed({64: 7}, 64, 3)


def test_traffic_that_repeats_itself_is_fitted_as_it_is() -> None:
    span = {3: 10, 17: 20, 21: 5, 40: 7, 41: 30}
    smoothing = cross_validated(counted(span, span, span), fit, score)
    assert smoothing.padding == 0
    assert smoothing.spans == 3
    assert smoothing.width == max(
        width for width in WIDTHS if score(fit(counted(span), width), counted(span)) == 0
    )


def test_traffic_that_moves_is_fitted_wider() -> None:
    spans = [dict.fromkeys(range(start, 60, 7), 1) for start in range(1, 8)]
    moving = cross_validated(counted(*spans), fit, score)
    assert moving.padding is not None
    assert moving.width > 0
    unsmoothed = [
        score(fit(counted(span), 0), counted(*(other for other in spans if other is not span)))
        for span in spans
    ]
    assert moving.padding < sum(unsmoothed) / len(unsmoothed)


def test_without_time_spans_nothing_is_tested() -> None:
    smoothing = cross_validated(counted({3: 10}), fit, score)
    assert (smoothing.width, smoothing.padding, smoothing.spans) == (UNTESTED_WIDTH, None, 0)
