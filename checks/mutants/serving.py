"""Runs as trials: an engine serves many requests at real sizes, or on a failing device."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import zip_longest
from random import Random
from typing import Any

from attrs import evolve, frozen

from checks.harness.campaigns.campaign import Plan
from checks.harness.case import Case
from checks.harness.finding import Kind
from checks.harness.judging import Judge
from checks.harness.policy import Own, evidence_of
from checks.harness.runs.endless import EndlessError
from checks.harness.runs.serving import served_by
from checks.harness.script import most_steps
from checks.harness.system import ENGINE, Step
from checks.mutants.failing import FailingDevice, LostError, Recovery
from checks.registry import claims_of
from engine.core.faults import ConstraintError, Failure
from spec.core.configuration import PolicyConfig
from spec.core.errors import ConfigError, WorkloadError
from spec.core.requests import Prompt, Request

ENDLESS, WRONG_TOKEN, REFUSED, LOST = "endless", "wrong token", "device refuses", "request lost"


class Judged:
    """A trial that stores nothing of the right program and must always be judged."""

    __slots__ = ()

    def prepare(self) -> None:
        """Nothing to store."""

    def is_unchanged(self, _room: str) -> bool:
        """Always False: only judging shows it."""
        return False


@frozen
class _Served(Judged, ABC):
    """An engine serves the requests of a case until all have left; every rule is judged."""

    policy: str
    episode: int
    means = "run"
    rooms = frozenset({"spec", "engine"})

    @abstractmethod
    def _error(self) -> str | None:
        """The first broken rule or other error; None if there is none."""

    def verdict(self) -> str | None:
        """Check that the right program passes; None if the case cannot be made.

        Raises:
            AssertionError: the right program has an error.
        """
        try:
            error = self._error()
        except (ConfigError, WorkloadError):
            return None
        assert error is None, f"{self}: {error} without a mutant"
        return "clean"

    def killer(self, _verdict: str) -> str | None:
        """The first broken rule or other error; None if there is none."""
        return self._error()

    def _case(self) -> Case:
        return Plan(Own(self.policy, ENGINE)).case(self.episode)


@frozen
class Crowd(_Served):
    """Many requests at once, with the default sizes of a configuration.

    The other keys are those of a random case. Every second crowd has a small pool and budget.
    """

    @property
    def name(self) -> str:
        """The name of the crowd."""
        return f"crowd {self.episode} of {self.policy}"

    def prepare(self) -> None:
        """Store the steps of the right engine."""
        _right_steps(self)

    def is_unchanged(self, room: str) -> bool:
        """True if the mutated engine takes the same steps, which another room judges."""
        if room != "engine":
            return False
        try:
            both = zip_longest(self.steps(), _right_steps(self))
            return all(step == right_step for step, right_step in both)
        except Exception:  # judging decides what the error means
            return False

    def steps(self) -> Iterator[Step]:
        """The engine's steps."""
        return self._engine_steps(self.drawn())

    def drawn(self) -> Case:
        """The requests and the configuration.

        Raises:
            ConfigError: no such configuration is allowed.
            WorkloadError: a request could never be served.
        """
        requests = crowd(Random(self.episode))
        config = at_real_sizes(self._case().config, requests, tight=self.episode % 2 == 0)
        return Case(config, tuple(as_servable(request, config) for request in requests))

    def _error(self) -> str | None:
        case = self.drawn()
        return first_error(case, self._engine_steps(case))

    def _engine_steps(self, case: Case) -> Iterator[Step]:
        engine = evidence_of(self.policy).engine
        assert engine is not None
        return served_by(engine.under_test(case), case)


@cache
def _right_steps(crowd: Crowd) -> list[Step]:
    return [*crowd.steps()]


@frozen
class Failing(_Served):
    """A random case on a device that fails now and then, if the device supports the case."""

    @property
    def name(self) -> str:
        """The name of the case."""
        return f"random case {self.episode} of {self.policy} on a device that fails"

    def _error(self) -> str | None:
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
            raise ConfigError(
                "device", "none", "a configuration whose steps the simulated device can all compute"
            )
        return first_error(case, served_by(scheduler, case), Recovery(scheduler, devices[0]))


