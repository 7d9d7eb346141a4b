from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from checks.conformance.episode import Outcome, Terms, run_episode
from checks.fuzz.cases import Case, case_of
from checks.fuzz.compare import Strictness
from checks.fuzz.finding import Kind
from tests.checks.conformance.faithful import SENDNN, STRANGER, FaithfulLab, Fault

from checks.harness.driver.protocol import Json
from spec.core.requests import Prompt
from spec.spyre.config import released_2_6_3
from tests.recorded.scenes import asks


def two_requests(**config: Any) -> Case:
    """A prefix hit, a decode batch of two, tkv jumps: 14 steps."""
    shared = Prompt.of_parts([("system", 8), ("a", 3)])
    other = Prompt.of_parts([("system", 8), ("b", 6)])
    sizes = {"block_size": 4, "chunk_size": 8, "max_model_len": 32, "max_num_seqs": 2}
    return Case(
        released_2_6_3(**sizes | {"max_batch_tkv_limit": 64, "num_blocks": 12} | config),
        (
            asks("a", shared, 6),
            asks("b", other, 4, arrival=2),
        ),
    )


def served(fault: Fault | None = None, **terms: Any) -> Outcome:
    return run_episode(FaithfulLab(fault=fault), two_requests(), Terms(**terms))


def test_a_driver_that_does_as_the_reference_has_no_difference_in_any_random_case() -> None:
    counts: Counter[str] = Counter()
    steps = 0
    for episode in range(60):
        case = case_of(11, episode)
        terms = Terms(aborts_while_running=episode % 2 == 1)
        outcome = run_episode(FaithfulLab(), case, terms)
        assert outcome.finding is None, outcome.finding
        assert outcome.judged == outcome.steps
        steps += outcome.steps
        counts += outcome.counts

    assert steps > 1_000
    for action in ("prefix_hit", "pause", "preempt", "abort, decoding", "eviction"):
        assert counts[action]
    assert counts["abort while running, decoding"]
    assert counts["abort while running, prefilling"]


def at(step: int, change: Callable[[Json], None]) -> Fault:
    def fault(records: list[Json]) -> None:
        change(records[step])

    return fault


def first_decode_row(name: str, value: int) -> Fault:
    def fault(records: list[Json]) -> None:
        record = next(one for one in records if one["kind"] == "decode")
        record["batch"][0][name] = value

    return fault


FAULTS: dict[str, tuple[Fault, str]] = {
    "another kind of step": (at(0, lambda told: told.update(kind="idle")), "kind"),
    "another token": (at(1, lambda told: told["outputs"].update(a=[7])), "outputs"),
    "another tkv": (at(0, lambda told: told.update(tkv=99)), "tkv"),
    "somebody finishes early": (at(1, lambda told: told["finished"].append("a")), "finished"),
    "a chunk that begins later": (
        at(0, lambda told: told["prefilling"].update(start=1)),
        "chunk.start",
    ),
    "a block table with another block": (
        at(0, lambda told: told["prefilling"]["block_table"].append(3)),
        "chunk.block_table",
    ),
    "a write to another block": (
        at(0, lambda told: told["prefilling"]["writes"].reverse()),
        "chunk.writes",
    ),
    "another queue": (at(0, lambda told: told["waiting"].append("b")), "after.waiting"),
    "another reservation": (
        at(0, lambda told: told["others"][0].update(reserved=9)),
        "after.prefilling.reserved",
    ),
    "a total that does not add up": (
        at(0, lambda told: told["blocks"].update(reserved=9)),
        "blocks.reserved",
    ),
    "a running queue of its own": (at(0, lambda told: told["running"].append("b")), "running"),
    "free blocks in another order": (
        at(0, lambda told: told["free_list"].reverse()),
        "after.pool.free",
    ),
    "a block with two holders": (
        at(0, lambda told: told["references"].update({"1": 2})),
        "after.pool.references",
    ),
    "a block that no lookup finds": (at(1, lambda told: told["cached"].pop()), "after.pool.keys"),
    "left padding that is not needed": (first_decode_row("left_padding", 4), "batch.left_padding"),
    "a mask that says another tkv": (first_decode_row("tkv", 99), "batch.tkv"),
    "a token written elsewhere": (first_decode_row("slot", [1, 0]), "batch.slot"),  # type: ignore[arg-type]
    "a request of which more is computed": (
        at(1, lambda told: told["decoding"][0].update(computed=9)),
        "after.decoding.computed",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_in_its_field(name: str) -> None:
    fault, cause = FAULTS[name]

    finding = served(fault).finding

    assert finding is not None
    assert (finding.kind, finding.cause) == (Kind.DIVERGENCE, cause)


def test_decisions_do_not_look_at_blocks() -> None:
    fault, _ = FAULTS["free blocks in another order"]

    assert served(fault, strictness=Strictness.DECISIONS, judged=False).finding is None


def test_a_scheduler_that_raises_is_a_finding_with_its_place() -> None:
    outcome = run_episode(FaithfulLab(raises_at=3), two_requests(), Terms())

    assert outcome.finding is not None
    assert outcome.steps == outcome.finding.step == 3
    assert (outcome.finding.kind, outcome.finding.cause) == (Kind.CRASH, "ValueError step: x")
    assert outcome.finding.says == "ValueError: no (toy.py:1 step: x)"


def test_a_rule_that_both_break_is_found_on_the_drivers_own_steps() -> None:
    """Without interleaving both pause a request although pausing is off."""
    three = (
        asks("a", 257, 30),
        asks("b", 10, 20, arrival=1),
        asks("c", 10, 20, arrival=1),
    )
    sizes = {"chunk_size": 512, "max_model_len": 512, "max_num_seqs": 3, "num_blocks": 12}
    case = Case(
        released_2_6_3(**sizes, pausing=False, interleave=False, max_batch_tkv_limit=768), three
    )

    outcome = run_episode(FaithfulLab(), case, Terms())

    assert outcome.finding is None
    assert outcome.excused["SPY-PAU-6"] > 0  # broken, and known to be


def test_a_difference_that_is_known_of_a_release_is_nobody_elses_excuse() -> None:
    def leak(records: list[Json]) -> None:
        for told in records[1:]:
            for side in (told, told.get("before", {})):
                if side:
                    side["blocks"]["reserved"] += 3

    case = Case(
        released_2_6_3(max_model_len=256, chunk_size=128, num_blocks=4, max_batch_tkv_limit=1024),
        (
            asks("a", 1, 192, abort_at=1),
            asks("b", 1, 2, arrival=2),
        ),
    )

    known = run_episode(FaithfulLab(SENDNN, fault=leak), case, Terms())
    unknown = run_episode(FaithfulLab(STRANGER, fault=leak), case, Terms())

    assert (known.known, known.finding) == ("SND-1", None)
    assert unknown.known is None
    assert unknown.finding is not None
    assert unknown.finding.cause == "before.blocks.reserved"


def test_a_known_difference_that_does_not_show_where_it_is_due_is_missed() -> None:
    case = Case(
        released_2_6_3(max_model_len=256, chunk_size=128, num_blocks=4, max_batch_tkv_limit=1024),
        (asks("a", 1, 192, abort_at=1),),
    )

    outcome = run_episode(FaithfulLab(SENDNN), case, Terms())

    assert outcome.missed == {"SND-1": 1}
