"""Spyre's engine at the sizes of hardware, and as a scheduler that a harness steps."""

import pytest

from benchmarks.measure import generated
from checks.harness.case import Case
from checks.harness.finding import Kind
from checks.harness.own_engine import EngineScheduler
from checks.harness.runs.serving import served, served_by
from checks.harness.system import Action
from checks.mutants.failing import FailingDevice
from checks.policies.spyre.engine import engine_under_test, on_device
from engine.core.blocks import PrefixHit
from engine.core.faults import Failure
from engine.spyre.device import SpyreDevice
from engine.spyre.serving import Engine
from spec.core.errors import WorkloadError
from spec.spyre.config import SpyreConfig, released_2_6_3
from spec.spyre.records import Step
from spec.spyre.variants import Admission, Queue
from tests.checks.policies.test_engines import findings
from tests.requests import request

REAL_SIZES = {
    "default": SpyreConfig(),
    "2.6.3": released_2_6_3(reading="text"),
    "2.6.3 without pausing": released_2_6_3(reading="text", pausing=False),
    "overtaking in a tight pool": SpyreConfig(
        queue=Queue.OVERTAKING, num_blocks=900, max_batch_tkv_limit=40_000
    ),
    "preemption": SpyreConfig(reservation=False, num_blocks=600),
    "documented": SpyreConfig(admission=Admission.DOCUMENTED),
}


@pytest.mark.thorough
@pytest.mark.parametrize("config", REAL_SIZES.values(), ids=REAL_SIZES)
def test_real_sizes_are_served_as_by_the_reference(config: SpyreConfig) -> None:
    case = Case(config, tuple(generated(300)))

    steps = 0
    for expected, found in zip(served(case), served_by(engine_under_test(case), case), strict=True):
        assert found == expected
        steps += 1
    assert steps > 3_800


def test_a_lookup_that_is_trusted_too_long_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other faults of the engine are those of `engine_faults`."""
    never = property(lambda _: False, lambda *_: None)
    monkeypatch.setattr(PrefixHit, "is_stale", never)

    found = findings("spyre", 60, seed=2)

    assert Kind.CRASH in (finding.kind for finding in found)


# --- the engine as a scheduler ------------------------------------------------------------------


def two(max_model_len: int = 512) -> EngineScheduler[Engine, Step]:
    """The engine, to which `a` has arrived and `b` has not."""
    requests = request("a", 3, 4), request("b", 3, 4)
    scheduler = engine_under_test(Case(SpyreConfig(max_model_len=max_model_len), requests))
    scheduler.arrive("a")
    return scheduler


def test_request_that_can_never_be_served_is_refused() -> None:
    with pytest.raises(WorkloadError, match="prompt_len"):
        two(max_model_len=6)


def test_step_has_the_request_whose_client_left_before_it() -> None:
    scheduler = two()
    scheduler.arrive("b")
    scheduler.abort("b")
    scheduler.abort("b")

    assert scheduler.step(0, Action()).aborted == ("b",)
    assert scheduler.step(1, Action(time=8.0)).aborted == ()


def test_step_has_the_requests_that_were_made_to_end() -> None:
    assert two().step(0, Action(ends=("a", "b"))).ended == ("a",)


def test_device_does_not_fail() -> None:
    config = SpyreConfig()
    device = FailingDevice(SpyreDevice(config), {0: Failure.RESULT_LOST})
    scheduler = on_device(device, Case(config, (request("a", 3, 4),)))
    scheduler.arrive("a")

    with pytest.raises(RuntimeError, match=r"^the device failed: result lost$"):
        scheduler.step(0, Action())