def _as_workload(case: Case) -> Case:
    """The case with external tokens as fields of the requests, loaded as soon as possible."""
    external = case.surroundings.get("external", {})
    tokens = {id_: entry["tokens"] for id_, entry in external.items()}
    requests = (evolve(request, external=tokens.get(request.id, 0)) for request in case.requests)
    return Case(case.config, tuple(requests))


_FAILURES = (*Failure, Failure.STEP_FAILED)
_PLANNED = 100  # steps; later the device does not fail, so that all requests can finish
_PATIENCE = 10  # times the largest number of steps without a failure


def first_error(case: Case, steps: Iterator[Step], recovery: Recovery | None = None) -> str | None:
    """The first rule that the steps break, or another error; None if there is none.

    No rule speaks of a restart: the steps after it are judged as those of a new run.
    """
    evidence, tokens = evidence_of(case.config.policy), dict[str, list[int]]()
    ctx = evidence.reference(case).machine.ctx
    judge, restarts, aborted = Judge(ctx), 0, set[str]()
    most = _PATIENCE * most_steps(case)
    try:
        for step in steps:
            if recovery is not None and recovery.restarts > restarts:
                judge, restarts = Judge(ctx), recovery.restarts
            for broken in judge.observe(step):
                if evidence.expected_reason(broken.rule.id, case.config, step) is None:
                    return broken.rule.id
            for name, sampled in step.outputs.items():
                tokens.setdefault(name, []).extend(sampled)
            aborted.update(step.aborted)
            most -= 1
            if most == 0:
                return _endless(case)
    except EndlessError:
        return _endless(case)
    except ConstraintError as error:
        return f"{REFUSED}: {error.constraint}"
    except LostError:
        return LOST
    gone = _gone(case, aborted)
    stayed = [request for request in case.requests if request.id not in gone]
    right = all(tokens.get(request.id, []) == served_alone(request) for request in stayed)
    return None if right else WRONG_TOKEN


def _gone(case: Case, aborted: Iterable[str]) -> set[str]:
    """The requests that were aborted, and those that never came since they follow such ones."""
    gone = set(aborted)
    turns = {row.continued_by: row.id for row in case.requests}
    for request in case.requests:  # each stands behind the one that it follows
        if gone & {request.after, turns.get(request.id)}:
            gone.add(request.id)
    return gone


def _endless(case: Case) -> str | None:
    """The error of a run that never ends; None where it is known that it need not."""
    is_known = evidence_of(case.config.policy).expected_reason(Kind.ENDLESS, case.config)
    return None if is_known else ENDLESS


def served_alone(request: Request) -> list[int]:
    """The tokens that the request samples when it is served alone."""
    return request.output_tokens(request.end)


# --- crowds ---------------------------------------------------------------------------------------

_CROWD = 80  # requests
_LONGEST_PROMPT, _LONGEST_OUTPUT = 900, 120  # tokens
_SHARED = 300  # tokens of a prefix that prompts share
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
    """Many requests that arrive shortly after one another; some prompts share a prefix.

    Some requests end early and some are aborted; some have external tokens, and some a pattern of
    right drafts.
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
    """The request, without the fields that the configuration does not support.

    Raises:
        WorkloadError: the request could never be served for another reason.
    """
    for without in ({}, {"right_drafts": None}, {"external": 0}):
        with suppress(WorkloadError):
            claims_of(config.policy).refuse_unservable(evolve(request, **without), config)
            return evolve(request, **without)
    return evolve(request, right_drafts=None, external=0)


def at_real_sizes(
    config: PolicyConfig, requests: Sequence[Request], *, tight: bool
) -> PolicyConfig:
    """The configuration with the default sizes.

    `tight`: the pool has an eighth of the blocks that all requests need together, and the limits
    of a batch or step suffice for a few requests.

    Raises:
        ConfigError: no such configuration is allowed.
    """
    default = config.from_mapping({})
    sizes = {key: getattr(default, key) for key in _SIZES if hasattr(default, key)}
    blocks = sum(request.most_tokens // sizes["block_size"] + 1 for request in requests)
    sizes |= {"max_model_len": _MODEL_LEN, "num_blocks": blocks // 8 if tight else None}
    few = {key: size for key, size in _FEW.items() if tight and key in sizes}
    return evolve(config, **sizes | few)
