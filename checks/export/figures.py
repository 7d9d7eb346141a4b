"""Figures of a run that differ by policy: how large its steps were, and what others published."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

if TYPE_CHECKING:
    from engine.core.metrics import Summary

Lines = Sequence[Mapping[str, Any]]  # of a figure's data, as `run --figures` writes them
Numbers = Mapping[str, object]  # what is read off a figure, by what it is


def rounded(value: float | None, decimals: int = 2) -> str:
    """A figure without trailing zeros; "-" for one that does not exist."""
    return "-" if value is None else f"{value:,.{decimals}f}".rstrip("0").rstrip(".")


def percent(share: float | None) -> str:
    """A share of 1 as percent; "-" for one that does not exist."""
    return "-" if share is None else f"{share:.1%}"


@frozen(kw_only=True)
class StepFigures:
    """Rows of a run's tables, by name.

    `size`: the largest step. `padding`: what was padded, where batches are. `setbacks`: how often
    requests lost their place. `compared`: what of this stands in the table of several runs,
    preemptions apart.
    """

    size: Mapping[str, str]
    padding: Mapping[str, str] = field(factory=dict)
    setbacks: Mapping[str, str]
    compared: Mapping[str, str]


def token_figures(summary: "Summary") -> StepFigures:
    """For a policy whose steps are limited in tokens and whose batches need not be rectangular."""
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
