"""The fuzzer finds every planted fault of the reference, and soon."""

import pytest

from checks.fuzz.planted import Hunt, hunt, table_of
from checks.fuzz.subjects import REFERENCE
from tests.checks.faults import FAULTS
from tests.checks.fuzz.faulty import faulty

EPISODES = 100  # within which every planted fault is found

# A few of each kind, the slowest among them.
FAST = (
    "arrives in front",
    "last come first served",
    "prefills not interleaved",
    "one slot too many",
    "judged without the hit",
    "exact limit ignored",
    "exact looks at the end",
    "shipped without slack",
    "documented with slack for all",
    "model length without padding",
    "promised to two",
    "handed out from the tail",
    "content kept block forgotten",
    "cached blocks next",
    "keys not chained",
    "rows not padded",
    "tkv of the longest",
    "no jump when a longer joins",
    "computed not advanced",
    "jumps not told",
    "never at max tokens",
    "aborted keeps blocks",
    "aborted stays paused",
    "first admitted preempted",
    "preempted goes to the back",
    "longest answer first",
    "waiting counts for nothing",
    "resumed in front",
    "parts of chunks skipped",
    "left padding by tokens",
    "two chunks at once",
    "writes not redirected",
)


def test_without_a_fault_nothing_is_found() -> None:
    assert hunt(REFERENCE, 20).finding is None


@pytest.mark.parametrize("name", FAST)
def test_planted_fault_is_found(name: str) -> None:
    assert hunt(faulty(name), EPISODES).finding is not None


@pytest.mark.thorough
@pytest.mark.parametrize("name", [fault.name for fault in FAULTS])
def test_every_planted_fault_is_found(name: str) -> None:
    assert hunt(faulty(name), EPISODES).finding is not None


def test_the_table_tells_what_found_a_fault_and_how_fast() -> None:
    names = ("arrives in front", "a block missing", "rows not padded")
    hunts = [hunt(faulty(name), EPISODES) for name in names]

    assert table_of([*hunts, Hunt("no fault", 20, 1_234, None)]) == TABLE


TABLE = """\
fault             found by                        rule        episode    steps
arrives in front  divergence: before.waiting      divergence  0          2
a block missing   crash: GuardError               crash       0          6
rows not padded   divergence: batch.left_padding  SPY-DEC-2   0          6
no fault          not found                                   20 in all  1,234"""
