"""The fuzzer finds planted faults of the reference: nearly all in 1,000 episodes, most in 100."""

import pytest

from checks.harness.finding import Finding, Kind
from tests.checks.harness.cases import REFERENCE, SPYRE_FAULTS, Hunt, faulty_spyre, hunt, hunt_table

EPISODES = 100  # within which most planted faults are found
ALL_EPISODES = 1_000

# A few of each kind; `tests/checks/faults` has a test for each fault.
FAST = (
    *("arrives in front", "prefills not interleaved", "one slot too many", "exact limit ignored"),
    *("shipped without slack", "promised to two", "cached blocks next", "keys not chained"),
    *("rows not padded", "no jump when a longer joins", "aborted keeps blocks"),
    *("waiting counts for nothing", "parts of chunks skipped", "writes not redirected"),
)

# Every request of a case ends at max_tokens at the latest, so the first does not show here. Pausing
# where it is not meant shows under `documented` alone, in a batch that exceeds the limit. The
# explorer finds both. The others need clients that leave while blocks are set aside for them, and a
# later request that these blocks would decide about: not met in 1,500 random cases. The last four
# change what 2.6.3 does with grammars and images, and random cases have no `reading = "released"`.
NOT_IN_CASES = {
    *("never at max tokens", "pausing, always", "step gives back", "arrival gives back"),
    *("abort keeps twice", "released abort gives back", "released counts what is computed"),
    *("forgotten clients", "front turned round", "in line with others", "newcomers for ever"),
}


def test_without_a_fault_nothing_is_found() -> None:
    assert hunt(REFERENCE, 10).finding is None


@pytest.mark.parametrize("name", FAST)
def test_planted_fault_is_found(name: str) -> None:
    assert hunt(faulty_spyre(name), EPISODES).finding is not None


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted({*SPYRE_FAULTS} - NOT_IN_CASES))
def test_nearly_every_planted_fault_is_found(name: str) -> None:
    assert hunt(faulty_spyre(name), ALL_EPISODES).finding is not None


def test_the_table_tells_what_found_a_fault_and_how_fast() -> None:
    differs = Finding(Kind.DIVERGENCE, 3, "kind", "", followed=(("SPY-VOL-4", "it refuses"),))
    raises = Finding(Kind.CRASH, 0, "KeyError", "")
    hunts = (
        Hunt("limit ignored", 12, 1_234, None, differs),
        Hunt("block lost", 0, 2, None, raises),
        Hunt("no fault", 20, 5_678, None, None),
    )

    assert (
        f"\n{hunt_table(hunts)}"
        == """
fault          found by          rule        episode    steps
limit ignored  divergence: kind  divergence  12         1,234
block lost     crash: KeyError   crash       0          2
no fault       not found                     20 in all  5,678"""
    )
