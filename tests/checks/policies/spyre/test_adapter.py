"""Drivers of Spyre: a faithful driver has no finding, and a fault is found in its field."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from checks.harness.campaigns.campaign import Plan
from checks.harness.case import Case
from checks.harness.comparing import Strictness
from checks.harness.comparison import Terms, compare
from checks.harness.finding import Episode, Kind
from checks.harness.policy import Own
from checks.harness.system import Json
from spec.core.requests import Prompt
from spec.spyre.config import released_2_6_3
from tests.checks.harness.driver.faithful import Fault, at
from tests.checks.policies.spyre.driver import OLDER, SAYS_WHY, STRANGER, driver, freed_to_the_end
from tests.recorded.scenes import SCENES, asks

PLAN = Plan(Own("spyre", "reference"), seed=11)


def two_requests(**config: Any) -> Case:
    """A prefix hit, a decode batch of two, tkv jumps: 10 steps."""
    shared = Prompt.of_parts([("system", 8), ("a", 3)])
    other = Prompt.of_parts([("system", 8), ("b", 6)])
    sizes = {"block_size": 4, "chunk_size": 8, "max_model_len": 32, "max_num_seqs": 2}
    return Case(
        released_2_6_3(**sizes | {"max_batch_tkv_limit": 64, "num_blocks": 12} | config),
        (asks("a", shared, 6), asks("b", other, 4, arrival=2)),
    )


def served(fault: Fault | None = None, **terms: Any) -> Episode:
    return compare(driver(fault=fault), two_requests(), Terms(**terms))


def test_a_driver_that_does_as_the_reference_has_no_difference_in_any_random_case() -> None:
    counts: Counter[str] = Counter()
    steps = 0
    for number in range(40):
        terms = Terms(aborts_while_running=number % 2 == 1)
        episode = compare(driver(), PLAN.case(number), terms)
        assert episode.finding is None, episode.finding
        assert episode.judged == episode.steps
        steps += episode.steps
        counts += episode.counts

    assert steps > 600
    for action in ("prefix_hit", "pause", "preempt", "abort, decoding", "eviction"):
        assert counts[action], action
    assert counts["abort while running, decoding"]
    assert counts["abort while running, prefilling"]


def test_blocks_that_stay_reserved_hold_back_a_request_that_would_overtake() -> None:
    episode = compare(driver(SAYS_WHY), SCENES["held_back"].case, Terms(judged=True))

    assert episode.finding is None
    assert episode.expected["SPY-PRI-6"] == 15


def first_decode_row(name: str, value: int | list[int]) -> Fault:
    def fault(records: list[Json]) -> None:
        record = next(record for record in records if record["kind"] == "decode")
        record["batch"][0][name] = value

    return fault


def chunk(change: Callable[[Json], object]) -> Fault:
    return at(0, lambda record: change(record["prefilling"]))


FAULTS: dict[str, tuple[Fault, str]] = {
    "another kind of step": (at(0, lambda record: record.update(kind="idle")), "kind"),
    "another token": (at(1, lambda record: record["outputs"].update(a=[7])), "outputs"),
    "another tkv": (at(0, lambda record: record.update(tkv=99)), "tkv"),
    "a request finishes early": (at(1, lambda record: record["finished"].append("a")), "finished"),
    "a chunk that begins later": (chunk(lambda fields: fields.update(start=1)), "chunk.start"),
    "a table with another block": (
        chunk(lambda fields: fields["block_table"].append(3)),
        "chunk.block_table",
    ),
    "a write to another block": (chunk(lambda fields: fields["writes"].reverse()), "chunk.writes"),
    "another queue": (at(0, lambda record: record["waiting"].append("b")), "after.waiting"),
    "another reservation": (
        at(0, lambda record: record["others"][0].update(reserved=9)),
        "after.prefilling.reserved",
    ),
    "a total that does not add up": (
        at(0, lambda record: record["blocks"].update(reserved=9)),
        "blocks.reserved",
    ),
    "a running queue of its own": (at(0, lambda record: record["running"].append("b")), "running"),
    "free blocks in another order": (
        at(0, lambda record: record["free_list"].reverse()),
        "after.pool.free",
    ),
    "a block with two holders": (
        at(0, lambda record: record["references"].update({"1": 2})),
        "after.pool.references",
    ),
    "a block that no lookup finds": (
        at(1, lambda record: record["cached"].pop()),
        "after.pool.keys",
    ),
    "left padding that is not needed": (first_decode_row("left_padding", 4), "batch.left_padding"),
    "a mask that says another tkv": (first_decode_row("tkv", 99), "batch.tkv"),
    "a token written elsewhere": (first_decode_row("slot", [1, 0]), "batch.slot"),
    "a request of which more is computed": (
        at(1, lambda record: record["decoding"][0].update(computed=9)),
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
    episode = compare(driver(failing_step=3), two_requests(), Terms())

    assert episode.finding is not None
    assert episode.steps == episode.finding.step == 3
    assert (episode.finding.kind, episode.finding.cause) == (Kind.CRASH, "ValueError step: x")
    assert episode.finding.says == "ValueError: no (toy.py:1 step: x)"


def test_a_rule_that_both_break_is_found_on_the_drivers_own_steps() -> None:
    """Without interleaving both pause a request although pausing is off."""
    sizes = {"chunk_size": 512, "max_model_len": 512, "max_num_seqs": 3, "num_blocks": 12}
    case = Case(
        released_2_6_3(**sizes, pausing=False, interleave=False, max_batch_tkv_limit=768),
        (asks("a", 257, 30), asks("b", 10, 20, arrival=1), asks("c", 10, 20, arrival=1)),
    )

    episode = compare(driver(), case, Terms())

    assert episode.finding is None
    assert episode.expected["SPY-PAU-6"] > 0  # broken, and known to be


def test_a_reservation_that_stays_is_what_the_released_reading_does() -> None:
    leaving = (asks("a", 1, 192, abort_at=1), asks("b", 1, 2, arrival=2))
    sizes = {"max_model_len": 256, "chunk_size": 128, "num_blocks": 4, "max_batch_tkv_limit": 1024}
    released = Case(released_2_6_3(**sizes), leaving)

    def text(records: list[Json]) -> None:
        for record in records[1:]:
            for side in (record, record.get("before", {})):
                if side:
                    side["blocks"]["reserved"] -= 3

    assert compare(driver(), released, Terms()).finding is None
    given_back = compare(driver(fault=text), released, Terms()).finding
    assert given_back is not None
    assert given_back.cause == "before.blocks.reserved"


def ending(**config: Any) -> Case:
    """The blocks of the first request come back while others are free."""
    return Case(two_requests(prefix_caching=False, **config).config, (asks("a", 5, 2),))


def test_a_difference_that_is_known_of_a_release_excuses_no_other() -> None:
    known = compare(driver(OLDER, fault=freed_to_the_end), ending(), Terms())
    unknown = compare(driver(STRANGER, fault=freed_to_the_end), ending(), Terms())

    assert (known.known, known.finding) == ("SND-4", None)
    assert unknown.known is None
    assert unknown.finding is not None
    assert unknown.finding.cause == "after.pool.free"


def test_a_known_difference_that_does_not_show_where_it_is_due_is_overdue() -> None:
    assert compare(driver(OLDER), ending(), Terms()).overdue == {"SND-4": 1}
