"""The engines on a device: what a step yields, and devices that fail in every phase."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pytest
from attrs import frozen

from checks.mutants.failing import FailingDevice
from checks.policies.vllm_v1.engine import Foreseen
from engine.core.faults import ConstraintError, Failure
from engine.core.scheduler import StalePlanError
from engine.core.serving import Engine, StepResult
from engine.nano_vllm import model_input as nano_vllm_input
from engine.nano_vllm import observing as nano_vllm_observing
from engine.nano_vllm import plan as nano_vllm_plan
from engine.nano_vllm import serving as nano_vllm_serving
from engine.paged.device import PagedDevice
from engine.spyre import observing as spyre_observing
from engine.spyre import serving as spyre_serving
from engine.spyre.device import SpyreDevice
from engine.spyre.scheduler import DecodePlan, PrefillPlan
from engine.vllm_v1 import model_input as vllm_v1_input
from engine.vllm_v1 import observing as vllm_v1_observing
from engine.vllm_v1 import serving as vllm_v1_serving
from engine.vllm_v1.plan import Admission
from reference.core.block_pool import empty_pool
from spec.core.errors import WorkloadError
from spec.core.requests import Oversized
from spec.nano_vllm.config import repaired
from spec.vllm_v1.config import VllmV1Config
from tests.engine import scenes
from tests.engine.device.runs import Run, alone
from tests.engine.scenes import sharing
from tests.requests import request

REQUESTS = [sharing(name, 9, 4 * index, 9) for index, name in enumerate("abcd")]
REQUESTS.append(request("e", 21, 12, output_len=5))
SMALL: dict[str, Any] = {"block_size": 4, "max_num_seqs": 3, "max_model_len": 64, "num_blocks": 40}

Kinds = Iterator[tuple[str, Any]]


@frozen
class Served:
    """How a policy is served.

    `config`, `device` and `engine` make these of overridden keys, a configuration, and both.
    `observed`: a scheduler's state. `admitted`: those that a restart puts in front of the queue,
    in order. `kinds`: what happens in a step, each with whether it does. `settings`: by name.
    `phases`: of a setting the kinds of steps to fail in.
    """

    config: Callable[..., Any]
    device: Callable[[Any], Any]
    engine: Callable[[Any, Any], Engine[Any, Any, Any, Any]]
    observed: Callable[[Any], Any]
    admitted: Callable[[Any], list[str]]
    kinds: Callable[[StepResult[Any, Any, Any]], Kinds]
    settings: Mapping[str, Mapping[str, Any]]
    phases: Mapping[str, str]

    def run(self, setting: str, fails: Mapping[int, Failure] | None = None) -> Run:
        """A run on a device that fails in these steps."""
        settings = self.config(**self.settings[setting])

        def assert_all_wait(before: Any, after: Any) -> None:
            """Nothing is held, nothing is found in the cache, and no request is lost."""
            waiting = [*self.admitted(before), *(row.id for row in before.waiting)]
            found = [row.id for row in after.waiting]
            is_ranked = getattr(settings, "scheduling", "fcfs") == "priority"
            assert (sorted(found) if is_ranked else found) == (
                sorted(waiting) if is_ranked else waiting
            )
            assert not after.admitted
            assert after.pool == empty_pool(after.pool.free)
            assert after.pool.size == settings.pool_blocks
            assert len({*after.pool.free}) == settings.pool_blocks

        failing = FailingDevice(self.device(settings), fails or {})
        return Run(
            self.engine(settings, failing),
            self.observed,
            lambda: self.device(settings),
            assert_all_wait,
        )

    def small(self, **keys: Any) -> Engine[Any, Any, Any, Any]:
        """An engine with room for everything but what `keys` say."""
        settings = self.config(**keys)
        return self.engine(settings, self.device(settings))


def spyre_admitted(state: Any) -> list[str]:
    ongoing = () if state.prefilling is None else (state.prefilling,)
    return [row.id for row in (*state.paused, *reversed(state.decoding), *ongoing)]


def spyre_kinds(result: Any) -> Kinds:
    match result.plan:
        case PrefillPlan(is_new=is_new, chunk=chunk, hit_blocks=hits):
            yield from (("admission", True), ("hit", is_new and hits))
            yield from (("last chunk", chunk.is_last), ("other chunk", not chunk.is_last))
        case DecodePlan() as plan:
            yield from (("decode", True), ("preemption", plan.preempted))
            yield from (("pause", plan.newly_paused), ("resume", plan.resumed))
            yield from (("new block", plan.growing), ("end", result.finished))


def nano_vllm_kinds(result: Any) -> Kinds:
    yield "end", result.finished
    if isinstance(result.plan, nano_vllm_plan.PrefillPlan):
        yield from (
            ("prefill", True),
            ("hit", any(admission.hits for admission in result.plan.admissions)),
        )
    else:
        blocks = [block for _, block in result.plan.moves]
        yield from (("decode", True), ("new block", blocks), ("preemption", None in blocks))


def vllm_v1_kinds(result: Any) -> Kinds:
    plan = result.plan
    admissions = [turn for turn in plan.turns if isinstance(turn, Admission)]
    yield from (("end", result.finished), ("admission", admissions))
    yield from (("hit", any(admission.hits for admission in admissions)), ("new block", plan.grown))
    yield from (("decode", plan.batch is not None), ("preemption", plan.preempted))
    yield "chunk", any(not turn.samples for turn in plan.turns)
    yield "drafts", any(turn.drafts for turn in plan.turns)


def running(state: Any) -> list[str]:
    return [row.id for row in state.running]


POLICIES = {
    "spyre": Served(
        config=lambda **keys: scenes.config(**SMALL | {"max_num_seqs": 4} | keys),
        device=SpyreDevice,
        engine=spyre_serving.Engine,
        observed=lambda scheduler: spyre_observing.Observer(scheduler).state(),
        admitted=spyre_admitted,
        kinds=spyre_kinds,
        settings={
            "roomy": {},
            "preempting": {"reservation": False, "num_blocks": 9, "max_num_seqs": 3},
            "pausing": {"pausing": True, "max_batch_tkv_limit": 44},
        },
        phases={
            "roomy": "admission, other chunk, last chunk, hit, decode, new block, end",
            "preempting": "preemption, end",
            "pausing": "pause, resume, new block, end",
        },
    ),
    "nano-vllm": Served(
        config=lambda **keys: repaired(**SMALL | {"max_num_batched_tokens": 64} | keys),
        device=lambda config: PagedDevice(nano_vllm_input.paged_shape(config)),
        engine=nano_vllm_serving.Engine,
        observed=lambda scheduler: nano_vllm_observing.Observer(scheduler).state(),
        admitted=running,
        kinds=nano_vllm_kinds,
        settings={"roomy": {}, "preempting": {"num_blocks": 8}},
        phases={"roomy": "prefill, hit, decode, new block, end", "preempting": "preemption, end"},
    ),
    "vllm-v1": Served(
        config=lambda **keys: VllmV1Config(**SMALL | {"max_num_batched_tokens": 16} | keys),
        device=lambda config: PagedDevice(vllm_v1_input.paged_shape(config)),
        engine=lambda config, device: vllm_v1_serving.Engine(config, device, Foreseen(config)),
        observed=lambda scheduler: vllm_v1_observing.Observer(scheduler).state(),
        admitted=running,
        kinds=vllm_v1_kinds,
        settings={
            "roomy": {},
            "preempting": {"num_blocks": 8, "reserve_full_prompt": False},
            "by priority": {"num_blocks": 9, "scheduling": "priority", "prefix_caching": False},
            "drafting": {"num_speculative_tokens": 3, "accepted_drafts": 2},
            "in flight": {"num_blocks": 8, "reserve_full_prompt": False, "steps_in_flight": 1},
            "drafting in flight": {
                **{"num_speculative_tokens": 3, "accepted_drafts": 2, "steps_in_flight": 1},
            },
        },
        phases={
            "roomy": "admission, hit, chunk, decode, new block, end",
            "preempting": "preemption, end",
            "by priority": "decode, preemption",
            "drafting": "admission, drafts, end",
            "in flight": "admission, hit, chunk, preemption, end",
            "drafting in flight": "drafts, end",
        },
    ),
}

each_policy = pytest.mark.parametrize("served", POLICIES.values(), ids=POLICIES)
each_setting = pytest.mark.parametrize(
    ("served", "setting"),
    [
        pytest.param(served, setting, id=f"{policy}, {setting}")
        for policy, served in POLICIES.items()
        for setting in served.settings
    ],
)


# --- without failures ---------------------------------------------------------------------------


@each_setting
def test_every_request_gets_the_tokens_of_being_served_alone(served: Served, setting: str) -> None:
    run = served.run(setting).serve(REQUESTS)

    assert run.tokens == {asked.id: alone(asked) for asked in REQUESTS}
    assert {name for result in run.results for name in result.finished} == set("abcde")


@pytest.mark.parametrize(
    ("policy", "tokens", "figures"),
    [
        ("spyre", "a", {"waiting": 3, "prefilling": 0, "decoding": 1, "paused": 0}),
        ("nano-vllm", "abc", {"waiting": 1, "running": 3, "free_blocks": 35}),
        ("vllm-v1", "abc", {"waiting": 1, "running": 3, "free_blocks": 35}),
    ],
)
def test_step_yields_tokens_and_statistics(
    policy: str, tokens: str, figures: Mapping[str, int]
) -> None:
    engine = POLICIES[policy].small(**{"chunk_size": 12} if policy == "spyre" else {})
    requests = {name: request(name, 10 if name == "a" else 3, 3) for name in "abcd"}
    for asked in requests.values():
        engine.add(asked)

    result = engine.step()

    assert result.tokens == {name: requests[name].output_token(0) for name in tokens}
    assert {name: getattr(result.statistics, name) for name in figures} == figures


@each_policy
def test_request_that_cannot_be_served_is_refused_at_once(served: Served) -> None:
    engine = served.small()

    with pytest.raises(WorkloadError):
        engine.add(request("a", 64, 1))

    assert not engine.has_requests


def test_request_that_nano_vllm_cannot_serve_waits_where_it_is_queued() -> None:
    engine = POLICIES["nano-vllm"].small(oversized=Oversized.QUEUED, num_blocks=2)
    engine.add(request("a", 30, 1))

    assert (engine.step().tokens, engine.has_requests) == ({}, True)


@each_policy
def test_client_may_go_away_while_its_request_decodes(served: Served) -> None:
    engine = served.small()
    engine.add(request("a", 3, 9))
    plan = engine.scheduler.schedule()
    assert engine.abort("a")

    with pytest.raises(StalePlanError):
        engine.scheduler.update(plan)
    assert not engine.abort("a")
    assert not engine.has_requests
    assert engine.step().statistics.free_blocks == 40


# --- with failures ------------------------------------------------------------------------------


def first_of(kind: str, served: Served, results: Iterable[StepResult[Any, Any, Any]]) -> int:
    """The number of the first step in which this happens."""
    return next(
        index for index, result in enumerate(results) if dict(served.kinds(result)).get(kind)
    )


@pytest.mark.parametrize("failure", Failure)
@pytest.mark.parametrize(
    ("served", "setting", "phase"),
    [
        pytest.param(served, setting, phase, id=f"{policy}, {setting}, {phase}")
        for policy, served in POLICIES.items()
        for setting, phases in served.phases.items()
        for phase in phases.split(", ")
    ],
)
def test_failed_step_loses_nothing(
    served: Served, setting: str, phase: str, failure: Failure
) -> None:
    undisturbed = served.run(setting).serve(REQUESTS)
    at = first_of(phase, served, undisturbed.results)

    run = served.run(setting, {at: failure}).serve(REQUESTS)

    assert [result.failure for result in run.results].count(failure) == 1
    assert run.tokens == undisturbed.tokens
    if failure is not Failure.STOPPED:
        assert run.states == undisturbed.states
    last = run.states[-1]
    assert (last.finished, last.is_idle, last.pool.references) == ({*"abcde"}, True, {})
    assert len({*last.pool.free}) == last.pool.size


@each_setting
def test_device_that_fails_again_and_again(served: Served, setting: str) -> None:
    kinds = list(Failure)
    fails = {step: kinds[step // 5 % 2] for step in range(0, 200, 5)} | {8: Failure.STOPPED}

    run = served.run(setting, fails).serve(REQUESTS)

    assert run.tokens == {asked.id: alone(asked) for asked in REQUESTS}
    assert {result.failure for result in run.results} == {None, *Failure}


@pytest.mark.parametrize(
    ("policy", "other"),
    [
        ("spyre", {"block_size": 8}),
        ("nano-vllm", {"max_num_seqs": 1}),
        ("vllm-v1", {"max_num_seqs": 1}),
    ],
)
def test_step_that_the_device_refuses_changes_nothing(policy: str, other: dict[str, int]) -> None:
    served = POLICIES[policy]
    engine = served.engine(served.config(), served.device(served.config(**other)))
    for name in "ab":
        engine.add(request(name, 5, 3))
    before = served.observed(engine.scheduler)

    with pytest.raises(ConstraintError):
        engine.step()

    assert served.observed(engine.scheduler) == before
