"""The incremental judge and the plain judge give the same answers, on right and wrong steps."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import islice, product
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve, field, frozen

from checks.explore.instance import Instance
from checks.explore.model import OnStep, Transition
from checks.explore.policy import machine_of
from checks.explore.search import explore
from checks.harness.campaigns.campaign import Plan
from checks.harness.case import Case
from checks.harness.incremental import course
from checks.harness.incremental.course import Course
from checks.harness.incremental.judging import IncrementalJudge
from checks.harness.incremental.looks import Looks
from checks.harness.incremental.orders import differing
from checks.harness.judging import Judge, judgeable
from checks.harness.policy import Own, evidence_of
from checks.harness.runs.serving import scheduler_for, served, served_by
from checks.harness.system import REFERENCE
from checks.registry import POLICIES, claims_of
from engine.workloads import fit_for, read_workload
from spec.core.configuration import PolicyConfig
from spec.core.judging import ids
from spec.core.requests import Prompt, Request
from spec.core.rule import AnyRule
from spec.spyre.variants import Admission, Queue
from spec.vllm_v1.config import Connector
from tests.checks.harness.incremental.wrong_states import HUGE, Fault, NotThereError, faults_of
from tests.checks.policies.engine_faults import EngineFault
from tests.checks.policies.nano_vllm import engine_faults as of_nano_vllm
from tests.checks.policies.spyre import engine_faults as of_spyre
from tests.checks.policies.vllm_v1 import engine_faults as of_vllm_v1

LOOKING = [name for name in POLICIES if evidence_of(name).looks is not None]
Answers = list[tuple[str, str]]  # rules that are broken, with what was found


def share_small_parts(patch: pytest.MonkeyPatch) -> None:
    """States of an engine share parts that are nearly as small as they can be."""
    patch.setattr("engine.core.blocks._RUN", 2)
    patch.setattr("engine.core.observing._RUN", 2)
    patch.setattr("engine.core.sharing._CHANGES", 100)


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    share_small_parts(monkeypatch)


def looks_of(policy: str) -> Looks:
    looks = evidence_of(policy).looks
    assert looks is not None
    made: Looks = looks()
    return made


@frozen
class Judges:
    """Both judges of the same rules; `broken`: those of which both found a violation."""

    plain: Judge
    incremental: Judge
    broken: set[str] = field(factory=set, init=False)

    @staticmethod
    def of(ctx: Any, rules: Sequence[AnyRule], looks: Looks | None = None) -> "Judges":
        looks = looks or looks_of(ctx.config.policy)
        return Judges(Judge(ctx, rules), IncrementalJudge(ctx, looks, rules))

    def same(self, ask: Callable[[Judge], Iterable[tuple[AnyRule, str]]]) -> Answers | None:
        """The first violation of each rule that both find, as a run reports it.

        None if the step contradicts itself, so that rules cannot judge it.
        """
        try:
            plain = self._firsts(ask(self.plain))
        except (KeyError, IndexError, StopIteration, ValueError):
            return None
        assert self._firsts(ask(self.incremental)) == plain
        self.broken.update(rule for rule, _ in plain)
        return plain

    def _firsts(self, found: Iterable[tuple[AnyRule, str]]) -> Answers:
        return [(rule.id, what) for rule, what in found if rule.id not in self.broken]


# --- engines, as they are and with planted faults -------------------------------------------------


def steps_of_engine(case: Case) -> Iterator[Any]:
    """The steps until all have left, the engine repeats its steps, or a fault makes it raise."""
    engine: Any = __import__(f"checks.policies.{_package(case.config)}.engine", fromlist=["x"])
    steps = islice(served_by(engine.without_device(case), case), 300)
    while True:
        try:
            yield next(steps)
        except Exception:  # the end, or an error of a fault
            return


def _package(config: PolicyConfig) -> str:
    return config.policy.replace("-", "_")


def rules_broken(policy: str, cases: Iterable[int], **pinned: Any) -> set[str]:
    """The rules that the engine breaks in these cases, on which both judges agree."""
    broken = set[str]()
    for episode in cases:
        case = Plan(Own(policy, "engine"), pinned=pinned).case(episode)
        reference: Any = scheduler_for(REFERENCE, case)
        judges = Judges.of(reference.machine.ctx, judgeable(case.config))
        for step in steps_of_engine(case):
            found = judges.same(partial(_observed, step=step))
            if found is None:
                break  # what it left was not judged, and a look needs a state that was
            broken.update(rule for rule, _ in found)
    return broken


def _observed(judge: Judge, step: Any) -> Iterator[tuple[AnyRule, str]]:
    return ((broken.rule, broken.found) for broken in judge.observe(step))


@pytest.mark.parametrize("policy", LOOKING)
def test_both_judges_agree_on_random_cases(policy: str) -> None:
    rules_broken(policy, range(10))


def test_both_judges_agree_where_a_model_length_is_odd() -> None:
    odd = {"block_size": 4, "max_model_len": 15, "admission": Admission.EXACT}

    assert rules_broken("spyre", range(10), **odd) >= {"SPY-LEN-1"}


NOTICED: dict[tuple[str, str], set[str]] = {  # planted faults, and rules that notice them
    ("spyre", "table head first"): {"BLK-4"},
    ("spyre", "plain blocks last"): {"BLK-4", "BLK-10"},
    ("spyre", "keys without answers"): {"SPY-PFX-2"},
    ("spyre", "answers not cached"): {"SPY-PFX-8"},
    ("spyre", "promised for ever"): {"SPY-RES-2"},
    ("nano-vllm", "plain blocks first"): {"NANO-BLK-5"},
    ("nano-vllm", "preempted keeps its blocks"): {"NANO-BLK-2"},
    ("nano-vllm", "boundary one off"): {"NANO-BLK-4"},
    ("nano-vllm", "answers not cached"): {"NANO-PFX-1"},
    ("nano-vllm", "preempted waits last"): {"NANO-ADM-7"},
    ("vllm-v1", "released head first"): {"V1-KV-8"},
    ("vllm-v1", "slots beyond the model"): {"V1-KV-7"},
    ("vllm-v1", "keys without tokens"): {"V1-KV-11", "V1-KV-12"},
    ("vllm-v1", "priorities not sorted"): {"V1-ORD-3"},
}
ENGINE_FAULTS = {
    "spyre": of_spyre.ENGINE_FAULTS,
    "nano-vllm": of_nano_vllm.ENGINE_FAULTS,
    "vllm-v1": of_vllm_v1.ENGINE_FAULTS,
}


@pytest.mark.parametrize(
    ("policy", "fault"),
    [
        pytest.param(
            policy,
            fault,
            id=f"{policy}, {fault.name}",
            marks=() if (policy, fault.name) in NOTICED else pytest.mark.thorough,
        )
        for policy, faults in ENGINE_FAULTS.items()
        for fault in faults
    ],
)
def test_both_judges_agree_on_engines_with_planted_faults(
    policy: str, fault: EngineFault, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault.plant(monkeypatch)

    broken, due = rules_broken(policy, range(10)), NOTICED.get((policy, fault.name), set())

    if not broken >= due:  # which case meets a fault is drawn
        broken |= rules_broken(policy, range(10, 100))
    assert broken >= due


# --- every edge of small state graphs -------------------------------------------------------------

INSTANCES = {
    f"{name}, {instance.name}": instance
    for name in LOOKING
    for instance in machine_of(name).instances
}
FAST = (  # caching and eviction, preemption, drafts, loads that come, fail or are left
    "nano-vllm, documented, eviction",
    "vllm-v1, priority",
    "vllm-v1, eviction, 0.11.2",
    "vllm-v1, speculation",
    "vllm-v1, async load, priority",
    "vllm-v1, sync load, lost",
)


FEW_EDGES = (  # five to ten
    *("sessions, too long", "groups, states, encoder, whole"),
    "groups, window, async, whole",
)


def edges_judged(instance: Instance[Any], looks: Looks | None = None) -> int:
    """The number of edges on which both judges agree about rules that held before."""
    policy = instance.config.policy
    model = machine_of(policy).model(evolve(instance, returning=frozenset()))
    rules, judged = judgeable(instance.config), 0

    def differences(state: Any, transition: Transition[Any]) -> str | None:
        nonlocal judged
        judged += 1
        held = [
            rule
            for rule in rules
            if not rule.in_state or rule.found_in_state(model.ctx, state) is None
        ]
        judges, record = Judges.of(model.ctx, held, looks), transition.record
        if isinstance(record, claims_of(policy).step):
            judges.same(lambda judge: judge.of_step(record))
        elif state != transition.state:
            judges.same(lambda judge: judge.of_change(state, transition.state))
        return None

    explore(model, [OnStep("same", differences)], keep_going=True)
    return judged


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in FAST else pytest.mark.thorough) for name in INSTANCES],
)
def test_both_judges_agree_on_every_edge(name: str) -> None:
    least = 4 if INSTANCES[name].name.startswith(FEW_EDGES) else 10
    assert edges_judged(INSTANCES[name]) > least


# --- wrong states ---------------------------------------------------------------------------------

SMALL: dict[str, list[dict[str, Any]]] = {  # so few blocks that requests are preempted, too
    "spyre": [
        {"block_size": 2, "chunk_size": 4, "max_model_len": 32, "num_blocks": 14},
        {"block_size": 2, "chunk_size": 4, "max_model_len": 32, "num_blocks": 12}
        | {"reservation": False, "queue": Queue.ALIGNED, "max_overtakes": 2},
    ],
    "nano-vllm": [{"block_size": 2, "max_model_len": 32, "num_blocks": 14}],
    "vllm-v1": [
        {"block_size": 2, "max_model_len": 32, "max_num_batched_tokens": 8, "num_blocks": 15}
        | {"num_speculative_tokens": 2, "accepted_drafts": 1},
        {"block_size": 2, "max_model_len": 32, "max_num_batched_tokens": 8, "num_blocks": 15}
        | {"connector": Connector.ASYNC},
        {"block_size": 2, "max_model_len": 32, "max_num_batched_tokens": 8, "num_blocks": 25}
        | {"kv_groups": "sliding 3"},
    ],
}
REQUESTS = [
    Request(
        id=str(n), prompt=Prompt.of_stream(f"stream {n % 3}", 3 + n), max_tokens=7, arrival=n // 4
    )
    for n in range(8)
]


@frozen
class Run:
    """The steps of a run, of which each keeps these rules."""

    ctx: Any
    rules: tuple[AnyRule, ...]
    steps: tuple[Any, ...]

    @staticmethod
    def of(config: PolicyConfig, requests: Sequence[Request], steps: Iterable[Any]) -> "Run":
        known = [*requests, evolve(requests[0], id=HUGE, max_tokens=1_000)]
        ctx, taken = claims_of(config.policy).context_of(config, known), tuple(steps)
        broken = {finding.rule.id for finding in Judge(ctx).observe_all(taken)}
        rules = [rule for rule in judgeable(config) if rule.id not in broken]
        return Run(ctx, tuple(rules), taken)

    def broken_by(self, fault: Fault, numbers: range, looks: Looks | None = None) -> set[str]:
        """The rules that fall in wrong steps and changes, on which both judges agree.

        Each is the first that its judges see: behind a broken rule about states all is judged on
        the whole.
        """
        looks, broken = looks or looks_of(self.ctx.config.policy), set[str]()
        for step, n in product(self.steps, numbers):
            for name in ("planned", "after", "before"):
                try:
                    wrong = fault(getattr(step, name), n)
                except (NotThereError, AttributeError):
                    continue
                judges = Judges.of(self.ctx, self.rules, looks)
                if name == "before":
                    found = judges.same(partial(Judge.of_change, before=step.before, after=wrong))
                else:
                    found = judges.same(partial(Judge.of_step, step=evolve(step, **{name: wrong})))
                broken.update(rule for rule, _ in found or ())
        return broken


@cache
def small_runs(policy: str) -> list[Run]:
    """Small runs of the engine and of the reference."""
    runs = []
    for keys in SMALL[policy]:
        config = claims_of(policy).config(max_num_seqs=4, **keys)
        loads = "connector" in keys
        requests = [evolve(request, external=3) for request in REQUESTS] if loads else REQUESTS
        with pytest.MonkeyPatch.context() as patch:
            share_small_parts(patch)
            for using in ("engine", "reference"):
                steps = served(Case(config, tuple(requests)), using)
                runs.append(Run.of(config, requests, steps))
    return runs


def faults_in(policy: str) -> dict[str, Fault]:
    queues = ("waiting", *looks_of(policy).places.queues)
    return dict(faults_of(queues, type(small_runs(policy)[0].steps[0].after.admitted[0])))


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param(name, marks=[] if name == "nano-vllm" else pytest.mark.thorough)
        for name in LOOKING
    ],
)
def test_both_judges_agree_on_wrong_states_and_every_rule_with_a_look_falls(policy: str) -> None:
    fallen = set[str]()
    for fault in faults_in(policy).values():
        for run in small_runs(policy)[::2]:
            fallen |= evolve(run, steps=run.steps[::2]).broken_by(fault, range(2))

    assert fallen >= looks_of(policy).by_rule.keys()


@pytest.mark.thorough
@pytest.mark.parametrize("policy", LOOKING)
def test_both_judges_agree_on_many_wrong_states(policy: str) -> None:
    for fault in faults_in(policy).values():
        for run in small_runs(policy):
            run.broken_by(fault, range(6))


# --- wrong looks ----------------------------------------------------------------------------------


def _without_end(self: Course) -> Any:
    """The queue of each state, without any request that stays in it."""
    queues = [state.waiting for state in self.states]
    kept = {*ids(queues[0])} & {*ids(queues[-1])}
    return tuple(tuple(row for row in queue if row.id not in kept) for queue in queues)


WRONG_LOOKS: dict[str, tuple[str, Any, str, str]] = {  # by what they miss: where, a fault it misses
    "a request that stays beside a newcomer": (
        "waiting",
        property(_without_end),
        "spyre",
        "newcomer in front",
    ),
    "other requests with the same id": (
        "_are_unique",
        lambda *_: True,
        "spyre",
        "a row twice: waiting",
    ),
    "other holders of a touched block": (
        "_holders",
        property(lambda _: set[str]()),
        "spyre",
        "a block of another, too: decoding",
    ),
    "what is free, and known": ("_blocks", property(lambda _: set[int]()), "spyre", "a lost block"),
    "rows that changed": (
        "_moved",
        property(lambda _: (set[str](), set[int]())),
        "vllm-v1",
        "a block less: running",
    ),
}


@pytest.mark.parametrize(
    ("attribute", "wrong", "policy", "fault"), WRONG_LOOKS.values(), ids=WRONG_LOOKS
)
def test_a_wrong_look_is_caught(
    attribute: str, wrong: Any, policy: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Course, attribute, wrong)

    with pytest.raises(AssertionError):
        small_runs(policy)[0].broken_by(faults_in(policy)[fault], range(6))


def test_free_lists_without_the_blocks_that_stay_are_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none_stays(before: Any, after: Any, _hits: set[int]) -> Any:
        left, entered = differing(before, after)
        return left, entered

    monkeypatch.setattr(course, "_short_free_lists", none_stays)

    with pytest.raises(AssertionError):
        small_runs("spyre")[0].broken_by(faults_in("spyre")["last few put first"], range(6))


@pytest.mark.parametrize("policy", LOOKING)
def test_a_rule_that_is_shown_nothing_is_caught(policy: str) -> None:
    looks, run = looks_of(policy), small_runs(policy)[0]
    blind = evolve(looks, by_rule={**looks.by_rule, run.rules[0].id: lambda _course: None})
    rules = (evolve(run.rules[0], in_state=_broken, of_step=_broken, given=None),)

    with pytest.raises(AssertionError):
        evolve(run, rules=rules).broken_by(lambda state, _n: state, range(1), blind)


def _broken(_ctx: Any, _whole: Any) -> Iterator[str]:
    yield "broken"


# --- slices of real traces ------------------------------------------------------------------------

TRACES = ("AzureLLMInferenceTrace_conv.csv", "mooncake_conversation_trace.jsonl")


@pytest.mark.parametrize("policy", LOOKING)
@pytest.mark.parametrize("trace", TRACES)
def test_both_judges_agree_on_a_slice_of_a_real_trace(
    trace: str, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the environment variable LOCKSTEP_TRACES names the directory that they are in."""
    path = Path(os.environ.get("LOCKSTEP_TRACES", "")) / trace
    if not path.is_file():
        pytest.skip(f"{trace} is not in LOCKSTEP_TRACES")
    monkeypatch.undo()
    config = claims_of(policy).config()
    refuse = claims_of(policy).refuse_unservable
    requests, _ = fit_for(read_workload(path, limit=3_000), lambda request: refuse(request, config))
    steps = islice(served(Case(config, tuple(requests)), "engine"), 300, 320)
    run = Run.of(config, requests, steps)
    judges = Judges.of(run.ctx, run.rules)
    for step in run.steps:
        assert judges.same(partial(Judge.of_step, step=step)) == []
    assert len(run.steps[0].before.waiting) > 1_000
    few = evolve(run, steps=run.steps[::10])
    broken = [few.broken_by(fault, range(1)) for fault in faults_in(policy).values()]
    assert len(set[str]().union(*broken)) > len(looks_of(policy).by_rule) / 2
