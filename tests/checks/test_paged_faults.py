"""Faults planted in both machines: what they do to blocks, lengths and tokens, the device notices.

The faults are those that the rules are tested with, on random runs of which each has a number.
"""

from typing import Any

import pytest

from checks.policies.nano_vllm.paging import nano_vllm_watch
from engine.core.faults import Constraint, ConstraintError
from reference.nano_vllm.machine import NanoVllmMachine
from tests.checks.faults.nano_vllm import FALSE_PREFIX
from tests.checks.faults.nano_vllm import FAULTS as NANO_VLLM_FAULTS
from tests.checks.faults.vllm_v1 import FAULTS as VLLM_V1_FAULTS
from tests.checks.paged_episodes import Episode, nano_vllm_episode, vllm_v1_episode

BY_NAME = {
    **{f"nano-vllm: {one.name}": one for one in NANO_VLLM_FAULTS},
    **{f"vllm-v1: {one.name}": one for one in VLLM_V1_FAULTS},
}
DEVICE, SCHEDULER = "wrong token by the device", "wrong token by the scheduler"

# Name of the fault, number of the run, what is noticed first.
NANO_VLLM = (
    ("handed out and free", 0, Constraint.READ_UNWRITTEN),
    ("one block for all", 0, Constraint.WRITE_HELD),
    ("old hash stays", 0, Constraint.READ_UNWRITTEN),
    ("second holder not counted", 3, Constraint.READ_UNWRITTEN),
    ("revived and free", 0, Constraint.READ_UNWRITTEN),
    ("freed by the first holder", 0, Constraint.READ_POSITION),
    ("hit not checked", 0, Constraint.READ_UNWRITTEN),
    ("last token not computed", 0, DEVICE),
    ("two tokens at once", 0, SCHEDULER),
)
VLLM_V1 = (
    ("running tokens are free", 0, Constraint.BATCH_LIMIT),
    ("victim keeps its blocks", 0, Constraint.WRITE_HELD),
    ("failed load counts", 1, Constraint.WRITE_GAP),
    ("loading blocks are cached", 1, Constraint.READ_UNWRITTEN),
    ("half computed blocks are cached", 44, Constraint.READ_UNWRITTEN),
    ("lost tokens stay computed", 30, DEVICE),
    ("rejected drafts stay", 0, DEVICE),
    ("a draft is not reported", 0, SCHEDULER),
    ("accepted drafts are not reported", 0, SCHEDULER),
)


def first_sign(episode: Episode[Any]) -> Constraint | str:
    """What the device notices of a run, or the comparison of its tokens."""
    try:
        for step in episode.steps:
            episode.watch.observe(step)
            if episode.watch.wrong:
                return f"wrong token by the {episode.watch.wrong[0].by}"
    except ConstraintError as refused:
        return refused.constraint
    return "nothing"


@pytest.mark.parametrize(("name", "number", "sign"), NANO_VLLM, ids=[one for one, *_ in NANO_VLLM])
def test_fault_of_nano_vllm_is_noticed(
    monkeypatch: pytest.MonkeyPatch, name: str, number: int, sign: Constraint | str
) -> None:
    BY_NAME[f"nano-vllm: {name}"].plant(monkeypatch)

    assert first_sign(nano_vllm_episode(number)) == sign


@pytest.mark.parametrize(("name", "number", "sign"), VLLM_V1, ids=[one for one, *_ in VLLM_V1])
def test_fault_of_vllm_v1_is_noticed(
    monkeypatch: pytest.MonkeyPatch, name: str, number: int, sign: Constraint | str
) -> None:
    BY_NAME[f"vllm-v1: {name}"].plant(monkeypatch)

    assert first_sign(vllm_v1_episode(number)) == sign


@pytest.mark.parametrize("number", [0, 1, 3, 30, 44])
def test_nothing_is_noticed_where_no_fault_is_planted(number: int) -> None:
    assert first_sign(nano_vllm_episode(number)) == "nothing"
    assert first_sign(vllm_v1_episode(number)) == "nothing"


def served_in_turn(instance: Any) -> None:
    """The requests of an instance one after the other, on machine and device."""
    machine = NanoVllmMachine.of(instance.config, instance.requests)
    watch, state = nano_vllm_watch(machine.ctx), machine.initial()
    for request in instance.requests:
        state = machine.arrive(state, request.id)
        while not state.is_idle:
            step = machine.step(state)
            watch.observe(step)
            state = step.after
    assert not watch.wrong


def test_hash_that_is_not_chained_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second block of a prompt has the tokens of another prompt's first."""
    served_in_turn(FALSE_PREFIX)
    BY_NAME["nano-vllm: hashes not chained for the rules too"].plant(monkeypatch)

    with pytest.raises(ConstraintError) as refused:
        served_in_turn(FALSE_PREFIX)

    assert refused.value.constraint == Constraint.READ_POSITION
