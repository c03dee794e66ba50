from itertools import combinations
from random import Random

import pytest

from planner.policies.optimum import optimal_sizes


def cost_of(sizes: tuple[int, ...], weights: list[int], costs: list[int]) -> int:
    return sum(weight * costs[min(size for size in sizes if size >= n)] for n, weight in enumerate(weights))


def cheapest(
    weights: list[int], costs: list[int], candidates: list[int], required: list[int], number: int
) -> int | None:
    """The least cost of any ``number`` sizes or fewer, by trying them all."""
    *others, last = candidates
    found = [
        cost_of((*chosen, last), weights, costs)
        for fewer in range(number)
        for chosen in combinations(others, fewer)
        if set(required) <= {*chosen, last}
    ]
    return min(found, default=None)


@pytest.mark.parametrize("seed", range(10))
def test_the_optimum_is_that_of_trying_everything(seed: int) -> None:
    """1,000 small cases: costs that rise with the size and such that do not, sizes that are required."""
    random = Random(seed)
    for _ in range(100):
        last = random.randint(1, 9)
        weights = [0, *(random.choice((0, 0, 1, random.randint(0, 9))) for _ in range(last))]
        rising = random.random() < 0.5
        costs = list(range(last + 1)) if rising else [random.randint(0, 12) for _ in range(last + 1)]
        candidates = sorted({last, *random.sample(range(1, last + 1), random.randint(1, last))})
        required = random.sample(candidates, random.randint(0, min(2, len(candidates))))
        number = random.randint(1, 5)
        expected = cheapest(weights, costs, candidates, required, number)
        optima = optimal_sizes(weights, costs, candidates, required=required, most=number)
        if optima is None:
            assert expected is None
            continue
        sizes = optima.sizes(optima.most)
        assert optima.costs[-1] == cost_of(sizes, weights, costs) == expected
        assert len(sizes) == optima.most <= number
        assert {*required, last} <= set(sizes) <= set(candidates)


def test_every_number_of_sizes_has_its_own_optimum() -> None:
    weights = [0, 5, 0, 3, 1, 4, 0, 2, 6]
    optima = optimal_sizes(weights, range(9), range(1, 9), most=8)
    assert optima is not None
    for number in range(optima.fewest, optima.most + 1):
        sizes = optima.sizes(number)
        assert len(sizes) == number
        cost = cost_of(sizes, weights, list(range(9)))
        assert optima.costs[number - optima.fewest] == cost
        assert cost == cheapest(weights, list(range(9)), list(range(1, 9)), [], number)


def test_more_sizes_than_batches_are_not_used() -> None:
    optima = optimal_sizes([0, 0, 7, 0, 0, 1], range(6), range(1, 6), most=5)
    assert optima is not None
    assert optima.most == 2
    assert optima.sizes(2) == (2, 5)


def test_two_thousand_sizes_are_no_other_problem_than_a_few() -> None:
    """The optimum of a large problem cannot be lowered by moving any one size."""
    random = Random(5)
    weights = [0, *(random.randrange(1000) for _ in range(2048))]
    costs = list(range(2049))
    optima = optimal_sizes(weights, costs, range(1, 2049), most=64)
    assert optima is not None
    sizes = optima.sizes(64)
    below = [sum(weights[: size + 1]) for size in range(2049)]

    def cost(chosen: list[int]) -> int:
        return sum(
            size * (below[size] - below[before]) for before, size in zip([0, *chosen], chosen, strict=False)
        )

    least = cost(list(sizes))
    assert least == optima.costs[-1]
    for place in range(63):
        for step in (-1, 1):
            moved = sorted({*sizes[:place], sizes[place] + step, *sizes[place + 1 :]})
            assert cost(moved) >= least


def test_required_sizes_that_are_too_many_have_no_answer() -> None:
    assert optimal_sizes([0, 1, 1, 1], range(4), range(1, 4), required=(1, 2), most=2) is None
