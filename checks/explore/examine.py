"""Checks of every state and edge, in the order in which a search meets them."""

from collections.abc import Callable, Sequence
from typing import Generic

from attrs import define, field

from checks.explore.liveness import GOAL, TRIGGER, packed
from checks.explore.model import (
    Always,
    Counterexample,
    Eventually,
    Model,
    OnStep,
    Property,
    StateT,
    Transition,
    Violation,
    Witness,
)
from checks.explore.store import Store

DEADLOCK, MACHINE_ERROR = "deadlock", "machine-error"


class HaltError(Exception):
    """The search stops at its first violation."""


@define
class Examiner(Generic[StateT]):
    """Checks states and edges and notes them in the store.

    `rebuild_run` gives the run to a state that is being expanded. The first violation of each rule
    is kept; the rule is not checked again. `judged`: indices of the states that are checked when
    they are expanded; None: all.
    """

    model: Model[StateT]
    properties: Sequence[Property[StateT]]
    witnesses: Sequence[Witness[StateT]]
    store: Store[StateT]
    keep_going: bool
    rebuild_run: Callable[[int], Counterexample[StateT]]
    judged: frozenset[int] | None = None
    always: list[Always[StateT]] = field(init=False)
    on_step: list[OnStep[StateT]] = field(init=False)
    eventually: list[Eventually[StateT]] = field(init=False)
    _checks: dict[type, tuple[list[OnStep[StateT]], list[Witness[StateT]]]] = field(
        factory=dict, init=False
    )

    def __attrs_post_init__(self) -> None:
        self.always = [prop for prop in self.properties if isinstance(prop, Always)]
        self.on_step = [prop for prop in self.properties if isinstance(prop, OnStep)]
        self.eventually = [prop for prop in self.properties if isinstance(prop, Eventually)]

    def enter(self) -> list[tuple[int, StateT]]:
        """Check the initial states and return the distinct ones.

        Raises:
            HaltError: a violation, if the search does not keep going.
            ValueError: the model has no initial state.
        """
        store, distinct = self.store, []
        for ordinal, state in enumerate(self.model.initial()):
            index = store.seen.setdefault(self.model.canonical(state), len(store.seen))
            if index == len(store.parents):
                store.add(index, ordinal, 0)
                self._check_state(state, index)
                self._mark(state, index)
                distinct.append((index, state))
        if not distinct:
            raise ValueError("the model has no initial state, so that everything would hold")
        return distinct

    def transitions(self, index: int, state: StateT) -> tuple[Transition[StateT], ...] | None:
        """The successors of a state; None if the machine raised.

        Raises:
            HaltError: a violation, if the search does not keep going.
        """
        try:
            return tuple(self.model.successors(state))
        except Exception as error:
            self._violate(MACHINE_ERROR, _raised(error), index)
            return None

    def expand(
        self, index: int, state: StateT, transitions: Sequence[Transition[StateT]]
    ) -> list[tuple[int, StateT]]:
        """Check the outgoing edges of a state and return the new states.

        Raises:
            HaltError: a violation, if the search does not keep going.
        """
        store, canonical = self.store, self.model.canonical
        seen, labels, parents, edges = store.seen, store.labels, store.parents, store.edges
        is_judged = self.judged is None or index in self.judged
        checked = is_judged and bool(self.on_step or self.witnesses)
        depth = store.depths[index] + 1
        new, row = [], []
        store.transitions += len(transitions)
        if not transitions:
            self._check_end(index, state)
        for ordinal, transition in enumerate(transitions):
            after = transition.state
            labels[transition.action] = labels.get(transition.action, 0) + 1
            if checked:
                self._check_edge(index, state, transition, depth)
            try:
                target = seen.setdefault(canonical(after), len(seen))
            except Exception as error:
                self._violate(MACHINE_ERROR, _raised(error), index, transition)
                continue
            if target == len(parents):
                store.add(index, ordinal, depth)
                if is_judged:
                    self._check_state(after, index, transition)
                self._mark(after, index, transition)
                new.append((target, after))
            if edges is not None:
                row.append(packed(target, transition.fair))
                if store.threads is not None:
                    store.threads.add_edge(after)
        if edges is not None:
            edges.expand(index, row)
        return new

    def state_index(self, state: StateT) -> int | None:
        """The index of a state; None if it is new or has no canonical value."""
        try:
            return self.store.seen.get(self.model.canonical(state))
        except Exception:  # reported when the state was found
            return None

    def _check_end(self, index: int, state: StateT) -> None:
        try:
            unfinished = self.model.unfinished(state)
        except Exception as error:
            self._violate(MACHINE_ERROR, _raised(error), index)
            return
        if unfinished:
            self.store.deadlocks += 1
            self._violate(DEADLOCK, "work is pending and no action is possible", index)

    def _check_state(self, state: StateT, index: int, *last: Transition[StateT]) -> None:
        """Check a state reached by the transition `last` from the state with this index."""
        for always in self.always:
            try:
                message = always.holds(state)
            except Exception as error:
                message = _raised(error)
            if message is not None:
                self._violate(always.rule, message, index, *last)

    def _mark(self, state: StateT, index: int, *last: Transition[StateT]) -> None:
        """Note the marks of a new state for the `Eventually` properties."""
        if self.store.threads is not None:
            self.store.threads.add_state(state)
        for eventually, marks in zip(self.eventually, self.store.marks, strict=True):
            mark = 0
            try:
                mark = GOAL if eventually.goal(state) else TRIGGER * bool(eventually.trigger(state))
            except Exception as error:
                self._violate(eventually.rule, _raised(error), index, *last)
            marks.append(mark)

    def _check_edge(
        self, index: int, state: StateT, transition: Transition[StateT], depth: int
    ) -> None:
        on_step, witnesses = self._edge_checks(type(transition.record))
        for prop in on_step:
            try:
                message = prop.holds(state, transition)
            except Exception as error:
                message = _raised(error)
            if message is not None:
                self._violate(prop.rule, message, index, transition)
        for witness in witnesses:
            try:
                if witness.seen(state, transition):
                    self._sight(witness.rule, depth)
            except Exception as error:
                self._violate(witness.rule, _raised(error), index, transition)

    def _edge_checks(self, kind: type) -> tuple[list[OnStep[StateT]], list[Witness[StateT]]]:
        """Properties and witnesses for transitions whose record is of this class, cached."""
        if kind not in self._checks:
            self._checks[kind] = (
                [check for check in self.on_step if issubclass(kind, check.of)],
                [check for check in self.witnesses if issubclass(kind, check.of)],
            )
        return self._checks[kind]

    def _sight(self, rule: str, depth: int) -> None:
        sightings = self.store.sightings
        edges, first = sightings.get(rule, (0, depth))
        sightings[rule] = (edges + 1, min(first, depth))

    def _violate(self, rule: str, message: str, index: int, *last: Transition[StateT]) -> None:
        if rule not in self.store.violations:
            run = self.rebuild_run(index).then(*last)
            self.store.violations[rule] = Violation(rule, message, run)
            self.store.broken[rule] = index
            self.always = [always for always in self.always if always.rule != rule]
            self.on_step = [on_step for on_step in self.on_step if on_step.rule != rule]
            self._checks.clear()
        if not self.keep_going:
            raise HaltError


def _raised(error: Exception) -> str:
    return f"raised {type(error).__name__}: {error}"
