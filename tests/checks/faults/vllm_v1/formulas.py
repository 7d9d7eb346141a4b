"""Faults of the formulas in `spec/`: every module that imports them has them wrong."""

from typing import Any

from checks.remembered import RememberedKeys
from spec.core import arithmetic, blocks, requests
from spec.vllm_v1 import config
from spec.vllm_v1.config import VllmV1Config
from spec.vllm_v1.records import Sequence, State, Step
from tests.checks.faults.patches import Wrong, altered, always, own_tokens_only, plus
from tests.checks.faults.vllm_v1.table import AT_THE_END, FALSE_PREFIX, fault

PREFIX, END = FALSE_PREFIX.name, AT_THE_END.name


def with_argument(place: int, change: Any) -> Wrong:
    """The right function, one of its arguments after a change."""
    return lambda right, *given: right(*given[:place], change(given[place]), *given[place + 1 :])


def none(_given: int) -> int:
    """0 for all arguments."""
    return 0


def without_end(_given: int) -> int:
    """More than any length."""
    return 1_000


# --- tokens of a step -----------------------------------------------------------------------------

TOKENS, DRAFTS, COMPUTED, THRESHOLD, BUDGET, LENGTH = range(6)

for instance, text, wrong in (
    ("speculation", "drafts are never verified", with_argument(DRAFTS, none)),
    ("threshold", "one a step", lambda right, *given: min(right(*given), 1)),
    ("threshold", "half of them", lambda right, *given: (right(*given) + 1) // 2),
    (
        "speculation",
        "the last of the budget is kept",
        with_argument(BUDGET, lambda value: value - 1),
    ),
    ("fcfs", "the last computed once more", with_argument(COMPUTED, lambda value: value - 1)),
    (END, "beyond the model length", with_argument(LENGTH, without_end)),
    (END, "a position less of the model length", with_argument(LENGTH, lambda value: value - 1)),
):
    fault(config, "running_tokens", of="catch_up", on=instance, rules="V1-BUD-3")(
        wrong, f"running tokens, {text}"
    )
fault(config, "running_tokens", of="catch_up", on="threshold", rules="V1-BUD-3, V1-CHK-1")(
    with_argument(THRESHOLD, none), "running tokens, without the threshold"
)
for instance, text, wrong, rules in (
    ("fcfs", "one a step", lambda right, *given: min(right(*given), 1), "V1-BUD-5"),
    ("shared prefix", "cached ones, too", with_argument(1, none), "V1-KV-7"),
    ("threshold", "without the threshold", with_argument(2, none), "V1-BUD-5, V1-CHK-1"),
    (
        "fcfs",
        "the last of the budget is kept",
        with_argument(3, lambda value: max(value - 1, 1)),
        "V1-BUD-5",
    ),
):
    fault(config, "waiting_tokens", of="admit", on=instance, rules=rules)(
        wrong, f"waiting tokens, {text}"
    )
fault(config, "capped_tokens", of="admit", on="threshold", rules="V1-BUD-5, V1-CHK-1")(
    lambda _right, behind, _threshold: behind, "threshold, never"
)
fault(config, "capped_tokens", of="admit", on="threshold", rules="V1-BUD-5, V1-CHK-1")(
    with_argument(1, lambda value: value + bool(value)), "threshold, a token more"
)
fault(config, "capped_tokens", of="admit", on="threshold", rules="V1-BUD-5")(
    with_argument(1, lambda value: value - bool(value)), "threshold, a token less"
)
fault(VllmV1Config, "token_budget", of="admit", on="fcfs", rules="V1-BUD-2")(
    altered(plus(1)), "budget, a token more"
)
fault(VllmV1Config, "token_budget", of="admit", on="fcfs", rules="V1-BUD-2")(
    altered(plus(-1)), "budget, a token less"
)
fault(config, "default_batched_tokens", of="admit", on=PREFIX, rules="V1-BUD-2")(
    lambda _right, max_model_len: max_model_len, "default budget, the model length"
)

# --- drafts ---------------------------------------------------------------------------------------

fault(config, "rolled_back", of="rollback", on="speculation", rules="V1-PRG-1, V1-SPC-2, V1-SPC-3")(
    lambda _right, computed, _drafts, _accepted: computed, "rolled back, nothing"
)
fault(config, "rolled_back", of="rollback", on="speculation", rules="guard V1-PRG-2")(
    with_argument(2, none), "rolled back, accepted drafts, too"
)

# --- blocks ---------------------------------------------------------------------------------------

for text, wrong, rules in (
    ("none", always(0), "V1-KV-4, V1-PRG-3"),
    ("one block", lambda right, *given: min(right(*given), 1), "V1-KV-4"),
    ("the whole prompt", with_argument(0, plus(1)), "guard V1-BUD-1"),
    ("two tokens short", with_argument(0, plus(-1)), "V1-KV-4"),
):
    fault(config, "hit_blocks_at_most", of="admit", on="shared prefix", rules=rules)(
        wrong, f"hits, {text}"
    )
for instance, text, wrong, rules in (
    ("lookahead", "without the lookahead", with_argument(1, none), "V1-KV-13"),
    ("lookahead", "the lookahead twice", with_argument(1, lambda value: 2 * value), "V1-KV-13"),
    ("fcfs", "one too many", with_argument(0, plus(1)), "V1-KV-13"),
    (END, "beyond the model length", with_argument(2, without_end), "V1-KV-13, V1-KV-7"),
    (END, "a position less of the model length", with_argument(2, plus(-1)), "V1-KV-13"),
):
    fault(config, "slots_end", of="allocate_slots", on=instance, rules=rules)(
        wrong, f"slots, {text}"
    )
for text, wrong, rules in (
    ("one too many", altered(plus(1)), "V1-KV-13, V1-KV-7"),
    ("a slot too many", with_argument(0, plus(1)), "V1-KV-13"),
    ("as if none is held", with_argument(1, none), "V1-KV-13, V1-KV-7, V1-PRE-1"),
    (
        "full ones only",
        lambda _right, end, held, size: max(end // size - held, 0),
        "V1-KV-13, V1-KV-7",
    ),
):
    fault(blocks, "missing_blocks", of="allocate_slots", on="fcfs", rules=rules)(
        wrong, f"missing blocks, {text}"
    )
fault(arithmetic, "cdiv", of="allocate_slots", on="fcfs", rules="V1-KV-13, V1-KV-7")(
    lambda _right, dividend, divisor: dividend // divisor, "rounded up, down"
)
fault(VllmV1Config, "pool_blocks", of="new_pool", on="priority", rules="V1-KV-18")(
    altered(plus(-1)), "pool, a block less"
)
fault(VllmV1Config, "pool_blocks", of="new_pool", on="fcfs", rules="V1-KV-1, V1-KV-18")(
    altered(plus(1)), "pool, a block more"
)

# --- contents of blocks ---------------------------------------------------------------------------

fault(requests, "blake2b", of="cache_blocks", on=PREFIX, rules="V1-KV-14")(
    own_tokens_only, "keys of a block's own tokens"
)
fault(RememberedKeys, "of", of="cache_blocks", on="eviction, 0.11.2", rules="V1-KV-14")(
    lambda right, self, id_, blocks: [bytes(1) for _ in right(self, id_, blocks)], "keys, all alike"
)
fault(RememberedKeys, "of", of="cache_blocks", on="shared prefix", rules="V1-KV-4")(
    lambda right, self, id_, blocks: [key + id_.encode() for key in right(self, id_, blocks)],
    "keys of the request's own",
)

# --- records --------------------------------------------------------------------------------------

fault(Sequence, "tokens", on="fcfs", rules="V1-PRG-1")(
    lambda _right, self: self.prompt_len, "tokens, the prompt's"
)
fault(Sequence, "tokens", on="uncut", rules="V1-PRG-1")(
    altered(plus(-1)), "tokens, without the newest"
)
fault(
    State,
    "queued",
    on="async load",
    rules="V1-EXT-8, V1-KV-15, V1-KV-18, V1-KV-2, V1-LIF-2, V1-STA-1, V1-STA-2",
)(lambda _right, self: self.waiting, "queued, without those passed over")
fault(State, "present", on="fcfs", rules="V1-LIF-3")(
    lambda _right, self: self.running, "present, the running"
)
fault(Step, "leavers", on="fcfs", rules="V1-LIF-2, V1-LIF-5, V1-ORD-4, V1-PRG-2")(
    always(frozenset()), "leavers, none"
)
