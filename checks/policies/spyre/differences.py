"""Known differences of sendnn-inference releases, and rules that do not hold everywhere.

A difference is recognised by the events of the step, never by the text of a report. `due` says
where it must occur, so that a difference that no longer occurs is noticed. An episode ends at a
known difference: the steps after it follow from it and are not compared.
"""

from collections.abc import Mapping, Sequence

from checks.harness.difference import (
    Divergence,
    ExpectedViolation,
    KnownDifference,
    first_step,
    in_step,
)
from checks.harness.system import Action
from spec.core.records import DECODE
from spec.core.requests import Oversized
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Step
from spec.spyre.state import State


def _asserts(divergence: Divergence, function: str) -> bool:
    """True if an assertion in this function of the release ended the server."""
    failure = divergence.failure
    return failure is not None and failure.type == "AssertionError" and function in failure.at


# --- an assertion where the model length is no multiple of the block ----------------------------


def _length_asserted(divergence: Divergence) -> bool:
    is_odd = divergence.config.max_model_len % divergence.config.block_size > 0
    return is_odd and _asserts(divergence, "_can_decode_all_requests")


@first_step
def _length_due(config: SpyreConfig, _action: object, step: Step) -> bool:
    return step.kind == DECODE and step.tkv > config.max_model_len


# --- an assertion where a prompt is longer than the limit ---------------------------------------


def _prompt_asserted(divergence: Divergence) -> bool:
    due = divergence.expected[divergence.index]
    return _prefills_over_limit(divergence.config, due) and _asserts(divergence, "execute_model")


@first_step
def _prompt_due(config: SpyreConfig, _action: object, step: Step) -> bool:
    return _prefills_over_limit(config, step)


def _prefills_over_limit(config: SpyreConfig, step: Step) -> bool:
    return step.chunk is not None and step.volume > config.max_batch_tkv_limit


# --- freed blocks at the end of the free list where nothing is cached ---------------------------


@in_step
def _frees_at_the_end(divergence: Divergence, due: Step, step: Step) -> bool:
    """Without caching, freed blocks are last in the free list instead of first."""
    if divergence.config.prefix_caching:
        return False
    if not divergence.differs_only("before.pool.free", "after.pool.free"):
        return False
    index = divergence.index
    if due.before.pool.free != step.before.pool.free:  # an abort before the step
        left = divergence.expected[index - 1].after if index else due.before
        tables = {row.id: row.blocks for row in left.admitted}
        return _moved_behind(due.before, step.before, _given_back(tables, due.aborted))
    leavers = (*divergence.actions[index].abort_running, *due.finished)
    given_back = _given_back(_tables(due, divergence.config.block_size), leavers)
    return _moved_behind(due.after, step.after, given_back)


