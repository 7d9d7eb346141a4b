"""The registry of Spyre's rules, and their sources."""

from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import TypeAlias

from spec.core import rule
from spec.core.rule import Registry, Source
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Chunk, Context, Step
from spec.spyre.state import State

Rule: TypeAlias = rule.Rule[SpyreConfig, Context, State, Step]
OfChunk: TypeAlias = Callable[[Context, Step, Chunk], Iterator[str]]

SPYRE: Registry[SpyreConfig, Context, State, Step] = Registry()
REGISTRY = SPYRE.rules
always, of_step, guard, witness = SPYRE.always, SPYRE.of_step, SPYRE.guard, SPYRE.witness
between, eventually, applicable = SPYRE.between, SPYRE.eventually, SPYRE.applicable

spyre = partial(Source, "spyre")  # the text on scheduling and padding in sendnn-inference
release = partial(Source, "sendnn-inference 2.6.3")  # what it does and its text does not mention


def of_chunk(
    id_: str,
    source: Source,
    *,
    witness: Callable[[Chunk], object],
    applies: Callable[[SpyreConfig], bool] = lambda _config: True,
) -> Callable[[OfChunk], OfChunk]:
    """Registers a rule about every step that computes a chunk of a prompt."""

    def seen(_ctx: Context, step: Step) -> object:
        return step.chunk is not None and witness(step.chunk)

    def register(predicate: OfChunk) -> OfChunk:
        @wraps(predicate)
        def judged(ctx: Context, step: Step) -> Iterator[str]:
            if step.chunk is not None:
                yield from predicate(ctx, step, step.chunk)

        of_step(id_, source, witness=seen, applies=applies)(judged)
        return predicate

    return register
