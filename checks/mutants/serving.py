"""Runs as trials: an engine serves a crowd at real sizes, or on a device that fails."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import zip_longest
from random import Random
from typing import Any

from attrs import evolve, frozen

from checks.harness.campaign import Plan
from checks.harness.case import Case
from checks.harness.failing import FailingDevice, LostError, Recovery
from checks.harness.finding import Kind
from checks.harness.judging import Judge
from checks.harness.policy import Own, evidence_of
from checks.harness.script import most_steps
from checks.harness.serving import served_by
from checks.harness.system import ENGINE, Step
from checks.registry import claims_of
from engine.core.faults import ConstraintError, Failure
from spec.core.configuration import PolicyConfig
from spec.core.errors import ConfigError, WorkloadError
from spec.core.requests import Prompt, Request

ENDLESS, WRONG_TOKEN, REFUSED, LOST = "endless", "wrong token", "device refuses", "request lost"


class Judged:
    """Of trials of which nothing is kept, and nothing seen but by judging."""

    __slots__ = ()

    def prepare(self) -> None:
        """Nothing is the same for every mutant."""

    def goes_as_before(self, _room: str) -> bool:
        """Only judging says."""
        return False


@frozen
class _Served(Judged, ABC):
    """An engine serves the requests of a case until all have left, every rule judged."""

    policy: str
    episode: int
    means = "run"
    rooms = frozenset({"spec", "engine"})

    @abstractmethod
    def _found(self) -> str | None:
        """The first thing that is wrong."""

    def verdict(self) -> str | None:
        """What is found in the right program, which is nothing; None if there is no such case.

        Raises:
            AssertionError: it is something.
        """
        try:
            found = self._found()
        except (ConfigError, WorkloadError):
            return None
        assert found is None, f"{self}: {found} without a mutant"
        return "clean"

    def killed_by(self, _verdict: str) -> str | None:
        """The rule that falls first, or what else is wrong."""
        return self._found()

    def _case(self) -> Case:
        return Plan(Own(self.policy, ENGINE)).case(self.episode)


@frozen
class Crowd(_Served):
    """Many requests at once, at the sizes that a configuration has by default.

    What is switched on is that of a random case; in every other one there is little room.
    """

    @property
    def name(self) -> str:
        """Which crowd."""
        return f"crowd {self.episode} of {self.policy}"

    def prepare(self) -> None:
        """Keep the steps that the right engine takes."""
        _right_steps(self)

    def goes_as_before(self, room: str) -> bool:
        """True if the engine takes the steps that it took: they are judged by another room."""
        if room != "engine":
            return False
        try:
            both = zip_longest(self.steps(), _right_steps(self))
            return all(one == other for one, other in both)
        except Exception:  # it is judged what that comes to
            return False

    def steps(self) -> Iterator[Step]:
        """The steps in which the engine serves it."""
        return self._steps_in(self.drawn())

    def drawn(self) -> Case:
        """The requests, and where they are served.

        Raises:
            ConfigError: no such configuration is allowed.
            WorkloadError: a request could never be served.
        """
        requests = crowd(Random(self.episode))
        config = at_real_sizes(self._case().config, requests, tight=self.episode % 2 == 0)
        return Case(config, tuple(as_servable(one, config) for one in requests))

    def _found(self) -> str | None:
        case = self.drawn()
        return wrong_in(case, self._steps_in(case))

    def _steps_in(self, case: Case) -> Iterator[Step]:
        engine = evidence_of(self.policy).engine
        assert engine is not None
        return served_by(engine.under_test(case), case)


@cache
def _right_steps(one: Crowd) -> list[Step]:
    return [*one.steps()]


@frozen
class Failing(_Served):
    """A random case on a device that fails now and then, if that can do what the case asks for."""

    @property
    def name(self) -> str:
        """Which case."""
        return f"random case {self.episode} of {self.policy} on a device that fails"

    def _found(self) -> str | None:
        case, draw, devices = _as_workload(self._case()), Random(self.episode), []
        plan = {step: draw.choice(_FAILURES) for step in range(_PLANNED) if draw.random() < 0.15}

        engine = evidence_of(self.policy).engine
        assert engine is not None
        assert engine.new_device is not None

        def failing(config: PolicyConfig) -> FailingDevice:
            device = FailingDevice(new_device(config), plan)
            devices.append(device)
            return device

        new_device: Callable[[PolicyConfig], object] = engine.new_device
        scheduler: Any = engine.under_test(case, failing)
        if not devices:
            raise ConfigError("device", "none", "a configuration with which a device can do all")
        return wrong_in(case, served_by(scheduler, case), Recovery(scheduler, devices[0]))


def _as_workload(case: Case) -> Case:
    """The case with what a connector has named by each request, and brought as soon as it can."""
    has = case.surroundings.get("external", {})
    tokens = {one: said["tokens"] for one, said in has.items()}
    requests = (evolve(one, external=tokens.get(one.id, 0)) for one in case.requests)
    return Case(case.config, tuple(requests))


_FAILURES = (*Failure, Failure.STEP_FAILED)
_PLANNED = 100  # steps, after which it does not fail any more, so that all come to an end
_PATIENCE = 10  # times the steps that are needed at most, without a failure


def wrong_in(case: Case, steps: Iterator[Step], recovery: Recovery | None = None) -> str | None:
    """The first rule that the steps break, or what else is wrong with them; None if nothing is.

    After a restart, which no rule speaks of, the rules look at the steps as at those of a new run.
    """
    evidence, tokens = evidence_of(case.config.policy), dict[str, list[int]]()
    ctx = evidence.reference(case).machine.ctx
    judge, restarts, aborted = Judge(ctx), 0, set[str]()
    most = _PATIENCE * most_steps(case)
    try:
        for step in steps:
            if recovery is not None and recovery.restarts > restarts:
                judge, restarts = Judge(ctx), recovery.restarts
            for one in judge.observe(step):
                if evidence.expected_reason(one.rule.id, case.config, step) is None:
                    return one.rule.id
            for name, some in step.outputs.items():
                tokens.setdefault(name, []).extend(some)
            aborted.update(step.aborted)
            most -= 1
            if most == 0:
                return None if evidence.expected_reason(Kind.ENDLESS, case.config) else ENDLESS
    except ConstraintError as error:
        return f"{REFUSED}: {error.constraint}"
    except LostError:
        return LOST
    stayed = [one for one in case.requests if one.id not in aborted]
    right = all(tokens.get(one.id, []) == served_alone(one) for one in stayed)
    return None if right else WRONG_TOKEN


def served_alone(request: Request) -> list[int]:
    """What the request samples when it is served alone."""
    return [request.output_token(index) for index in range(request.end)]


# --- crowds ---------------------------------------------------------------------------------------

_CROWD = 80  # requests
_LONGEST_PROMPT, _LONGEST_OUTPUT = 900, 120  # tokens
_SHARED = 300  # tokens with which some prompts begin
_SIZES = (
    "block_size",
    "chunk_size",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_batch_tkv_limit",
)
_MODEL_LEN = 2_048
_FEW = {"max_batch_tkv_limit": 8 * _MODEL_LEN, "max_num_batched_tokens": _MODEL_LEN}


def crowd(draw: Random) -> tuple[Request, ...]:
    """Many requests that come soon after one another; some prompts begin alike.

    Some end early, of some the client goes away; of some a connector has tokens, and it is said
    how many drafts are right.
    """
    requests, arrival = list[Request](), 0
    for index in range(_CROWD):
        arrival += draw.choice((0, 0, 0, 1, 5))
        own, most = draw.randint(1, _LONGEST_PROMPT), draw.randint(1, _LONGEST_OUTPUT)
        shared = draw.choice((0, 0, _SHARED))
        parts = [(f"shared {draw.randrange(3)}", shared)] if shared else []
        requests.append(
            Request(
                id=str(index),
                prompt=Prompt.of_parts([*parts, (f"own {index}", own)]),
                max_tokens=most,
                output_len=draw.randint(1, most) if draw.random() < 0.3 else None,
                arrival=arrival,
                abort_at=arrival + draw.randrange(200) if draw.random() < 0.1 else None,
                external=draw.choice((0, 0, own // 2, own)),
                right_drafts=draw.choice((None, "0", "12", "310")),
            )
        )
    return tuple(requests)


def as_servable(request: Request, config: PolicyConfig) -> Request:
    """The request, without what the configuration has no use for.

    Raises:
        WorkloadError: it could never be served for another reason.
    """
    for without in ({}, {"right_drafts": None}, {"external": 0}):
        with suppress(WorkloadError):
            claims_of(config.policy).refuse_unservable(evolve(request, **without), config)
            return evolve(request, **without)
    return evolve(request, right_drafts=None, external=0)


def at_real_sizes(
    config: PolicyConfig, requests: Sequence[Request], *, tight: bool
) -> PolicyConfig:
    """The configuration with the sizes that are the default.

    `tight`: with a pool of an eighth of the blocks that the requests need all together, and as
    much in a batch, or a step, as a few of them have.

    Raises:
        ConfigError: no such configuration is allowed.
    """
    default = config.from_mapping({})
    sizes = {key: getattr(default, key) for key in _SIZES if hasattr(default, key)}
    blocks = sum((one.prompt_len + one.max_tokens) // sizes["block_size"] + 1 for one in requests)
    sizes |= {"max_model_len": _MODEL_LEN, "num_blocks": blocks // 8 if tight else None}
    few = {key: size for key, size in _FEW.items() if tight and key in sizes}
    return evolve(config, **sizes | few)
