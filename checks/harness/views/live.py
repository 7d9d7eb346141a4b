"""Live examples: a reference that a reader steps by hand, run by `lockstep-live` in the browser.

Needs neither numpy nor any other compiled package. A live situation (`checks.export.pages`) is a
path through the state graph of the reference, in which any request may arrive, be aborted or end at
any time. It is written as the labels of its edges, as in a counterexample.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from itertools import islice
from typing import Any

from attrs import define, evolve, field, fields, frozen

from checks.explore.instance import FEWER_DRAFTS, LEAVES, Instance
from checks.explore.model import Transition
from checks.explore.policy import AnyModel, machine_of
from checks.export.files import as_line
from checks.export.limits import refuse_large_sizes
from checks.export.outside import json_object
from checks.export.pages.document import document_of_situations
from checks.export.pages.situation import Json, Moment, situation_of
from checks.export.trace.records import converter, structured
from checks.export.trace.requests import request_as_json, requests_from_json
from checks.harness.judging import judgeable
from checks.harness.views.showing import verdicts_of_change, verdicts_of_step
from checks.registry import POLICIES, claims_of
from engine.core.clock import step_time
from engine.workloads.checked import brief
from reference.core.guards import GuardError
from spec.core.errors import InputError, WorkloadError
from spec.core.requests import Request

MOST_CHOICES = 64  # next actions that are listed
MOST_ACTIONS = 600  # of one situation
MOST_REQUESTS = 24
MOST_BLOCKS = 2**16
_STEP = "step"


@frozen
class _Place:
    """A point of the path: the state, the edge to it, and its content of a page.

    `steps`: the number of steps so far. `time`: of the simulated clock.
    """

    action: str
    state: Any
    situation: Json
    steps: int = 0
    time: float = 0.0


@frozen(kw_only=True)
class _Situation:
    """The request of a page; without `actions` the requests are served as their fields say."""

    policy: str
    title: str = ""
    config: Mapping[str, Any] = field(factory=dict)
    requests: Sequence[Json] = ()
    external: Mapping[str, int] = field(factory=dict)
    actions: Sequence[str] | None = None


@define
class Live:
    """One live situation at a time; the common beginning with the last situation is kept."""

    _setting: "_Situation | None" = None
    _model: Any = None
    _path: list[_Place] = field(factory=list)

    def open(self, text: str) -> str:
        """The situation as a document, its actions and the possible next actions, as JSON.

        If the situation is malformed or impossible, the JSON has `error`, a message.
        """
        try:
            said = json_object(text, "situation")
            return as_line(self._opened(structured(converter(), said, _Situation)))
        except InputError as error:
            return as_line({"error": str(evolve(error, field=str(brief(error.field))))})

    def _opened(self, situation: "_Situation") -> Json:
        self._begin(situation)
        actions = situation.actions
        stopped = ""
        choices: list[str] = []
        try:
            if actions is None:
                self._play()
            else:
                self._follow(actions[:MOST_ACTIONS])
            choices = [edge.action for edge in self._possible()]
        except GuardError as error:
            stopped = f"The machine stops here: {error}."
        document = document_of_situations(
            self._model.ctx,
            ([place.situation] for place in self._path),
            title=situation.title,
            about=stopped,
        )
        return {
            "document": document,
            "actions": [place.action for place in self._path[1:]],
            "choices": choices,
            "next": None if stopped else self._next_as_requests_say(),
        }

    def _begin(self, situation: "_Situation") -> None:
        """Make the machine, unless the last situation has the same."""
        unusual = [label for label in (FEWER_DRAFTS, LEAVES) if label in str(situation.actions)]
        setting = evolve(situation, title="", actions=unusual)
        if setting == self._setting:
            return
        self._setting = None
        self._model = _model_of(setting)
        (state,) = self._model.initial()
        ctx = self._model.ctx
        verdicts = verdicts_of_change(ctx, judgeable(ctx.config), state, state)
        start = situation_of(ctx, Moment(after=state, label="start", verdicts=verdicts))
        self._path = [_Place("", state, start)]
        self._setting = setting

    # --- the path ---------------------------------------------------------------------------------

    def _follow(self, actions: Sequence[str]) -> None:
        """Take these actions, except the common beginning with the last situation."""
        for at, action in enumerate(actions, start=1):
            if at >= len(self._path) or self._path[at].action != action:
                del self._path[at:]
                self._take(action)
        del self._path[len(actions) + 1 :]

    def _play(self) -> None:
        """Take the actions of the requests until all have left or nothing changes any more."""
        del self._path[1:]
        while len(self._path) <= MOST_ACTIONS:
            action = self._next_as_requests_say()
            if action is None:
                return
            self._take(action)
            before, last = self._path[-2:]
            if last.state == before.state and not self._coming():
                return

    def _take(self, action: str) -> None:
        """Take one edge; raises WorkloadError if no edge has this label."""
        last = self._path[-1]
        edges = self._model.successors(last.state)
        edge = next((edge for edge in edges if edge.action == action), None)
        if edge is None:
            raise WorkloadError("actions", action, f"what can happen behind {last.action!r}")
        self._path.append(self._place(last, edge))

    def _place(self, last: _Place, edge: Transition[Any]) -> _Place:
        ctx = self._model.ctx
        config, rules = ctx.config, judgeable(ctx.config)
        if not isinstance(edge.record, claims_of(config.policy).step):
            verdicts = verdicts_of_change(ctx, rules, last.state, edge.state)
            moment = Moment(
                after=edge.state,
                last=last.state,
                index=last.steps,
                label=edge.action,
                verdicts=verdicts,
            )
            situation = situation_of(ctx, moment)
            return _Place(edge.action, edge.state, situation, last.steps, last.time)
        record: Any = evolve(edge.record, index=last.steps, time=last.time)
        moment = Moment(
            after=edge.state,
            step=record,
            last=last.state,
            label=edge.action.replace(_STEP, f"step {last.steps}", 1),
            verdicts=verdicts_of_step(ctx, rules, record),
        )
        time = last.time + step_time(config, record.kind)
        return _Place(edge.action, edge.state, situation_of(ctx, moment), last.steps + 1, time)

    # --- next actions -----------------------------------------------------------------------------

    def _possible(self) -> list[Transition[Any]]:
        return list(islice(self._model.successors(self._path[-1].state), MOST_CHOICES))

    def _next_as_requests_say(self) -> str | None:
        """The next action by the fields of the requests: an arrival, an abort, a step."""
        place, requests, coming = self._path[-1], self._model.ctx.requests, self._coming()
        present = [row.id for row in self._model.observed(place.state).present]
        for request in coming:
            if request.arrival <= place.steps:
                return f"arrive {request.id}"
        for request_id in present:
            abort_at = requests[request_id].abort_at
            if abort_at is not None and abort_at <= place.steps:
                return f"abort {request_id}"
        if present:
            return self._step_with_ends()
        return f"arrive {min(coming, key=lambda request: request.arrival).id}" if coming else None

    def _coming(self) -> list[Request]:
        """The requests that may arrive, and have not left."""
        observed = self._model.observed(self._path[-1].state)
        left, requests = observed.finished | observed.aborted, self._model.ctx.requests.values()
        possible = {edge.action for edge in self._possible()}
        return [row for row in requests if row.id not in left and f"arrive {row.id}" in possible]

    def _step_with_ends(self) -> str | None:
        """The step in which exactly the requests end that have all their tokens.

        If the policy leaves several such steps open, the first.
        """
        requests, possible = self._model.ctx.requests, self._possible()
        loaded = (edge.action for edge in possible if edge.action.startswith("loaded "))
        possible = [edge for edge in possible if edge.action.startswith(_STEP)]
        if not possible:  # only a load can end
            return next(loaded, None)
        usual = possible[0].record
        generated = {row.id: row.generated for row in usual.after.present}
        ending = {id_ for id_ in usual.outputs if generated.get(id_, -1) >= requests[id_].end}
        fits = (edge.action for edge in possible if set(edge.record.ended) == ending)
        return next(fits, possible[0].action)


def _model_of(situation: _Situation) -> AnyModel:
    """The reference with these requests, each of which may be aborted, end early or lose a load."""
    config = claims_of(situation.policy).config.from_mapping(situation.config)
    refuse_large_sizes(config)
    requests = requests_from_json(situation.requests)
    for name, found, most in (
        ("requests", len(requests), MOST_REQUESTS),
        ("num_blocks", config.pool_blocks, MOST_BLOCKS),
    ):
        if found > most:
            raise WorkloadError(name, found, f"at most {most} in the browser")
    every_id, actions = frozenset(requests), str(situation.actions)
    instance = Instance(
        name="live",
        about="what a reader steps by hand",
        config=config,
        requests=tuple(requests.values()),
        aborts=every_id,
        early_ends=every_id,
        failing=every_id,
        fewer_drafts=every_id if FEWER_DRAFTS in actions else frozenset(),
        leavers=every_id if LEAVES in actions else frozenset(),
        external=situation.external,
    )
    return machine_of(situation.policy).model(instance)


# --- keys and instances ---------------------------------------------------------------------------


def policies() -> str:
    """The names of all policies, as JSON; none of them is imported."""
    return as_line(list(POLICIES))


def offer(name: str) -> str:
    """The keys of a policy's configurations and its instances, as JSON."""
    keys = [_key(key) for key in fields(claims_of(name).config) if key.name != "policy"]
    instances = [_instance(instance) for instance in machine_of(name).instances]
    return as_line({"keys": keys, "instances": instances})


def _key(key: Any) -> Json:
    choices = list(key.type) if isinstance(key.type, type) and issubclass(key.type, Enum) else []
    return {
        "name": key.name,
        "type": "choice" if choices else _TYPES.get(key.type, "number"),
        "default": key.default,
        "choices": choices,
    }


_TYPES: Mapping[Any, str] = {bool: "switch", str: "text"}


def _instance(instance: Instance[Any]) -> Json:
    """An instance as a live situation."""
    default = type(instance.config)().as_mapping()
    config = instance.config.as_mapping()
    return {
        "title": instance.name,
        "about": instance.about,
        "policy": instance.config.policy,
        "config": {name: value for name, value in config.items() if value != default.get(name)},
        "requests": [*map(request_as_json, instance.requests)],
        **({"external": dict(instance.external)} if instance.external else {}),
    }
