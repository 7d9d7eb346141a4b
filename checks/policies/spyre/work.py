"""What a Spyre step has computed and read; lengths in tokens."""

from engine.core.clock import Prefill, Work
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Chunk, Step


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
