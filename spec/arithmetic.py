"""Integer arithmetic that also runs on solver terms.

Every formula of the specification is written with these few functions. With `int` arguments
they compute; with Z3 integer terms they build the term that the prover reasons about. So what
is proven is what runs.
"""

from collections.abc import Iterable
from typing import Any

# A number is an `int` or a Z3 term; the solver ships no usable type for "either".
Number = Any
Truth = Any


def is_term(value: object) -> bool:
    """True for a solver term, False for a Python number or truth value."""
    return not isinstance(value, (int, float))


def floor_div(dividend: Number, divisor: Number) -> Number:
    """`dividend // divisor`, rounded towards minus infinity, for a positive divisor."""
    if is_term(dividend) or is_term(divisor):
        return dividend / divisor  # integer terms: Euclidean, the same for positive divisors
    return dividend // divisor


def cdiv(dividend: Number, divisor: Number) -> Number:
    """`dividend / divisor` rounded up, for a positive divisor."""
    return floor_div(dividend + divisor - 1, divisor)


def round_up(value: Number, multiple: Number) -> Number:
    """The least multiple of `multiple` that is at least `value`."""
    return cdiv(value, multiple) * multiple


def select(condition: Truth, then: Number, otherwise: Number) -> Number:
    """`then` where the condition holds, else `otherwise`."""
    if is_term(condition):
        import z3

        return z3.If(condition, then, otherwise)
    return then if condition else otherwise


def maximum(first: Number, *others: Number) -> Number:
    """The largest of the arguments."""
    largest = first
    for other in others:
        largest = select(other > largest, other, largest)
    return largest


def minimum(first: Number, *others: Number) -> Number:
    """The smallest of the arguments."""
    smallest = first
    for other in others:
        smallest = select(other < smallest, other, smallest)
    return smallest


def every(conditions: Iterable[Truth]) -> Truth:
    """True if all conditions hold; a solver term if one of them is."""
    listed = list(conditions)
    if any(is_term(condition) for condition in listed):
        import z3

        return z3.And(listed)
    return all(listed)


def either(first: Truth, second: Truth) -> Truth:
    """True if one of the two conditions holds; a solver term if one of them is."""
    if is_term(first) or is_term(second):
        import z3

        return z3.Or(first, second)
    return first or second
