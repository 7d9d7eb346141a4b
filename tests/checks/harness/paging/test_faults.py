"""Faults planted in both machines: the device notices wrong blocks, lengths and tokens.

The faults are those that the rules are tested with, on random runs of which each has a number.
"""

from typing import Any

import pytest

from engine.core.faults import Constraint, ConstraintError
from reference.vllm_v0 import block_manager, swapping
from spec.vllm_v0.records import Pairs
from tests.checks.faults.nano_vllm import FAULTS as NANO_VLLM_FAULTS
from tests.checks.faults.nano_vllm.table import FALSE_PREFIX
from tests.checks.faults.vllm_v1 import FAULTS as VLLM_V1_FAULTS
from tests.checks.harness.paging.episodes import (
    Episode,
    forking_episode,
    nano_vllm_episode,
    serve_in_turn,
    swapping_episode,
    vllm_v1_episode,
)
from tests.refusals import device_refuses

BY_NAME = {
    **{f"nano-vllm: {fault.name}": fault for fault in NANO_VLLM_FAULTS},
    **{f"vllm-v1: {fault.name}": fault for fault in VLLM_V1_FAULTS},
}
DEVICE, SCHEDULER = "wrong token by the device", "wrong token by the scheduler"

# Name of the fault, number of the run, what is noticed first.
NOTICED = (
    ("nano-vllm: handed out and free", 0, Constraint.READ_UNWRITTEN),
    ("nano-vllm: one block for all", 0, Constraint.WRITE_HELD),
    ("nano-vllm: old hash stays", 0, Constraint.READ_UNWRITTEN),
    ("nano-vllm: second holder not counted", 3, Constraint.READ_UNWRITTEN),
    ("nano-vllm: revived and free", 0, Constraint.READ_UNWRITTEN),
    ("nano-vllm: freed by the first holder", 0, Constraint.READ_POSITION),
    ("nano-vllm: hit not checked", 0, Constraint.READ_UNWRITTEN),
    ("nano-vllm: last token not computed", 0, DEVICE),
    ("nano-vllm: two tokens at once", 0, SCHEDULER),
    ("vllm-v1: running tokens are free", 0, Constraint.BATCH_LIMIT),
    ("vllm-v1: victim keeps its blocks", 0, Constraint.WRITE_HELD),
    ("vllm-v1: failed load counts", 1, Constraint.WRITE_GAP),
    ("vllm-v1: loading blocks are cached", 1, Constraint.READ_UNWRITTEN),
    ("vllm-v1: half computed blocks are cached", 44, Constraint.READ_UNWRITTEN),
    ("vllm-v1: lost tokens stay computed", 30, DEVICE),
    ("vllm-v1: rejected drafts stay", 0, DEVICE),
    ("vllm-v1: a draft is not reported", 0, SCHEDULER),
    ("vllm-v1: accepted drafts are not reported", 0, SCHEDULER),
)


def first_sign(episode: Episode[Any]) -> Constraint | str:
    """The first sign of the fault in a run: a refusal of the device or other tokens."""
    try:
        for step in episode.steps:
            episode.watch.observe(step)
            if episode.watch.wrong:
                return f"wrong token by the {episode.watch.wrong[0].by}"
    except ConstraintError as refused:
        return refused.constraint
    return "nothing"


@pytest.mark.parametrize(("name", "number", "sign"), NOTICED, ids=[name for name, *_ in NOTICED])
def test_fault_is_noticed(
    monkeypatch: pytest.MonkeyPatch, name: str, number: int, sign: Constraint | str
) -> None:
    BY_NAME[name].plant(monkeypatch)
    episode: Any = nano_vllm_episode if name.startswith("nano-vllm") else vllm_v1_episode

    assert first_sign(episode(number)) == sign


@pytest.mark.parametrize("number", [0, 3, 44])
def test_nothing_is_noticed_where_no_fault_is_planted(number: int) -> None:
    assert first_sign(nano_vllm_episode(number)) == "nothing"
    assert first_sign(vllm_v1_episode(number)) == "nothing"


def without_first(pairs: Pairs) -> Pairs:
    return pairs[1:]


def turned_round(pairs: Pairs) -> Pairs:
    return tuple((target, source) for source, target in pairs)


def exchanged(pairs: Pairs) -> Pairs:
    sources, targets = zip(*pairs, strict=True) if pairs else ((), ())
    return tuple(zip(sources, (*targets[1::-1], *targets[2:]), strict=True))


@pytest.mark.parametrize(
    ("function", "wrong", "sign"),
    [
        ("swap_out", without_first, Constraint.SWAP_SOURCE),
        ("swap_out", exchanged, Constraint.READ_POSITION),
        ("swap_out", turned_round, Constraint.SWAP_SOURCE),
        ("swap_in", without_first, Constraint.READ_UNWRITTEN),
        ("swap_in", exchanged, Constraint.READ_POSITION),
        ("append_slots", without_first, Constraint.WRITE_GAP),
        ("append_slots", turned_round, Constraint.TRANSFER_TARGET),
    ],
)
def test_wrong_pairs_of_a_block_manager_are_noticed(
    monkeypatch: pytest.MonkeyPatch, function: str, wrong: Any, sign: Constraint
) -> None:
    """Tables and pools are right, the pairs of blocks are not."""
    module = block_manager if function == "append_slots" else swapping
    right = getattr(module, function)

    def misled(*given: Any) -> Any:
        *others, pairs = right(*given)
        return *others, wrong(pairs)

    monkeypatch.setattr(module, function, misled)
    episode = forking_episode if function == "append_slots" else swapping_episode

    assert first_sign(episode(0)) == sign


def test_hash_that_is_not_chained_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second block of a prompt has the tokens of another prompt's first."""
    serve_in_turn(FALSE_PREFIX.config, FALSE_PREFIX.requests)
    BY_NAME["nano-vllm: hashes not chained for the rules too"].plant(monkeypatch)

    with device_refuses(
        Constraint.READ_POSITION, row=0, column=0, block=1, position=0, written_for=2
    ):
        serve_in_turn(FALSE_PREFIX.config, FALSE_PREFIX.requests)
