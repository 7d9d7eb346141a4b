"""Known differences of vLLM V1 releases, and rules that do not hold everywhere."""

from collections.abc import Iterator, Sequence
from functools import partial

from checks.harness.difference import (
    Divergence,
    ExpectedViolation,
    KnownDifference,
    first_step,
    in_step,
)
from checks.harness.system import Action
from spec.core.requests import Oversized
from spec.vllm_v1.config import Connector, Scheduling, VllmV1Config
from spec.vllm_v1.modelled import Feature, is_modelled_beside
from spec.vllm_v1.records import Load, Step
from spec.vllm_v1.records import Sequence as Row

# --- padding that a threshold cuts: rolled back as if it had not, or an assertion ---------------


def _cut_padding(config: VllmV1Config, step: Step) -> Iterator[str]:
    """New requests of one token beside decoding rows only, whose padding is cut (V1-SPC-5)."""
    drafts, behaviour = config.num_speculative_tokens, config.behaviour
    if not 0 < config.threshold_among(len(step.before.present)) < 1 + drafts:
        return
    scheduled = [row for row in step.planned.running if row.id in step.scheduled]
    earlier = [row for row in scheduled if row.id not in step.admitted]
    if any(row.prefilling for row in earlier):
        return
    for row in scheduled:
        is_beside = bool(earlier) or (behaviour.pads_alone and row.computed > 0)
        has_room = behaviour.padding_needs_length or row.tokens + drafts < config.max_model_len
        is_padded = is_beside and has_room and row.tokens - row.computed == 1
        if row.id in step.admitted and is_padded:
            yield row.id


def _padding_asserted(divergence: Divergence) -> bool:
    """True if the release ended with an assertion where padding is cut."""
    failure, expected = divergence.failure, divergence.expected[divergence.index]
    return (
        failure is not None
        and failure.type == "AssertionError"
        and failure.at.endswith("schedule")
        and any(_cut_padding(divergence.config, expected))
    )


@in_step
def _rolls_back_too_much(divergence: Divergence, expected: Step, found: Step) -> bool:
    """True if the release rejects all of the padding, though only a part was scheduled.

    If the newcomer ends in this step, nothing of it is sent: it has less than nothing computed.
    """
    cut = list(_cut_padding(divergence.config, expected))
    drafts = divergence.config.num_speculative_tokens
    own = ("drafts", "accepted", "after.running.computed", "after.running.placeholders")
    unsent = ("after.draining", "after.pool", "statistics", "blocks")
    encoded = ("after.encoder",)  # of which it has not passed what it has
    is_kept = divergence.config.sends and not {*cut}.isdisjoint(expected.finished)
    return (
        bool(cut)
        and divergence.differs_only(*own, *encoded, "after.flights", *(unsent if is_kept else ()))
        and {seen.place for seen in divergence.differing if seen.field in own} <= {*cut}
        and all(found.drafts.get(id_) == drafts for id_ in cut)
    )


# --- requests that are stepped over come back the other way round -------------------------------


@in_step
def _returns_reversed(divergence: Divergence, *steps: Step) -> bool:
    due, found = ([row.id for row in step.planned.waiting] for step in steps)
    count = found.index(due[0]) + 1 if due and due[0] in found else 0
    return (
        _steps_over(divergence.config)
        and divergence.differs_only("planned.waiting", "after.waiting")
        and count > 1
        and found == [*reversed(due[:count]), *due[count:]]
    )


def _steps_over(config: VllmV1Config) -> bool:
    return not config.chunked_prefill and config.scheduling is Scheduling.FCFS


@first_step
def _reversed_due(config: VllmV1Config, _action: object, step: Step) -> bool:
    """True if at least two requests were stepped over: no refusal ended the walk over the queue."""
    return _steps_over(config) and step.refusal is None and len(step.planned.waiting) > 1


# --- a request that has lost a load is taken for decoding ----------------------------------------


def _behind_by_loss(step: Step) -> Iterator[str]:
    """Requests whose last tokens were scheduled in the step, and which then lost a load."""
    rows = {row.id: row for row in step.planned.running}
    for after in step.after.running if step.results_of is None else ():
        row = rows[after.id]
        if row.id in step.failed_loads and row.computed + step.scheduled[row.id] >= row.tokens:
            yield row.id


