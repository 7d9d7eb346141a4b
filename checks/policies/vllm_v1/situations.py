"""Situations of vLLM V1: the classes of each transition, and settings that reach rare ones."""

from typing import Any

from checks.harness.situations import (
    ABORT,
    AHEAD,
    BEFORE,
    EVICTED,
    FREE,
    GENERATED,
    HOLDERS,
    LEFT,
    PLACE,
    REFUSED,
    REQUEST,
    STEP,
    TOKENS,
    WAITING,
    Advice,
    Class,
    Moment,
    Table,
    count,
    count_of_row,
    phase,
)
from reference.core.block_pool import lookup
from spec.core.blocks import BlockPool
from spec.vllm_v1.config import Scheduling, hit_blocks_at_most
from spec.vllm_v1.records import State


def phase_of(state: State, request_id: str) -> str:
    """The phase of a request; running requests are prefilling or decoding."""
    row = next((row for row in state.present if row.id == request_id), None)
    if row is None or row in state.queued:
        return "waiting" if row else "gone already"
    return "prefilling" if row.prefilling else "decoding"


def _drafts(moment: Moment, row: Any) -> int:
    """Drafts among the tokens that a request got in the step."""
    given = [
        event.before + event.after - row.tokens
        for event in (*moment.earlier, moment.event)
        if event.id == row.id and event.transition == "catch_up"
    ]
    return given[0] if given else 0


def _hit_blocks(moment: Moment, pool: BlockPool, row: Any) -> int:
    most = int(hit_blocks_at_most(row.tokens, moment.ctx.config.block_size))
    return len(lookup(pool, moment.ctx.keys.of(row.id, most)))


def _hit(moment: Moment) -> str | None:
    """What the step makes of the hit of a request that it refuses."""
    row, step = moment.row, moment.step
    if row is None or row.computed or not moment.ctx.config.prefix_caching:
        return None
    before, after = (_hit_blocks(moment, state.pool, row) for state in (step.before, step.planned))
    if after == before:
        return "the same" if after else "none"
    return "longer" if after > before else "shorter"


def _passed_over(moment: Moment) -> int:
    """Requests that were looked at and stay in the queue, no rule having ended the walk."""
    return 0 if moment.step.refusal else len(moment.step.planned.waiting)


_HITS = ("none", "the same", "longer", "shorter")
DRAFTS = count_of_row("drafts in the step", _drafts)
HIT = Class("hit", _HITS, _hit)
NEW_HIT = count("blocks of its hit", lambda moment: len(moment.event.after))
GIVEN_BACK = count("blocks given back", lambda moment: len(moment.event.after))
BUDGET = count("tokens of the budget left", lambda moment: moment.step.budget_left)
VICTIMS = count("victims", lambda moment: len(moment.step.preempted))
PASSED = count("requests passed over", _passed_over)
REJECTED = count("rejected drafts", lambda moment: moment.event.before - moment.event.after)
ACCEPTED = count("accepted drafts", lambda moment: moment.event.after)
PHASE = phase(phase_of, "waiting", "prefilling", "decoding")
RULE = Class(
    "rule",
    (
        *("V1-BUD-1", "V1-SEQ-1", "V1-KV-1", "V1-PRE-4", "V1-CHK-2", "V1-SPC-5"),
        *("V1-SES-3", "V1-ENC-8", "V1-GRP-14", "V1-GRP-15"),
    ),
    lambda moment: moment.event.rule,
)
SCHEDULING = Class("scheduling", (*Scheduling,), lambda moment: moment.ctx.config.scheduling)

TABLE: Table = {
    STEP: (VICTIMS, PASSED, BUDGET, WAITING, FREE),
    REFUSED: (RULE, HIT, FREE, GENERATED),
    "preempt": (TOKENS, DRAFTS, *REQUEST, PHASE, BEFORE),
    "catch_up": (TOKENS, DRAFTS, *REQUEST, BUDGET),
    "admit": (TOKENS, AHEAD, GENERATED, BEFORE, BUDGET, FREE),
    "prefix_hit": (NEW_HIT, AHEAD, GENERATED, FREE),
    "allocate": (EVICTED, FREE, HOLDERS, VICTIMS),
    "hit_in_group": (NEW_HIT, AHEAD, GENERATED, FREE),
    "give_back": (GIVEN_BACK, PLACE, FREE),
    "rollback": (ACCEPTED, REJECTED, PLACE, LEFT),
    "load": (AHEAD, FREE, WAITING, BEFORE),
    "promote": (HOLDERS, PLACE, FREE, BEFORE),
    "undo": (HOLDERS, PLACE, BEFORE),
    "finish": (TOKENS, *REQUEST, BEFORE),
    ABORT: (PHASE, *REQUEST, AHEAD),
}

ADVICE = (
    Advice(
        "preempt, tokens in the step 2+",
        "no victim had 2 tokens or more in its step",
        {"scheduling": "priority", "long_prefill_token_threshold": 2},
    ),
    Advice(
        "preempt, drafts in the step 1",
        "no victim had drafts in its step",
        {"scheduling": "priority", "num_speculative_tokens": 1},
    ),
    Advice(
        "preempt, tokens in the step 2+, holders of a block 2+",
        "no victim of 2 tokens or more in its step shared a block",
        {"scheduling": "priority", "block_size": 2, "long_prefill_token_threshold": 2},
    ),
    Advice(
        "step, requests passed over 2+",
        "no step passed over two prompts",
        {"release": "0.11.2", "chunked_prefill": False},
    ),
    Advice(
        "refused, rule V1-KV-1, hit shorter",
        "no hit of a refused request was evicted",
        {"block_size": 1, "reserve_full_prompt": True},
    ),
)
