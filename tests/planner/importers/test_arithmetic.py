from __future__ import annotations

import pytest

from planner.importers.arithmetic import Assigned, assigned_in, end_of_arithmetic, parentheses

OPERATORS = ("=", "+=", "-=", "*=", "/=", "%=", "<<=", ">>=", "&=", "^=", "|=")


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_operator_that_assigns_is_seen(operator: str) -> None:
    assert assigned_in(f"((N {operator} 2))").names == {"N"}


@pytest.mark.parametrize(
    "text",
    [
        "((N++))",
        "((--N))",
        ": $((N=9))",
        'x "a $((1 + N++)) b"',
        "(( (1 + (N = 2)) ))",
        "[ $((N++)) -gt 3 ]",
        "[[ N++ -gt 3 ]]",
        "for ((N=0; N<3; N++)); do x; done",
        "let N++ 'N <<= 1'",
        "let 'N -= 1'",
        "x ${A[N++]} ",
        "A[N=3]=4",
        "x ${A:N++:2}",
        "x $[N++]",
        "exec {N}>log",
        ": $(( $(cat 'a)b') + (N=9) ))",
        "(( N\n=\n9 ))",
    ],
)
def test_an_assignment_is_seen_wherever_arithmetic_may_stand(text: str) -> None:
    assert assigned_in(text) == Assigned(frozenset({"N"}), indirectly=False)


@pytest.mark.parametrize(
    "text",
    [
        "N=4",
        "((N == 4 || N <= 3 || N >= 2 || N != 1))",
        "$((N + 1 - M))",
        "[[ N = 4 && $N == 3 ]]",
        "x ${N:-a=b} ${N:=4}",
        "echo ':(('\nN=4",
        "x --n=4",
    ],
)
def test_what_only_looks_at_a_variable_assigns_none(text: str) -> None:
    assert assigned_in(text) == Assigned(frozenset(), indirectly=False)


@pytest.mark.parametrize("text", ["(($R = 9))", "((${R}++))", "((++$R))"])
def test_an_assignment_by_the_name_in_another_variable_is_indirect(text: str) -> None:
    assert assigned_in(text).indirectly


@pytest.mark.parametrize(
    ("text", "end"), [("((a)) b", 5), ("(( (1) + $((2)) ))", 18), ("((a); (b))", None), ("((a", None)]
)
def test_arithmetic_ends_at_its_own_parentheses(text: str, end: int | None) -> None:
    assert end_of_arithmetic(0, parentheses(text)) == end