@in_step
def _decodes_in_spite(divergence: Divergence, expected: Step, found: Step) -> bool:
    """True if the request is marked as computed although it lost a load, and gets drafts.

    In the same step padding may have been cut (VLM-1), its own too: that is not rolled back.
    """
    behind = list(_behind_by_loss(expected))
    rows = {row.id: row for row in found.after.running}
    drafts = divergence.config.num_speculative_tokens
    of_padding = ("drafts", "accepted", "after.running.computed")
    of_loss = ("after.running.drafts", "after.running.prefilling")
    is_marked = divergence.differs_only(*of_loss, *of_padding)
    differing = divergence.differing
    padded = {difference.place for difference in differing if difference.field in of_padding}
    marked = {difference.place for difference in differing if difference.field in of_loss}
    is_cut = padded <= {*_cut_padding(divergence.config, expected)}
    return (bool(behind) and is_marked and is_cut and marked <= {*behind}) and all(
        id_ in rows and not rows[id_].prefilling and rows[id_].drafts == drafts for id_ in behind
    )


# --- a request loses a load with a step in flight ------------------------------------------------


def _awaited_in_vain(step: Step) -> Iterator[str]:
    """Requests that the step in flight whose results came sampled for, and whose load is lost."""
    landed = step.results_of
    if landed is not None:
        yield from (id_ for id_ in landed.samples if id_ in step.failed_loads)


@in_step
def _goes_on_in_spite(divergence: Divergence, expected: Step, _found: Step) -> bool:
    """True if one that read what was not there is still given what steps in flight sample for it.

    Or has computed what these compute; or is marked as computed, since nothing was left of it. In
    the same step padding may have been cut (VLM-1).
    """
    own = tuple(
        f"after.running.{name}" for name in ("computed", "drafts", "placeholders", "prefilling")
    )
    places = {seen.place for seen in divergence.differing if seen.field != "after.flights"}
    return (
        expected.results_of is not None
        and divergence.differs_only(*own, "drafts", "accepted", "after.flights")
        and places <= {*expected.failed_loads, *_cut_padding(divergence.config, expected)}
    )


# --- a request leaves while its load is under way, and is to be sent -----------------------------


def _received_or_sent(action: Action, step: Step) -> set[str]:
    """Requests that have left and of whose two transfers the first, or both at once, have ended."""
    received, sent = {*action.loaded, *action.lost}, {*action.sent}
    half = {
        row.id
        for row in step.before.draining
        if (row.id in sent and row.load is Load.LOADING) or (row.id in received and row.sending)
    }
    return half | (received & sent)


def _freed_at_the_first(divergence: Divergence) -> bool:
    """True if the release gave the blocks back when the first transfer ended, or failed then."""
    index, failure = divergence.index, divergence.failure
    expected = divergence.expected[index]
    ended = _received_or_sent(divergence.actions[index], expected)
    if failure is not None:
        is_asserted = failure.type == "AssertionError"
        return is_asserted and failure.at.endswith("_update_from_kv_xfer_finished") and bool(ended)
    was = {row.id for row in expected.before.draining}
    drains = {row.id for row in divergence.found[index].before.draining}
    return drains < was and was - drains <= ended


# --- later turns of sessions ----------------------------------------------------------------------


def _later_turns(divergence: Divergence) -> dict[str, int]:
    """The turns that followed others of their sessions so far, with the tokens kept for each."""
    kept: dict[str, int] = {}
    for step in divergence.expected[: divergence.index]:
        known = {row.id for row in step.planned.present}
        kept |= {row.id: row.computed for row in step.after.queued if row.id not in known}
    return kept


def _fills_what_was_hashed(divergence: Divergence, expected: Step) -> bool:
    """True if a turn has begun whose first token is in the block that the one left out had filled.

    From then on its blocks are known by the wrong token, before it fills them, too: so is a block
    of another request that does hold that token.
    """
    size, rows = divergence.config.block_size, {row.id: row for row in expected.planned.present}
    kept = {id_: count for id_, count in _later_turns(divergence).items() if id_ in rows}
    begun = (id_ for id_, count in kept.items() if rows[id_].tokens > count)
    return any((kept[id_] + 1) % size == 0 for id_ in begun)


@in_step
def _hashed_with_the_last_token(divergence: Divergence, expected: Step, _found: Step) -> bool:
    """True if only the contents of blocks differ where a turn fills such a block."""
    fills = _fills_what_was_hashed(divergence, expected)
    return fills and divergence.differs_only("planned.pool", "after.pool")


@in_step
def _ends_as_the_first(divergence: Divergence, expected: Step, found: Step) -> bool:
    """True if the release ends a later turn too late or too soon, and no other request.

    In the same step the turn may fill a block that was hashed before (VLM-7).
    """
    wrong = {*expected.finished} ^ {*found.finished}
    fills = _fills_what_was_hashed(divergence, expected)
    own = ("finished", "statistics", "blocks", "outputs", "ended", "events", "after")
    are_turns = wrong != set() and wrong <= {*_later_turns(divergence)}
    return are_turns and divergence.differs_only(*own, *(["planned.pool"] if fills else []))


def _need_not_show(*_: object) -> None:
    """The difference is due in no step: whether it shows depends on tokens, not on steps."""