def _tables(step: Step, block_size: int) -> Mapping[str, tuple[int, ...]]:
    """The block tables of all requests admitted in the step, also of those that then leave."""
    tables = {row.id: row.blocks for row in (*step.before.admitted, *step.batch)}
    if step.chunk is None:
        return tables
    own = step.chunk.block_table[step.chunk.left_padding // block_size :]
    return {**tables, step.chunk.id: own}


def _given_back(tables: Mapping[str, tuple[int, ...]], leavers: Sequence[str]) -> list[int]:
    """The blocks of requests that leave, in the order in which they are freed."""
    return [block for id_ in leavers for block in reversed(tables.get(id_, ()))]


def _moved_behind(expected: State, found: State, given_back: list[int]) -> bool:
    """True if the freed blocks follow all others, which are in the reference's order."""
    others = [block for block in expected.pool.free if block not in given_back]
    return bool(given_back) and list(found.pool.free) == [*others, *given_back]


def _end_due(config: SpyreConfig, _actions: Sequence[Action], steps: Sequence[Step]) -> int | None:
    """The index of the first step that frees blocks while others are free; else None."""
    if config.prefix_caching:
        return None
    free = steps[0].before.pool.free if steps else ()
    for step in steps:
        for now in (step.before.pool.free, step.after.pool.free):
            freed, kept = set(now) - set(free), set(now) & set(free)
            if freed and kept:
                return step.index
            free = now
    return None


_SINCE_PAUSING = tuple(
    f"sendnn-inference {version} "
    for version in ("2.4.0", "2.5.0", "2.6.0", "2.6.1", "2.6.2", "2.6.3")
)

KNOWN_DIFFERENCES = (
    KnownDifference(
        "SND-3",
        "sendnn",
        _SINCE_PAUSING,
        "an assertion ends the server where tkv would exceed a model length that is no multiple"
        " of the block",
        "left padding takes the tkv to a block boundary behind the model length",
        _length_asserted,
        _length_due,
    ),
    KnownDifference(
        "SND-4",
        "sendnn",
        ("sendnn-inference 2.6.0 on vLLM 0.27.1", "sendnn-inference 2.6.1 on vLLM 0.27.1"),
        "without prefix caching freed blocks go to the end of the free list",
        "vLLM 0.27.1 looks whether caching is on before it puts blocks without content in front;"
        " 0.25.1 and 0.28.0 put them in front in any case",
        _frees_at_the_end,
        _end_due,
    ),
    KnownDifference(
        "SND-5",
        "sendnn",
        _SINCE_PAUSING,
        "an assertion ends the server where a prompt is longer than the limit",
        "neither the front end nor the scheduler compares a prompt with"
        " VLLM_DT_MAX_BATCH_TKV_LIMIT; the model runner does, before it computes",
        _prompt_asserted,
        _prompt_due,
    ),
)

# --- rules that need not hold everywhere --------------------------------------------------------


def _is_set_aside(step: Step) -> bool:
    """True if blocks are set aside for aborted requests."""
    return step.before.orphaned > 0


def _computes_behind_a_hit(step: Step) -> bool:
    """True for a chunk of a prompt with a prefix hit."""
    return step.chunk is not None and step.chunk.cached_tokens + step.chunk.inner_padding > 0


_SET_ASIDE = (
    "2.6.3 keeps set aside what was reserved for requests whose clients left: others wait, in the"
    " end for ever"
)
EXPECTED_VIOLATIONS = (
    ExpectedViolation(
        ("SPY-VOL-1",),
        "the text's volume rule admits batches that later exceed the limit",
        lambda config: not config.variant.keeps_limit and not config.may_pause,
    ),
    ExpectedViolation(
        ("SPY-PRI-4", "SPY-PAU-5", "LIF-6", "endless"),
        "a request that limit or pool can never serve waits for ever, and others with it",
        lambda config: config.oversized is Oversized.QUEUED,
    ),
    ExpectedViolation(
        ("SPY-VOL-1",),
        "a prompt is longer than the limit, and its chunks exceed it",
        lambda config: config.oversized is Oversized.QUEUED,
        shows=lambda step: step.chunk is not None,
    ),
    ExpectedViolation(
        ("SPY-ADM-3",),
        "all that were admitted reach the limit alone and are paused, so that their slots are free",
        lambda config: config.may_pause and config.oversized is Oversized.QUEUED,
        shows=lambda step: not step.before.decoding,
    ),
    ExpectedViolation(
        ("SPY-PAU-6",),
        "a request that reaches the limit alone is paused",
        lambda config: config.variant.pauses and config.oversized is Oversized.QUEUED,
    ),
    ExpectedViolation(
        ("SPY-LEN-1",),
        "left padding is taken back at block boundaries, the last lies beyond the model length",
        lambda config: config.max_model_len % config.block_size > 0,
    ),
    ExpectedViolation(
        ("SPY-PAU-6",),
        "without interleaving, 2.6.3 takes the tkv of a prefill step for that of the batch",
        lambda config: config.variant.pauses and config.is_judged_first,
    ),
    ExpectedViolation(
        ("LIF-5", "endless"),
        _SET_ASIDE,
        lambda config: config.account.keeps_promises and config.reservation,
    ),
    ExpectedViolation(
        ("SPY-RES-4", "SPY-PRI-4"),
        _SET_ASIDE,
        lambda config: config.account.keeps_promises and config.reservation,
        shows=_is_set_aside,
    ),
    ExpectedViolation(
        ("SPY-PRI-4",),
        "the request that would be next keeps all others from their prefill until its grammar is"
        " ready",
        lambda config: config.account.holds_for_grammars,
        shows=lambda step: bool(step.before.compiling),
    ),
    ExpectedViolation(
        ("SPY-ENC-1",),
        "a request that lacks blocks keeps others from their prefill though its images are not"
        " encoded",
        lambda config: config.account.stops_at_images and config.reservation,
        shows=lambda step: not step.happened("admit"),
    ),
    ExpectedViolation(
        ("SPY-ENC-4",),
        "no output says that a request has ended whose images cannot be encoded",
        lambda config: not config.account.tells_failures,
    ),
    ExpectedViolation(
        ("SPY-PRI-6",),
        "blocks that 2.6.3 keeps set aside for requests whose clients left keep others from"
        " overtaking",
        lambda config: config.account.keeps_promises and config.reservation,
        shows=_is_set_aside,
    ),
    ExpectedViolation(
        ("SPY-CHK-3", "SPY-CHK-5"),
        "2.6.3 counts cached blocks as computed though their chunk is computed again",
        lambda config: config.account.counts_hits and config.prefix_caching,
        shows=_computes_behind_a_hit,
    ),
    ExpectedViolation(
        ("device: read unwritten", "device: read content", "device: read position"),
        "2.6.3 finds blocks that were counted as computed and never written: they are empty, or"
        " hold what was written there before",
        lambda config: config.account.counts_hits and config.prefix_caching,
        shows=_computes_behind_a_hit,
    ),
    ExpectedViolation(
        ("device: no such block",),
        "2.6.3 rounds the blocks of the model's cache down to a multiple of the batch size, and not"
        " those that the scheduler hands out",
        lambda config: (
            config.num_blocks is not None and (config.num_blocks + 1) % config.max_num_seqs > 0
        ),
    ),
)
