"""The fuzzer finds every planted fault of the reference, and soon."""

import pytest

from checks.harness.finding import Finding, Kind
from tests.checks.harness.cases import REFERENCE, SPYRE_FAULTS, Hunt, faulty_spyre, hunt, table_of

EPISODES = 100  # within which every planted fault is found

# A few of each kind, the slowest among them.
FAST = (
    "A request that arrives is put before all that wait",
    "The queue is served from its end",
    "Prefill steps follow each other although interleaving is on",
    "The check for a free slot compares with `>` where `>=` is meant",
    "Whether the next chunk is the last is judged as if nothing were cached",
    "Exact admission lets every request join",
    "The formula of exact admission takes the last step's tkv for the peak",
    "The formula of the shipped rule lacks its block of slack on both sides",
    "The documented rule gives the new request a block of slack too",
    "The model-length formula forgets the padding that joining brings",
    "Blocks that are promised already are promised again",
    "Blocks are handed out from the tail of the free list",
    "Evicting forgets the key's block and not the block's key",
    "Cached blocks that are given back are handed out next",
    "All blocks of a prompt are cached under the key of the first",
    "No row is padded",
    "The tkv of a decode step is taken to be that of its longest row",
    "When a longer request joins, the others are not padded to its width",
    "A row samples a token, and the tokens in its cache are not counted up",
    "A jump is reported as something else",
    "A request whose client goes away gives no block back",
    "A request whose client goes away while it is paused stays among the paused",
    "The request that was admitted first is preempted",
    "A preempted request waits behind all others",
    "The longest answer decodes first although the configuration says the shortest",
    "How long a request was paused does not count",
    "A resumed request goes before the batch",
    "Every cached block counts as computed, also in a chunk that is cached in part",
    "A prompt is left-padded by tokens, up to its chunk's end, and not by whole blocks",
    "A prefill step computes two chunks",
    "A chunk that is computed again writes its cached blocks again",
)

# Every request of a case ends where it says, at max_tokens at the latest. The state machine finds
# it, where the environment decides.
NOT_IN_CASES = {"Only the end of sequence ends a request, max_tokens does not"}


def test_without_a_fault_nothing_is_found() -> None:
    assert hunt(REFERENCE, 20).finding is None


@pytest.mark.parametrize("name", FAST)
def test_planted_fault_is_found(name: str) -> None:
    assert hunt(faulty_spyre(name), EPISODES).finding is not None


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted({*SPYRE_FAULTS} - NOT_IN_CASES))
def test_every_planted_fault_is_found(name: str) -> None:
    assert hunt(faulty_spyre(name), EPISODES).finding is not None


def test_the_table_tells_what_found_a_fault_and_how_fast() -> None:
    differs = Finding(Kind.DIVERGENCE, 3, "kind", "", followed=(("SPY-VOL-4", "it refuses"),))
    raises = Finding(Kind.CRASH, 0, "KeyError", "")
    hunts = (
        Hunt("limit ignored", 12, 1_234, None, differs),
        Hunt("block lost", 0, 2, None, raises),
        Hunt("no fault", 20, 5_678, None, None),
    )

    assert (
        f"\n{table_of(hunts)}"
        == """
fault          found by          rule       episode    steps
limit ignored  divergence: kind  SPY-VOL-4  12         1,234
block lost     crash: KeyError   crash      0          2
no fault       not found                    20 in all  5,678"""
    )
