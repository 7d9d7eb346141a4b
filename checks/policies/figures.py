"""The figures of a run that are not shown alike for every policy: how large its steps were."""

from engine.core.metrics import Summary


def rounded(value: float | None, decimals: int = 2) -> str:
    """A figure without trailing zeros; "-" for one that does not exist."""
    return "-" if value is None else f"{value:,.{decimals}f}".rstrip("0").rstrip(".")


def percent(share: float | None) -> str:
    """A share of 1 as percent; "-" for one that does not exist."""
    return "-" if share is None else f"{share:.1%}"


class StepFigures:
    """Rows of a run's tables, by name; here for a policy whose steps are limited in tokens."""

    def size(self, summary: Summary) -> dict[str, str]:
        """The largest step."""
        tokens, requests = summary.peak_scheduled_tokens, summary.peak_scheduled_requests
        return {"largest step": f"{tokens:,} tokens; {requests:,} requests"}

    def padding(self, _summary: Summary) -> dict[str, str]:
        """What was padded: nothing where batches need not be rectangular."""
        return {}

    def setbacks(self, summary: Summary) -> dict[str, str]:
        """How often requests lost their place."""
        return {"preemptions": f"{summary.preemptions:,}"}

    def compared(self, summary: Summary) -> dict[str, str]:
        """What of this stands in the table of several runs, preemptions apart."""
        return {"largest step, tokens": f"{summary.peak_scheduled_tokens:,}"}
