"""Known differences of nano-vLLM's commits from the reference."""

from collections.abc import Callable, Iterator, Set

from checks.harness.difference import Divergence, KnownDifference, first_step, in_step
from spec.core.judging import holders_of, ids
from spec.core.records import PREFILL
from spec.nano_vllm.config import NanoVllmConfig
from spec.nano_vllm.records import Sequence, Step

_FIRST, _SECOND = "nano-vLLM 812eb1c", "nano-vLLM 77dd709"

# --- tokens of a prefill that finds blocks --------------------------------------------------------


def _at_least_a_token(_row: Sequence, missing: int) -> int:
    return max(missing, 1)


def _all_tokens(row: Sequence, _missing: int) -> int:
    return row.prefill_len


def _counted_otherwise(
    config: NanoVllmConfig, step: Step, count: Callable[[Sequence, int], int]
) -> Iterator[tuple[str, int | None]]:
    """The first row that computes other tokens by this count, or is cut, and their number.

    It is None if the row is then not admitted. What follows in the step follows from that.
    """
    begun, room = ids(step.before.in_progress), config.max_num_batched_tokens
    for row in step.batch if step.kind == PREFILL else ():
        due, is_first = step.scheduled[row.id], row is step.batch[0]
        if row.hit_blocks and row.id not in begun:
            missing = row.prefill_len - row.hit_blocks * config.block_size
            tokens = count(row, missing)
            fits = room > 0 and (is_first or tokens <= room)
            is_cut_alike = (tokens > room) == (missing > room)
            if not (fits and is_cut_alike and min(tokens, room) == due):
                yield row.id, min(tokens, room) if fits else None
                return
        room -= due


def _counts(count: Callable[[Sequence, int], int]) -> Callable[[Divergence], bool]:
    """Recognise a step in which the first row that finds blocks is counted in this way."""

    @in_step
    def occurs(divergence: Divergence, expected: Step, found: Step) -> bool:
        for name, tokens in _counted_otherwise(divergence.config, expected, count):
            before = [row.id for row in expected.batch]
            before = before[: before.index(name)]
            are_equal = all(found.scheduled.get(id_) == expected.scheduled[id_] for id_ in before)
            return are_equal and found.scheduled.get(name) == tokens
        return False

    return occurs


def _counted_as_if_new(divergence: Divergence) -> bool:
    """True in such a step, also if a sequence ended that is still in the waiting queue."""
    if divergence.failure is None:
        return _counts(_all_tokens)(divergence)
    expected = divergence.expected[divergence.index]
    is_overcounted = any(_counted_otherwise(divergence.config, expected, _all_tokens))
    return is_overcounted and divergence.failure.cause == "ValueError postprocess"


# --- a preempted sequence comes back --------------------------------------------------------------


def _returned(step: Step) -> Set[str]:
    """The sequences that get a token with the prefill after a preemption."""
    generated = {row.id for row in step.before.waiting if row.generated}
    return generated & step.outputs.keys() if step.kind == PREFILL else frozenset()


_OF_A_TOKEN = ("outputs", "batch.generated", "finished", "ended")


@in_step
def _returns_without_token(divergence: Divergence, expected: Step, found: Step) -> bool:
    """True if exactly the sequences that return get no token; the state after it follows."""
    returned = _returned(expected)
    outputs = {id_: [*some] for id_, some in expected.outputs.items() if id_ not in returned}
    return (
        bool(returned)
        and divergence.differs_only(*_OF_A_TOKEN, "after", "blocks")
        and {id_: [*some] for id_, some in found.outputs.items()} == outputs
    )


# --- blocks before the token gate -----------------------------------------------------------------


@in_step
def _waits_with_blocks(divergence: Divergence, expected: Step, found: Step) -> bool:
    """True if the sequence that the token gate refuses has blocks, and only that is different."""
    is_refused = expected.refusal == "NANO-ADM-1"
    if not (is_refused and divergence.differs_only("after.waiting", "after.pool", "blocks")):
        return False
    (front, *others), pool, was = found.after.waiting, found.after.pool, expected.after.pool
    held = holders_of([front])
    counts = {block: was.references.get(block, 0) + held[block] for block in held}
    return (
        bool(front.blocks)
        and others == [*expected.after.waiting[1:]]
        and [*pool.free] == [block for block in was.free if block not in held]
        and {**was.references, **counts} == {**pool.references}
        and all(pool.keys.get(block) == key for block, key in was.keys.items() if block not in held)
    )


KNOWN_DIFFERENCES = (
    KnownDifference(
        "NAN-1",
        "nano-vllm",
        (_FIRST,),
        "a prompt that finds blocks is scheduled as if it had found none: more tokens than it has",
        "its tokens are counted before its blocks are looked up; 77dd709 counts them afterwards",
        _counted_as_if_new,
        first_step(
            lambda config, _action, step: any(_counted_otherwise(config, step, _all_tokens))
        ),
    ),
    KnownDifference(
        "NAN-2",
        "nano-vllm",
        (_SECOND,),
        "a prompt that is cached as a whole computes its last token again",
        "at least one token is scheduled; later commits do not look up the last block",
        _counts(_at_least_a_token),
        first_step(
            lambda config, _action, step: any(_counted_otherwise(config, step, _at_least_a_token))
        ),
    ),
    KnownDifference(
        "NAN-3",
        "nano-vllm",
        (_FIRST, _SECOND),
        "a preempted sequence gets no token with its next prefill",
        "the prefill passes over every sequence with generated tokens; the decode step after it"
        " computes the newest token again, and stops at an assertion where it fills or begins a"
        " block; f64d821 gives it a token again",
        _returns_without_token,
        first_step(lambda _config, _action, step: bool(_returned(step))),
    ),
    KnownDifference(
        "NAN-4",
        "nano-vllm",
        (_SECOND,),
        "a sequence that the token gate refuses has its blocks already, and waits with them",
        "blocks are handed out before the tokens are compared with the budget",
        _waits_with_blocks,
        lambda _config, _actions, _steps: None,
    ),
)
