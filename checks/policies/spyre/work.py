"""The tokens that a Spyre step computes and reads, and the sizes of steps that a run shows."""

from typing import TYPE_CHECKING

from checks.export.figures import StepFigures, percent
from checks.harness.once import once
from engine.core.clock import Prefill, Work, attended
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Chunk, Step

if TYPE_CHECKING:
    from engine.core.metrics import Summary


@once
def spyre_work(config: SpyreConfig, step: Step) -> Work:
    """The work of a Spyre step.

    A chunk computes its tokens and reads those before it; a row reads all of its tokens but the one
    that it computes.
    """
    if step.chunk is not None:
        return _of_chunk(config, step, step.chunk)
    real = sum(row.computed for row in step.batch)
    return Work(
        kind=step.kind,
        rows=len(step.batch),
        cached_tokens=real - len(step.batch),
        attended_tokens=real,
        volume=step.volume,
        padding=step.volume - real,
    )


def _of_chunk(config: SpyreConfig, step: Step, chunk: Chunk) -> Work:
    began = Prefill(chunk.id, step.tkv, chunk.cached_tokens, chunk.inner_padding)
    return Work(
        kind=step.kind,
        chunk_tokens=chunk.end - chunk.start,
        cached_tokens=chunk.start,
        attended_tokens=attended(chunk.start, chunk.end - chunk.start),
        prefills=() if step.before.prefilling is not None else (began,),
        volume=step.volume,
        padding=config.chunk_size - (chunk.end - chunk.start),
    )


def volume_figures(summary: "Summary") -> StepFigures:
    """Rows of a run's tables, where batches are padded to a rectangle of limited volume."""
    volume, pauses = f"{summary.peak_volume:,}", f"{summary.pauses:,}"
    share, tokens = percent(summary.decode_padding_share), summary.prefill_padding_tokens
    return StepFigures(
        size={"largest volume": f"{volume} of {summary.volume_limit:,}"},
        padding={"padding waste": f"{share} of the decode volume, {tokens:,} tokens of prefill"},
        setbacks={
            "preemptions, pauses": f"{summary.preemptions:,}, {pauses}",
            "tkv jumps": f"{summary.tkv_jumps:,}",
        },
        compared={"largest volume": volume, "padding waste, decode": share, "pauses": pauses},
    )
