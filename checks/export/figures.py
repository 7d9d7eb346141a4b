"""Figures of a run that differ by policy, and published figures to compare with."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

if TYPE_CHECKING:
    from engine.core.metrics import Summary

Lines = Sequence[Mapping[str, Any]]  # of a figure's data, as `run --figures` writes them
Numbers = Mapping[str, object]  # the numbers read from a figure, by name


def rounded(value: float | None, decimals: int = 2) -> str:
    """A number without trailing zeros; "-" for None."""
    return "-" if value is None else f"{value:,.{decimals}f}".rstrip("0").rstrip(".")


def percent(share: float | None) -> str:
    """A share of 1 as percent; "-" for None."""
    return "-" if share is None else f"{share:.1%}"


@frozen(kw_only=True)
class StepFigures:
    """Rows of a run's tables, by name.

    `size`: the largest step. `padding`: padding, if the policy pads batches. `setbacks`: counts of
    preemptions and similar events. `compared`: the rows that the table of several runs shows, too,
    without preemptions.
    """

    size: Mapping[str, str]
    padding: Mapping[str, str] = field(factory=dict)
    setbacks: Mapping[str, str]
    compared: Mapping[str, str]


def token_figures(summary: "Summary") -> StepFigures:
    """The rows for a policy whose steps are limited in tokens and whose batches have no padding."""
    tokens, requests = f"{summary.peak_scheduled_tokens:,}", summary.peak_scheduled_requests
    transfers = {
        f"blocks {kind.replace('_', ' ')}": f"{count:,}"
        for kind, count in summary.transfers.items()
    }
    return StepFigures(
        size={"largest step": f"{tokens} tokens; {requests:,} request{'s' * (requests != 1)}"},
        setbacks={"preemptions": f"{summary.preemptions:,}", **transfers},
        compared={"largest step, tokens": tokens, **transfers},
    )


@frozen(kw_only=True)
class PublishedFigure:
    """A published figure, and the example with the same run.

    `source`: its publication. `file`: the file of its data. `read`: reads the numbers from the
    published lines or from ours. `published`: the numbers read from the published lines. `says`:
    which side is right and why if they differ; else empty.
    """

    name: str
    title: str
    source: str
    file: str
    example: str
    read: Callable[[Lines], Numbers]
    published: Numbers
    says: str = ""
