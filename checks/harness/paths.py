"""Cases that follow a path through the state graph of the reference.

A path is named by the labels of its edges ("arrive 1", "abort 0", "step, 1 ends"). Its requests
arrive, leave and end as the labels say, and not as the requests say.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from attrs import define, evolve, field

from checks.explore.cover import is_step
from checks.explore.instance import FEWER_DRAFTS, Instance
from checks.explore.model import Transition
from checks.explore.policy import machine_of
from checks.harness.case import Case
from checks.harness.choices import Choices, Node
from checks.harness.policy import evidence_of
from checks.harness.reference import Reference
from checks.harness.script import Script
from checks.harness.system import Action, Step, Taken
from engine.core.clock import step_time
from reference.core.guards import GuardError
from spec.core.errors import WorkloadError
from spec.core.records import Event
from spec.core.requests import Request

_TRANSFERS = {
    **{"loaded": "loaded", "lost": "load_failed", "sent": "sent"},
    **{"answered": "answered", "compiled": "compiled", "encoded": "encoded"},
    "unencodable": "unencodable",
}
"""By label, the event in the step after it."""
_PLAIN = "step"


@define
class PathScript:
    """The script of a path; as `Script`, an iterator over the actions, one for each step.

    `taken`: the system's steps so far. `edges`: of each step, the number of edges of the path that
    it shows. A path that ends with an
    action of a client in an idle scheduler has one idle step more.
    """

    is_part = True
    error = None  # the reference took every edge

    case: Case
    reference: Reference
    transitions: Sequence[Transition[Any]]
    steps: list[Step] = field(factory=list, init=False)
    taken: list[Taken] = field(factory=list, init=False)
    actions: list[Action] = field(factory=list, init=False)
    edges: list[int] = field(factory=list, init=False)
    over: bool = field(default=False, init=False)
    judged: frozenset[int] | None = field(default=None, init=False)
    _unplayed: Iterator[Action] = field(init=False)
    _time: float = field(default=0.0, init=False)
    _between: defaultdict[str, list[str]] = field(init=False, factory=lambda: defaultdict(list))

    def __attrs_post_init__(self) -> None:
        for count, transition in enumerate(self.transitions, start=1):
            if is_step(transition):
                self._add(transition.record, count)
            else:
                what, _, request_id = transition.action.partition(" ")
                self._between[what].append(request_id)
        last = self.transitions[-1]
        self.reference.state = last.state
        self.over = self.reference.state.is_idle
        if not is_step(last) and self.over:
            idle, _ = self.reference.scripted_step(len(self.steps), self._time, ())
            self._add(idle, len(self.transitions))
        self._unplayed = iter(self.actions)

    @property
    def ctx(self) -> Any:
        """The context of the rules."""
        return self.reference.machine.ctx

    def __iter__(self) -> Iterator[Action]:
        """The actions; each is returned once."""
        return self._unplayed

    def __next__(self) -> Action:
        """The action of the next step."""
        return next(self._unplayed)

    def recall(self, earlier: Iterable[Taken | None]) -> None:
        """Set the system's steps after the same edges on other paths, as far as they are known."""
        pairs = zip(self.actions, earlier, strict=True)
        self.actions[:] = [evolve(action, earlier=taken) for action, taken in pairs]

    @property
    def is_unplayed(self) -> bool:
        """True if no action was taken from the script; ends the script."""
        return next(self._unplayed, None) is self.actions[0]

    def _add(self, record: Step, count: int) -> None:
        between, self._between = self._between, defaultdict(list)
        transfers = [
            Event(event, request_id, "")
            for label, event in _TRANSFERS.items()
            for request_id in between[label]
        ]
        arrived, aborted = tuple(between["arrive"]), tuple(between["abort"])
        # Requests of a path end by their own length, as for a driver that names no ends.
        step = evolve(
            record,
            index=len(self.steps),
            time=self._time,
            aborted=aborted,
            ended=(),
            events=(*transfers, *record.events),
        )
        leavers = tuple(getattr(record, "leavers", ()))
        surroundings = self.reference.surroundings(step)
        self.steps.append(step)
        self.actions.append(Action(arrived, aborted, leavers, time=self._time, **surroundings))
        self.edges.append(count)
        self._time += step_time(self.case.config, step.kind)