KNOWN_DIFFERENCES = (
    KnownDifference(
        "VLM-1",
        "vllm-v1",
        ("vLLM 0.28.0",),
        "where a threshold cuts the padding of a newcomer, all of it is rolled back: fewer tokens"
        " than none may count as computed",
        "the drafts that it was padded with are all rejected, also those that were not scheduled",
        _rolls_back_too_much,
        first_step(lambda config, _action, step: any(_cut_padding(config, step))),
    ),
    KnownDifference(
        "VLM-2",
        "vllm-v1",
        ("vLLM 0.11.2",),
        "without chunked prefill, requests that are stepped over come back in reverse order",
        "each is put in front of those before it, and then all in front of the queue as they are",
        _returns_reversed,
        _reversed_due,
    ),
    KnownDifference(
        "VLM-3",
        "vllm-v1",
        ("vLLM 0.28.0", "vLLM 0.33.0"),
        "a request that loses external keys and values within a step is given drafts like one that"
        " decodes",
        "its prompt is marked as computed before the connector reports what is missing",
        _decodes_in_spite,
        first_step(lambda _config, _action, step: any(_behind_by_loss(step))),
    ),
    KnownDifference(
        "VLM-6",
        "vllm-v1",
        ("vLLM 0.28.0", "vLLM 0.33.0"),
        "with a step in flight, a request that loses external keys and values is still given a"
        " token that was computed from them, and awaits one that never comes",
        "what is awaited is not taken back, and of the tokens in flight only those are discarded"
        " whose step brought the load",
        _goes_on_in_spite,
        first_step(lambda _config, _action, step: any(_awaited_in_vain(step))),
    ),
    KnownDifference(
        "VLM-4",
        "vllm-v1",
        ("vLLM 0.33.0",),
        "where a threshold cuts the padding of a newcomer, an assertion ends the engine",
        "the scheduler asserts that what it padded has all of its drafts",
        _padding_asserted,
        first_step(lambda config, _action, step: any(_cut_padding(config, step))),
    ),
    KnownDifference(
        "VLM-5",
        "vllm-v1",
        ("vLLM 0.28.0", "vLLM 0.33.0"),
        "a request that is aborted while it loads, and is then sent, gives its blocks back when the"
        " first of the two ends, and the report of the second ends the engine",
        "the scheduler does not count how many transfers of a request that has left are under way",
        _freed_at_the_first,
        first_step(lambda _config, action, step: bool(_received_or_sent(action, step))),
    ),
    KnownDifference(
        "VLM-7",
        "vllm-v1",
        ("vLLM 0.28.0",),
        "a turn of a session fills a block that is found by the last token of the turn before, a"
        " token that it does not hold",
        "the token is taken back when the next turn comes, the hash of the block that it filled is"
        " not",
        _hashed_with_the_last_token,
        _need_not_show,
    ),
    KnownDifference(
        "VLM-8",
        "vllm-v1",
        ("vLLM 0.28.0",),
        "a later turn of a session ends after as many tokens as the first turn may have",
        "its own max_tokens is not taken over",
        _ends_as_the_first,
        _need_not_show,
    ),
)

# --- rules that need not hold everywhere --------------------------------------------------------

# A block that was not written for its reader is empty, or has what was there before.
_READS_OF_ANOTHER = ("device: read unwritten", "device: read content", "device: read position")


def _stands_before_holders(queue: Sequence[Row]) -> bool:
    """True if a request without blocks stands before one with blocks."""
    holds = [bool(row.blocks) for row in queue]
    return any(has and not all(holds[:place]) for place, has in enumerate(holds))


