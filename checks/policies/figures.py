"""The figures of a run that are not shown alike for every policy: how large its steps were."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from attrs import field, frozen

if TYPE_CHECKING:
    from engine.core.metrics import Summary


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
