"""Looks: each shows a rule the part of a step, or of a change between two steps, that it needs.

The part lacks what stayed as it was. A policy has a table that names the look of a rule.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from attrs import frozen

from checks.harness.incremental.course import Course, Places, States

Look: TypeAlias = Callable[[Course], States | None]
"""The states around a change, without what it did not touch; None if it touched nothing."""


def queue(course: Course) -> States:
    """Without the requests that wait untouched."""
    return course.with_short_queue


def places(course: Course) -> States | None:
    """Without requests that have left, but for those whose ids a request present has."""
    return course.with_moved_places


def blocks(course: Course) -> States | None:
    """With touched blocks, and the requests that hold one or whose table or filling changed."""
    return course.with_moved_blocks


def contents(course: Course) -> States | None:
    """The same, where the contents of other blocks are looked up."""
    return course.with_known_contents


def holders(course: Course) -> States | None:
    """As `blocks`, with only touched blocks in the tables of the requests."""
    return course.with_moved_holders


OF_BLOCKS = {blocks, contents, holders}


@frozen
class Looks:
    """The looks of a policy, by rule; a rule that is not named is judged on the whole."""

    places: Places
    by_rule: Mapping[str, Look]
