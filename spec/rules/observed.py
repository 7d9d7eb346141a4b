"""What several rules look at in a step, said once."""

from spec.records import DECODE, Chunk, Step
from spec.rules.registry import Source
from spec.state import Sequence


def spyre(section: str) -> Source:
    """A section of the text on scheduling and padding in sendnn-inference."""
    return Source("spyre", section)


def release(section: str) -> Source:
    """Behaviour of the released plugin that its text does not mention."""
    return Source("sendnn-inference 2.6.3", section)


def entering(step: Step, request_id: str) -> Sequence:
    """The request as the step found it."""
    before = step.before
    return next(
        one for queue in (before.admitted, before.waiting) for one in queue if one.id == request_id
    )


def last_chunk(step: Step) -> Chunk | None:
    """The step's chunk if it completes a prompt."""
    return step.chunk if step.chunk is not None and step.chunk.is_last else None


def computed_before(step: Step, chunk: Chunk) -> int:
    """Prompt tokens in the cache before the chunk, in tokens, a prefix hit included."""
    return max(entering(step, chunk.id).computed, chunk.cached_tokens)


def is_decode(step: Step) -> bool:
    """True for a decode step."""
    return step.kind == DECODE
