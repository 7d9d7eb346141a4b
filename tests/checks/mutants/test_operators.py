"""Each mutation operator makes the changes of its table, and leaves guards and texts unchanged."""

import pytest

from checks.mutants.sites import Mutant, find_mutants, mutated


def changes(body: str, operator: str) -> list[str]:
    """The mutants of a function with this body, by one operator."""
    return [
        mutant.change
        for mutant in find_mutants(function(body), "m.py")
        if mutant.operator == operator
    ]


def function(body: str) -> str:
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    return f"def f(a, b, c=0):\n{lines}\n"


@pytest.mark.parametrize(
    ("operator", "body", "made"),
    [
        ("comparison", "return a < b", ["a < b -> a <= b"]),
        ("comparison", "return a == b", ["a == b -> a != b"]),
        ("comparison", "return 0 in a", ["0 in a -> 0 not in a"]),
        ("constant", "return a + 1", ["a + 1 -> a + 2", "a + 1 -> a + 0"]),
        ("constant", "return True", ["True -> False"]),
        ("arithmetic", "return a - b", ["a - b -> a + b"]),
        ("arithmetic", "return a // b", ["a // b -> a * b"]),
        ("term", "return a - b", ["a - b -> a"]),
        ("term", "return a + b", ["a + b -> a", "a + b -> b"]),
        ("term", "return a and b", ["a and b -> b", "a and b -> a"]),
        ("term", "return max(a, b)", ["max(a, b) -> max(b)", "max(a, b) -> max(a)"]),
        ("term", "return (*a, b)", ["(*a, b) -> (b,)", "(*a, b) -> (*a,)"]),
        ("logic", "return a and b", ["a and b -> a or b"]),
        ("logic", "if a:\n    return b", ["if a -> if not a"]),
        ("logic", "return not a", ["not a -> a"]),
        ("filter", "return [x for x in a if x]", ["for x in a if x -> for x in a"]),
        ("arguments", "return g(a, b)", ["g(a, b) -> g(b, a)"]),
        ("arguments", "return max(a, b)", []),
        ("function", "return min(a)", ["min(a) -> max(a)"]),
        ("function", "return cdiv(a, b)", ["cdiv(a, b) -> floor_div(a, b)"]),
        ("function", "return sorted(a, key=b)", ["sorted(a, key=b) -> list(a)"]),
        ("field", "return evolve(a, x=b)", ["evolve(a, x=b) -> evolve(a)"]),
        ("end", "return a[0]", ["a[0] -> a[-1]"]),
        ("end", "return a[b:c]", ["a[b:c] -> a[:c]", "a[b:c] -> a[b:]"]),
        ("end", "return (*a, b)", ["(*a, b) -> (b, *a)"]),
        ("statement", "g(a)\nreturn b", ["g(a) -> pass"]),
        ("statement", "a = g(a)\nd = b\nreturn d", ["a = g(a) -> pass"]),
        ("statement", "if a:\n    return b\nreturn c", ["return b -> pass"]),
    ],
)
def test_operator_makes_what_it_says(operator: str, body: str, made: list[str]) -> None:
    assert changes(body, operator) == made


@pytest.mark.parametrize(
    "body",
    [
        '"""A docstring: 1 < 2."""',
        'require(a < 1, "f", "R-1")',
        'known = all(x in a for x in b)\nrequire(known, "f", "R-1")',
        "assert a < 1",
        'raise ValueError(f"{a + 1}")',
        "d: Literal[1]",
    ],
)
def test_what_only_guards_or_says_something_is_left_as_it_is(body: str) -> None:
    assert [*find_mutants(function(body), "m.py")] == []


def test_a_mutant_has_the_same_id_wherever_its_function_stands() -> None:
    (mutant,) = find_mutants(function("return a < b"), "m.py")
    (other,) = find_mutants(f"import os\n\n{function('return a < b')}", "m.py")

    assert mutant == other
    assert mutant.id == other.id == "m.py:f:comparison: a < b -> a <= b"
    assert (mutant.line, other.line) == (2, 4)


def test_equal_changes_of_a_function_are_counted() -> None:
    ids = [mutant.id for mutant in find_mutants(function("return [not a, not a]"), "m.py")]

    assert ids == ["m.py:f:logic: not a -> a", "m.py:f:logic: not a -> a #2"]


def test_the_mutated_module_has_the_one_change() -> None:
    source = function("d = a < b\nreturn d")
    (mutant,) = find_mutants(source, "m.py")
    names: dict[str, object] = {}

    exec(compile(mutated(source, mutant), "m.py", "exec"), names)

    assert names["f"](2, 2) is True  # type: ignore[operator]


def test_a_mutant_that_the_module_does_not_have_is_refused() -> None:
    with pytest.raises(KeyError, match="no such"):
        mutated(function("return a"), Mutant("m.py", "f", 1, "term", "no such"))


def test_a_mutant_has_the_lines_of_its_statement_without_those_of_the_statements_in_it() -> None:
    source = function("""
    d = (a <
         b)
    if (d and
        c):
        return [
            one for one in a if one]
    return b""")

    lines = {mutant.change: sorted(mutant.lines) for mutant in find_mutants(source, "m.py")}

    assert lines["a < b -> a <= b"] == [3, 4]
    assert lines["d and c -> d"] == [5, 6]
    assert lines["for one in a if one -> for one in a"] == [7, 8]
