"""The free list beside the tables that matter when a request gives its blocks back."""

from spec.core.judging import FreeList, sharing
from spec.core.records import Event
from spec.nano_vllm.records import Sequence


def row(name: str, *blocks: int) -> Sequence:
    return Sequence(name, prefill_len=8, blocks=blocks)


def test_rows_that_share_what_is_given_back_keep_it_from_being_free() -> None:
    leaver, sharer, other = rows = [row("0", 1, 2), row("1", 1, 3), row("2", 4)]

    shown = sharing(rows, {"0"}, [])

    assert shown == [leaver, sharer]
    assert other not in shown
    assert FreeList.of((), shown).give_back("0") == FreeList.of((), rows).give_back("0") == [2]


def test_a_block_that_is_hit_and_given_back_in_one_step_is_shared_too() -> None:
    newcomer, holder, other = row("0"), row("1", 1), row("2", 4)
    hit = Event("prefix_hit", "0", "", (), (1,))

    assert sharing([newcomer, holder, other], {"0"}, [hit]) == [holder]
    assert sharing([newcomer, holder, other], {"2"}, [hit]) == [other]