AnyScript: TypeAlias = Script | PathScript


def case_of_instance(instance: Instance[Any], transitions: Sequence[Transition[Any]]) -> Case:
    """The case of a path through the graph of an instance, with the requests that arrive on it.

    And with those that continue them. Each has the length with which it ends on the path.
    """
    ends = _ends(transitions)
    labels = tuple(transition.action for transition in transitions)
    arrived: list[Request] = []
    for request in instance.requests:
        continues = any(request.id == earlier.continued_by for earlier in arrived)
        if continues or f"arrive {request.id}" in labels:
            arrived.append(request)
    external = {
        request.id: {"tokens": instance.external[request.id]}
        for request in arrived
        if request.id in instance.external
    }
    return Case(
        instance.config,
        tuple(
            evolve(request, output_len=ends[request.id]) if request.id in ends else request
            for request in arrived
        ),
        {"external": external} if external else {},
        path=labels,
    )


def case_of_path(instance: Instance[Any], labels: Sequence[str]) -> Case:
    """The case of the path with these labels.

    Raises:
        WorkloadError: the reference has no such path.
    """
    return case_of_instance(instance, tuple(_along(instance, labels)))


def path_script(case: Case) -> PathScript:
    """The script of a case with a path.

    Raises:
        WorkloadError: the reference has no such path.
    """
    transitions = tuple(_along(_instance(case), case.path))
    return PathScript(case, evidence_of(case.config.policy).reference(case), transitions)


def _ends(transitions: Iterable[Transition[Any]]) -> dict[str, int]:
    """The number of tokens of each request that ends before its last token."""
    sampled = Counter[str]()
    ends: dict[str, int] = {}
    for transition in transitions:
        if is_step(transition):
            for request_id, tokens in transition.record.outputs.items():
                sampled[request_id] += len(tokens)
            outputs = transition.record.outputs  # a client that left in the step got none
            ends |= {id_: sampled[id_] for id_ in transition.record.ended if id_ in outputs}
    return ends


def _instance(case: Case) -> Instance[Any]:
    """The requests of a case, each of which may do all that a request can do."""
    every_id = frozenset(request.id for request in case.requests)
    external = case.surroundings.get("external", {})
    return Instance(
        name="path",
        about="the requests of a path",
        config=case.config,
        requests=tuple(evolve(request, output_len=None) for request in case.requests),
        aborts=every_id,
        early_ends=every_id,
        failing=every_id & {*external},
        fewer_drafts=every_id if FEWER_DRAFTS in str(case.path) else frozenset(),
        leavers=every_id,
        external={request_id: held["tokens"] for request_id, held in external.items()},
    )


def _along(instance: Instance[Any], labels: Iterable[str]) -> Iterator[Transition[Any]]:
    model = machine_of(instance.config.policy).model(instance)
    (state,) = model.initial()
    for label in labels:
        edges = model.successors(state)
        try:
            edge = next((edge for edge in edges if edge.action == label), None)
        except GuardError as error:
            raise WorkloadError("path", label, f"a step: {error}") from None
        if edge is None:
            raise WorkloadError("path", label, "what the environment can do there")
        yield edge
        state = edge.state


# --- shrinking ------------------------------------------------------------------------------------


def choices_of_path(labels: Sequence[str]) -> Node:
    """The choices that make this path from itself, see `redrawn_path`."""
    known = _labels(labels)
    return (tuple((known.index(label),) for label in labels),)


def redrawn_path(case: Case, choices: Choices) -> Case:
    """The case with the path of these choices: each is one of the labels of the case's path.

    Raises:
        WorkloadError: the reference has no such path.
    """
    known = _labels(case.path)
    labels = [choice.one_of(known) for choice in choices.several(1, len(case.path))]
    return evolve(case_of_path(_instance(case), labels), choices=choices.node)


def _labels(labels: Iterable[str]) -> list[str]:
    """Each label once; the simplest, a step in which nothing is decided, first."""
    return list(dict.fromkeys((_PLAIN, *labels)))
