"""Integer arithmetic that also runs on solver terms.

Every formula of the specification is written with these few functions. With `int` arguments
they compute; with Z3 integer terms they build the term that the prover reasons about. So what
is proven is what runs.
"""

import sys
from collections.abc import Iterable
from typing import Any

# A number is an `int` or a Z3 term; the solver ships no usable type for "either".
Number = Any
Truth = Any


_PLAIN = frozenset({int, float, bool})


def _are_plain(values: Iterable[object]) -> bool:
    """True if all are Python numbers or truth values, none a solver term."""
    return _PLAIN.issuperset(map(type, values))


def _solver_of(*values: Any) -> Any:
    """The module of the solver whose terms are among these: it has `If` and `And`."""
    terms = (value for value in values if type(value) not in _PLAIN)
    return sys.modules[type(next(terms)).__module__]


def floor_div(dividend: Number, divisor: Number) -> Number:
    """`dividend // divisor`, rounded towards minus infinity, for a positive divisor."""
    if type(dividend) is int and type(divisor) is int:
        return dividend // divisor
    if hasattr(dividend, "__array__"):  # many integers at once
        return dividend // divisor
    return dividend / divisor  # integer terms: Euclidean, the same for positive divisors


def cdiv(dividend: Number, divisor: Number) -> Number:
    """`dividend / divisor` rounded up, for a positive divisor."""
    return floor_div(dividend + divisor - 1, divisor)


def round_up(value: Number, multiple: Number) -> Number:
    """The least multiple of `multiple` that is at least `value`."""
    return cdiv(value, multiple) * multiple


def select(condition: Truth, then: Number, otherwise: Number) -> Number:
    """`then` where the condition holds, else `otherwise`."""
    if condition is True:
        return then
    if condition is False:
        return otherwise
    return _solver_of(condition).If(condition, then, otherwise)


def maximum(*values: Number) -> Number:
    """The largest of the arguments, at least one."""
    if _are_plain(values):
        return max(values)
    largest, *others = values
    for other in others:
        largest = select(other > largest, other, largest)
    return largest


def minimum(*values: Number) -> Number:
    """The smallest of the arguments, at least one."""
    if _are_plain(values):
        return min(values)
    smallest, *others = values
    for other in others:
        smallest = select(other < smallest, other, smallest)
    return smallest


def every(conditions: Iterable[Truth]) -> Truth:
    """True if all conditions hold; a solver term if one of them is."""
    listed = list(conditions)
    if _are_plain(listed):
        return all(listed)
    return _solver_of(*listed).And(listed)


def some(conditions: Iterable[Truth]) -> Truth:
    """True if one of the conditions holds; a solver term if one of them is."""
    return negate(every(negate(condition) for condition in conditions))


def negate(condition: Truth) -> Truth:
    """True where the condition does not hold."""
    return (not condition) if isinstance(condition, bool) else ~condition


def implies(condition: Truth, consequence: Truth) -> Truth:
    """The consequence, wherever the condition holds."""
    if isinstance(condition, bool):
        return consequence if condition else True
    return negate(condition) | consequence
