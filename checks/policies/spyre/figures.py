"""How large the steps of a Spyre run were: volume, padding, tkv jumps."""

from checks.policies.figures import StepFigures, percent
from engine.core.metrics import Summary


class VolumeFigures(StepFigures):
    """Rows of a run's tables, where batches are padded to a rectangle of limited volume."""

    def size(self, summary: Summary) -> dict[str, str]:
        """The largest volume."""
        return {"largest volume": f"{summary.peak_volume:,} of {summary.volume_limit:,}"}

    def padding(self, summary: Summary) -> dict[str, str]:
        """The padding of decode steps and of prefills."""
        share, tokens = percent(summary.decode_padding_share), summary.prefill_padding_tokens
        return {"padding waste": f"{share} of the decode volume, {tokens:,} tokens of prefill"}

    def setbacks(self, summary: Summary) -> dict[str, str]:
        """How often requests lost their place or were paused, and how often tkv jumped."""
        return {
            "preemptions, pauses": f"{summary.preemptions:,}, {summary.pauses:,}",
            "tkv jumps": f"{summary.tkv_jumps:,}",
        }

    def compared(self, summary: Summary) -> dict[str, str]:
        """The same, in short."""
        return {
            "largest volume": f"{summary.peak_volume:,}",
            "padding waste, decode": percent(summary.decode_padding_share),
            "pauses": f"{summary.pauses:,}",
        }