EXPECTED_VIOLATIONS = (
    ExpectedViolation(
        ("V1-PRG-3",),
        "next to decodes, a request whose padding with drafts would end beyond the model length"
        " waits",
        lambda config: (
            config.num_speculative_tokens > 0
            and config.behaviour.pads
            and config.behaviour.padding_needs_length
        ),
    ),
    ExpectedViolation(
        ("V1-BUD-4",),
        "by priority, a request that preempts itself ends the step for those behind it",
        lambda config: (
            config.scheduling is Scheduling.PRIORITY and config.behaviour.own_preemption_ends_turns
        ),
    ),
    ExpectedViolation(
        ("V1-KV-10", "V1-KV-12", "V1-KV-19", *_READS_OF_ANOTHER),
        "blocks whose load is lost within the step have been hashed when it was planned",
        lambda config: config.connector is Connector.SYNC and config.prefix_caching,
    ),
    ExpectedViolation(
        ("V1-KV-12", "V1-KV-19", *_READS_OF_ANOTHER),
        "by priority, a victim's chunk of this very step has been hashed when it was planned",
        lambda config: config.scheduling is Scheduling.PRIORITY and config.prefix_caching,
    ),
    ExpectedViolation(
        ("V1-PRG-4", "endless"),
        "what is cached but for one token is padded beyond the whole budget, with none beside it",
        lambda config: (
            config.behaviour.pads_alone and config.num_speculative_tokens >= config.token_budget
        ),
    ),
    ExpectedViolation(
        ("V1-PRG-4", "endless"),
        "a load whose blocks and those of its next step with drafts exceed the pool never begins",
        lambda config: config.connector is Connector.ASYNC and config.reserved_draft_slots > 0,
    ),
    ExpectedViolation(
        ("V1-PRG-4", "endless"),
        "a request that waits in front, by priority or for lookahead, wants the blocks of one that"
        " has loaded and waits, too",
        lambda config: (
            config.connector is Connector.ASYNC
            and (config.scheduling is Scheduling.PRIORITY or config.num_lookahead_tokens > 0)
        ),
    ),
    ExpectedViolation(
        ("V1-PRG-4", "endless"),
        "a request that was held back, for its grammar or the connector's answer, waits in front,"
        " and wants the blocks of one that has loaded and waits, too",
        lambda config: config.connector is Connector.ASYNC and not config.behaviour.holders_first,
        lambda step: _stands_before_holders(step.planned.skipped),
    ),
    ExpectedViolation(
        ("V1-PRG-5", "endless"),
        "all requests are preempted in vain, since their blocks would be free only later, before"
        " any has a token: it is in its prompt still, or its late token is discarded to be sent",
        lambda config: config.frees_late and not config.behaviour.spares_in_flight,
    ),
    ExpectedViolation(
        ("V1-PRG-4", "endless"),
        "a prompt as long as the model, of a model that pools, is cut, and its last token is never"
        " computed",
        lambda config: config.pooling and not config.behaviour.pools_last_position,
    ),
    ExpectedViolation(
        ("V1-ENC-5",),
        "an image or audio that stands in a prompt twice may go once its first tokens are computed",
        lambda config: not config.behaviour.keeps_repeated,
    ),
    ExpectedViolation(
        ("V1-ENC-2",),
        "by priority, what this very step was to encode for a victim counts as encoded",
        lambda config: config.scheduling is Scheduling.PRIORITY,
    ),
    ExpectedViolation(
        ("V1-ENC-9",),
        "an image or audio that is not to be split is, if a step begins at it or it is cached",
        lambda config: not config.behaviour.keeps_whole,
    ),
    ExpectedViolation(
        ("V1-PRG-4", "endless"),
        "an image or audio that is not to be split, longer than the threshold, is never computed",
        lambda config: (
            (config.behaviour.keeps_whole or config.drafter_reads_ahead)
            and config.disable_chunked_mm_input
            and config.long_prefill_token_threshold > 0
        ),
    ),
    ExpectedViolation(
        ("V1-GRP-2",),
        "beside a step in flight, states before a gap in a table are kept as long as the request",
        lambda config: config.leaves_states,
    ),
    ExpectedViolation(
        ("V1-PRG-4", "endless"),
        "an image or audio that is not to be split, and at which a chunk stops that ends with a"
        " state, is never computed",
        lambda config: (
            config.behaviour.keeps_whole and config.disable_chunked_mm_input and config.has_states
        ),
    ),
    ExpectedViolation(
        ("V1-GRP-1",),
        "where all tokens were loaded, the last one is computed again, and may read a block of a"
        " window that the token behind it does not: it is not loaded",
        lambda config: (
            config.connector is Connector.ASYNC
            and any(group.reach is not None and not group.is_mamba for group in config.groups)
        ),
        lambda step: any(
            row.id in step.admitted and row.computed == row.tokens - 1
            for row in step.planned.running
        ),
    ),
    ExpectedViolation(
        ("V1-ENC-6", "V1-ENC-10", "V1-PRG-3", "V1-PRG-4", "endless"),
        "a drafter reads a token ahead, and two images or audio without two tokens between them do"
        " not have room together",
        lambda config: config.drafter_reads_ahead and config.behaviour.encodes_for_drafter,
    ),
    ExpectedViolation(
        ("V1-LIF-7", "V1-PRG-4", "endless"),
        "a request that the pool can never hold waits for ever, and all behind it",
        lambda config: config.oversized is Oversized.QUEUED,
    ),
    ExpectedViolation(
        ("V1-KV-7", "device: table length"),
        "a later turn of a session that exceeds the model length has tokens without a slot",
        lambda config: (
            config.oversized is Oversized.QUEUED and is_modelled_beside(Feature.SESSIONS, config)
        ),
    ),
    ExpectedViolation(
        ("V1-PRG-4",),
        "sessions hold the blocks that others, or each other, want for their next turns",
        partial(is_modelled_beside, Feature.SESSIONS),
        lambda step: any(row.blocks for row in step.planned.queued),
    ),
)
