"""The registry of vLLM V1's rules: the same kinds of rule, judged on its own states and steps."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from spec.policies.vllm_v1 import VllmV1Config
from spec.policies.vllm_v1_records import Context, Sequence, State, Step
from spec.rules.registry import Kind, Rule, Source

REGISTRY: dict[str, Rule] = {}

InState = Callable[[Context, State], Iterator[str]]
OfStep = Callable[[Context, Step], Iterator[str]]
OfChange = Callable[[Context, State, State], Iterator[str]]
Goal = Callable[[State], bool]
Witness = Callable[[Context, Step], bool]
Applies = Callable[[VllmV1Config], bool]
Predicate = TypeVar("Predicate", bound=Callable[..., Any])


def text(section: str) -> Source:
    """A section of the text on vLLM V1's scheduler."""
    return Source("vllm-v1", section)


def code(section: str) -> Source:
    """Behaviour of the release that its text does not mention."""
    return Source("vLLM 0.28.0", section)


def _everywhere(_config: VllmV1Config) -> bool:
    return True


def _entered(
    id_: str, sentence: str, source: Source, kind: Kind, field: str, **more: Any
) -> Callable[[Predicate], Predicate]:
    """Register the decorated predicate in the field of a rule that its kind calls for."""

    def register(predicate: Predicate) -> Predicate:
        if id_ in REGISTRY:
            raise ValueError(f"two rules are called {id_}")
        REGISTRY[id_] = Rule(id_, sentence, source, kind, **{field: predicate, **more})
        return predicate

    return register


def always(
    id_: str, sentence: str, source: Source, *, witness: Witness, applies: Applies = _everywhere
) -> Callable[[InState], InState]:
    """Register the decorated predicate as a rule about every state."""
    more = {"witness": witness, "applies": applies}
    return _entered(id_, sentence, source, Kind.ALWAYS, "in_state", **more)


def of_step(
    id_: str, sentence: str, source: Source, *, witness: Witness, applies: Applies = _everywhere
) -> Callable[[OfStep], OfStep]:
    """Register the decorated predicate as a rule about every step."""
    more = {"witness": witness, "applies": applies}
    return _entered(id_, sentence, source, Kind.STEP, "of_step", **more)


def between(
    id_: str, sentence: str, source: Source, *, witness: Witness, applies: Applies = _everywhere
) -> Callable[[OfChange], OfChange]:
    """Register the decorated predicate as a rule about what happens between two steps."""
    more = {"witness": witness, "applies": applies}
    return _entered(id_, sentence, source, Kind.BETWEEN, "of_change", **more)


def eventually(
    id_: str, sentence: str, source: Source, *, witness: Witness, applies: Applies = _everywhere
) -> Callable[[Goal], Goal]:
    """Register the decorated goal as a rule about every fair path."""
    more = {"witness": witness, "applies": applies}
    return _entered(id_, sentence, source, Kind.EVENTUALLY, "goal", **more)


def applicable(config: VllmV1Config) -> list[Rule]:
    """The rules that are meant under this configuration, in the order of the registry."""
    applies: list[tuple[Rule, Any]] = [(rule, rule.applies) for rule in REGISTRY.values()]
    return [rule for rule, is_meant in applies if is_meant(config)]


# --- what several rules look at ---------------------------------------------------------------


def by_id(rows: tuple[Sequence, ...]) -> dict[str, Sequence]:
    """The requests by their names."""
    return {one.id: one for one in rows}


def hits(step: Step) -> dict[str, tuple[int, ...]]:
    """The cached blocks that each request took in this step."""
    return {event.id: event.after for event in step.happened("prefix_hit")}
