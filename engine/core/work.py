"""What a step has computed and read, in figures that steps of every scheduler have.

The clock charges for it and the metrics add it up. Lengths in tokens.
"""

from attrs import frozen

from engine.core.clock import CostModel
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Chunk, Step


@frozen
class Prefill:
    """A prefill that begins in a step.

    `tokens`: all that it covers. `reused`: those of them that were cached and are skipped.
    `recomputed`: cached, yet computed again.
    """

    id: str
    tokens: int
    reused: int = 0
    recomputed: int = 0


@frozen(kw_only=True)
class Work:
    """One step's work.

    `chunk_tokens`: of prompts, computed; padding not counted. `rows`: requests that decode.
    `cached_tokens`: read from the KV cache. `prefills`: those that began. `volume`: batch x max
    tkv where batches are rectangular; `padding`: what of it, or of the chunks of a prefill, is no
    token of a request.
    """

    kind: str
    chunk_tokens: int = 0
    rows: int = 0
    cached_tokens: int = 0
    prefills: tuple[Prefill, ...] = ()
    volume: int = 0
    padding: int = 0

    def duration(self, cost: CostModel) -> float:
        """How long it takes; an idle step takes as long as a decode step."""
        return cost.seconds_of(
            self.kind,
            chunk_tokens=self.chunk_tokens,
            rows=self.rows,
            cached_tokens=self.cached_tokens,
        )


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
        volume=step.volume,
        padding=step.volume - real,
    )


def _of_chunk(config: SpyreConfig, step: Step, chunk: Chunk) -> Work:
    began = Prefill(chunk.id, step.tkv, chunk.cached_tokens, chunk.inner_padding)
    return Work(
        kind=step.kind,
        chunk_tokens=chunk.end - chunk.start,
        cached_tokens=chunk.start,
        prefills=() if step.before.prefilling is not None else (began,),
        volume=step.volume,
        padding=config.chunk_size - (chunk.end - chunk.start),
    )
