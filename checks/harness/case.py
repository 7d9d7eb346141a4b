"""Cases: the configuration, requests and surroundings of one episode."""

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from attrs import asdict, evolve, field, fields, frozen

from checks.export.trace.records import converter, joined, structured
from checks.export.trace.requests import request_as_json
from checks.harness.choices import Node
from checks.registry import claims_of
from spec.core.configuration import PolicyConfig
from spec.core.errors import TraceError, WorkloadError
from spec.core.requests import Request


@frozen
class Case:
    """A configuration, its requests, and the surroundings of the scheduler.

    `config`: of the policy's own class. `surroundings`: further inputs by name, as files write them
    (correct drafts, tokens that a connector holds). `swarm`: the frequency of each kind of action,
    an attrs class; None if the case was not drawn. `choices`: the draws that make the case again.
    `path`: the labels of the reference's edges that the case follows, see `checks.harness.paths`;
    empty: requests arrive and leave as they say.
    """

    config: Any
    requests: tuple[Request, ...]
    surroundings: Mapping[str, Any] = field(factory=dict)
    swarm: Any = field(default=None, eq=False)
    choices: Node = field(default=(), eq=False, repr=False)
    path: tuple[str, ...] = ()

    def as_mapping(self) -> dict[str, Any]:
        """Configuration, requests and surroundings as files write them."""
        return {
            "config": self.config.as_mapping(),
            "requests": [request_as_json(request) for request in self.requests],
            **self.surroundings,
            **({"path": list(self.path)} if self.path else {}),
        }

    def times(self, what: str) -> Mapping[str, int]:
        """By request, of which number the step is a multiple before which that happens.

        `what`: `sends`, `answers`, `grammars`, `encodings` or `unencodable` of its surroundings.
        """
        drawn: Mapping[str, int] = self.surroundings.get(what, {})
        return drawn

    @property
    def parameters(self) -> str:
        """One line: configuration keys that differ from their defaults, and the swarm."""
        swarm = {} if self.swarm is None else asdict(self.swarm)
        drawn = {**_changed_keys(self.config), **swarm}
        return " ".join(f"{name}={_short(value)}" for name, value in drawn.items())


@frozen
class External:
    """The external tokens of a request: a connector has its first `tokens`.

    An asynchronous load ends with a step whose number is a multiple of `every`. `fails`: the load
    is lost, and only the first `if_lost` of the tokens come.
    """

    tokens: int
    every: int = 1
    fails: bool = False
    if_lost: int = 0

    def as_surroundings(self) -> dict[str, Any]:
        """As a case has it; `if_lost` only where something comes."""
        return asdict(self, filter=lambda key, value: key.name != "if_lost" or bool(value))


@frozen(kw_only=True)
class _Surroundings:
    """The surroundings of a scheduler, as files write them.

    `sends`, `answers`, `grammars`, `encodings`, `unencodable`: by request, of which number the
    steps are multiples before which its blocks are sent, its lookup is answered, its grammar is
    ready, its images are encoded, or turn out to be unencodable.
    """

    right_drafts: Mapping[str, str] = field(factory=dict)
    external: Mapping[str, External] = field(factory=dict)
    sends: Mapping[str, int] = field(factory=dict)
    answers: Mapping[str, int] = field(factory=dict)
    grammars: Mapping[str, int] = field(factory=dict)
    encodings: Mapping[str, int] = field(factory=dict)
    unencodable: Mapping[str, int] = field(factory=dict)


_TIMES = ("sends", "answers", "grammars", "encodings", "unencodable")


def surroundings_from_json(entries: Mapping[str, Any], ids: Collection[str]) -> dict[str, Any]:
    """The surroundings in a file for requests with these ids; unknown entries are ignored.

    Raises:
        TraceError: an entry is malformed, or its request does not exist.
    """
    said = {key.name: entries[key.name] for key in fields(_Surroundings) if key.name in entries}
    structured(converter(), said, _Surroundings)
    for name, by_request in said.items():
        for request_id, what in by_request.items():
            place = joined(name, request_id)
            if request_id not in ids:
                raise TraceError(place, what, "requests that the header names")
            if name == "right_drafts" and not {*what} <= {*"01-"}:
                raise TraceError(place, what, "digits 0 and 1, and - for no draft")
            if name == "external" and what.get("every", 1) < 1:
                raise TraceError(joined(place, "every"), what["every"], "1 or more")
            if name in _TIMES and what < 1:
                raise TraceError(place, what, "1 or more")
    return said


def refuse_unservable(config: PolicyConfig, requests: Iterable[Request], path: Path) -> None:
    """Refuse requests that this configuration can never serve.

    `path`: the file whose first line has the configuration and the requests.

    Raises:
        WorkloadError: names the request and the file.
    """
    for request in requests:
        try:
            claims_of(config.policy).refuse_unservable(request, config)
        except WorkloadError as error:
            raise error.at(path, 1) from None


MOST_ARRIVAL = 100_000  # steps


def refuse_to_repeat(case: Case, path: Path) -> None:
    """Refuse a case of a file that cannot be served, or not again from its first step on.

    Raises:
        WorkloadError: names the request and the file.
    """
    refuse_unservable(case.config, case.requests, path)
    for request in case.requests:
        try:
            refuse_late(request)
        except WorkloadError as error:
            raise error.at(path, 1) from None


def refuse_late(request: Request) -> None:
    """Refuse a request before which more steps are idle than are taken and kept.

    Raises:
        WorkloadError: it arrives after MOST_ARRIVAL steps.
    """
    if request.arrival > MOST_ARRIVAL:
        raise WorkloadError("arrival", request.arrival, f"at most {MOST_ARRIVAL} steps")


def with_all_drafts(case: Case) -> Case:
    """The case with a drafter that always proposes as many drafts as are configured."""

    def all_of(foresight: str) -> str:
        return foresight.replace("-", "0")

    requests = (
        evolve(request, right_drafts=request.right_drafts and all_of(request.right_drafts))
        for request in case.requests
    )
    right = case.surroundings.get("right_drafts", {})
    drafts = {"right_drafts": {id_: all_of(text) for id_, text in right.items()}} if right else {}
    return evolve(case, requests=tuple(requests), surroundings={**case.surroundings, **drafts})


AS_USUAL: Mapping[str, Callable[[Request], Request]] = {
    "grammars": lambda request: evolve(request, grammar=False),
    "encodings": lambda request: evolve(request, has_images=False),
    "reads_cache": lambda request: evolve(request, reads_cache=True),
    "encoder_spans": lambda request: evolve(request, prompt=request.prompt.with_spans(())),
    "sessions": lambda request: evolve(request, continued_by=None),
}
"""By ability of a driver, a request that does not need it."""


def without(case: Case, ability: str) -> Case:
    """The case in which no request needs the ability of that name."""
    requests = tuple(map(AS_USUAL[ability], case.requests))
    others = {name: what for name, what in case.surroundings.items() if name != ability}
    return evolve(case, requests=requests, surroundings=others)


def _changed_keys(config: PolicyConfig) -> dict[str, Any]:
    default = config.from_mapping({}).as_mapping()
    return {key: value for key, value in config.as_mapping().items() if value != default.get(key)}


def _short(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
