"""Published figures of a policy: what they say in numbers, to be held beside our runs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import frozen

Lines = Sequence[Mapping[str, Any]]  # of a figure's data, as `run --figures` writes them
Numbers = Mapping[str, object]  # what is read off a figure, by what it is


@frozen(kw_only=True)
class PublishedFigure:
    """A published figure and the example that is the same run.

    `source`: where it was published. `file`: of its data. `read`: reads the numbers off lines,
    the published ones or ours. `published`: what was read off the published ones. `says`: where
    both differ, which is right and why; empty where they agree.
    """

    name: str
    title: str
    source: str
    file: str
    example: str
    read: Callable[[Lines], Numbers]
    published: Numbers
    says: str = ""
