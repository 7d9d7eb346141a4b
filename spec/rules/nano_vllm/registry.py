"""The registry of the nano-vLLM rules: entries of the same class as those of the other texts.

Predicates and witnesses are given the context of nano-vLLM.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from spec.policies.nano_vllm import NanoVllmConfig, NanoVllmContext
from spec.records import Step
from spec.rules.registry import Kind, Rule, Source
from spec.state import State

StatePredicate = Callable[[NanoVllmContext, State], Iterator[str]]
StepPredicate = Callable[[NanoVllmContext, Step], Iterator[str]]
ChangePredicate = Callable[[NanoVllmContext, State, State], Iterator[str]]
Goal = Callable[[State], bool]
Witness = Callable[[NanoVllmContext, Step], bool]
Applies = Callable[[NanoVllmConfig], bool]
Predicate = TypeVar("Predicate", bound=Callable[..., Any])

RULES: dict[str, Rule] = {}

_FIELDS = {
    Kind.ALWAYS: "in_state",
    Kind.STEP: "of_step",
    Kind.GUARD: "of_step",
    Kind.BETWEEN: "of_change",
    Kind.EVENTUALLY: "goal",
}


def text(section: str) -> Source:
    """A slide of the text on nano-vLLM's scheduler."""
    return Source("nano-vllm", section)


def release(section: str) -> Source:
    """Behaviour of the released commit that the text does not mention."""
    return Source("nano-vllm 9e8507e", section)


def _everywhere(_config: NanoVllmConfig) -> bool:
    return True


def _register(
    kind: Kind, id_: str, sentence: str, source: Source, witness: Witness, applies: Applies
) -> Callable[[Predicate], Predicate]:
    def register(predicate: Predicate) -> Predicate:
        if id_ in RULES:
            raise ValueError(f"two rules are called {id_}")
        # `Rule` is declared for the context of Spyre and hands on whichever it is given.
        given: dict[str, Any] = {"witness": witness, "applies": applies, _FIELDS[kind]: predicate}
        RULES[id_] = Rule(id_, sentence, source, kind, **given)
        return predicate

    return register


def always(
    id_: str, sentence: str, source: Source, *, witness: Witness, applies: Applies = _everywhere
) -> Callable[[StatePredicate], StatePredicate]:
    """Register the decorated predicate as a rule about every state."""
    return _register(Kind.ALWAYS, id_, sentence, source, witness, applies)


def of_step(
    id_: str,
    sentence: str,
    source: Source,
    *,
    witness: Witness,
    applies: Applies = _everywhere,
    kind: Kind = Kind.STEP,
) -> Callable[[StepPredicate], StepPredicate]:
    """Register the decorated predicate as a rule about every step (or as a guard)."""
    return _register(kind, id_, sentence, source, witness, applies)


def between(
    id_: str, sentence: str, source: Source, *, witness: Witness, applies: Applies = _everywhere
) -> Callable[[ChangePredicate], ChangePredicate]:
    """Register the decorated predicate as a rule about what happens between two steps."""
    return _register(Kind.BETWEEN, id_, sentence, source, witness, applies)


def eventually(
    id_: str, sentence: str, source: Source, *, witness: Witness, applies: Applies = _everywhere
) -> Callable[[Goal], Goal]:
    """Register the decorated goal as a rule about every fair path."""
    return _register(Kind.EVENTUALLY, id_, sentence, source, witness, applies)


def applicable(config: NanoVllmConfig) -> list[Rule]:
    """The rules that are meant under this configuration, in the order of the registry."""
    given: Any = config
    return [rule for rule in RULES.values() if rule.applies(given)]
