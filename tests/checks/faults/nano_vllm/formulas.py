"""Faults of the formulas in `spec/`: every module that imports them has them wrong."""

from checks.remembered import RememberedKeys
from reference.nano_vllm import block_manager
from spec.core import blocks
from spec.nano_vllm import block_hashes, formulas
from spec.nano_vllm.config import NanoVllmConfig
from tests.checks.faults.nano_vllm.table import ALIKE, BUDGET, DRY, SHARED, fault
from tests.checks.faults.patches import Wrong, altered, always, plus

wrong: Wrong

# --- blocks of a sequence -------------------------------------------------------------------------

for on, text, wrong, rules in (
    (
        BUDGET,
        "at the boundary",
        lambda _right, length, size, *_: length % size == 0,
        "NANO-DEC-3, guard NANO-SLT-1",
    ),
    (BUDGET, "never", always(False), "guard NANO-SLT-1"),
    (BUDGET, "always", always(True), "NANO-DEC-3"),
):
    fault(formulas, "starts_block", of="append", on=on, rules=rules)(
        wrong, f"starts a block, {text}"
    )
for text, wrong in (
    ("never", always(False)),
    ("a token early", lambda right, length, size: right(length + 1, size)),
):
    fault(formulas, "fills_block", of="append", on=DRY, rules="NANO-PFX-1, NANO-PFX-11")(
        wrong, f"fills a block, {text}"
    )
for on, text, wrong, rules in (
    (SHARED, "none", always(0), "NANO-ADM-5, NANO-PFX-5"),
    (SHARED, "one block", lambda right, *given: min(right(*given), 1), "NANO-PFX-5"),
    (SHARED, "a token short", lambda right, length, *more: right(length - 1, *more), "NANO-PFX-5"),
    (
        SHARED,
        "the last one, too",
        lambda _right, length, size, _: length // size,
        "NANO-PFX-5, NANO-PFX-8",
    ),
):
    fault(formulas, "lookup_blocks", of="cached_blocks", on=on, rules=rules)(
        wrong, f"looked up, {text}"
    )
for text, wrong, rules in (
    ("one too many", altered(plus(1)), "NANO-BLK-4"),
    ("full ones only", lambda _right, length, size: length // size, "NANO-BLK-4, NANO-SLT-1"),
):
    fault(blocks, "block_count", of="take", on=BUDGET, rules=rules)(wrong, f"blocks, {text}")
fault(NanoVllmConfig, "pool_blocks", of="new_pool", on=BUDGET, rules="NANO-BLK-3")(
    altered(plus(-1)), "pool, a block less"
)
fault(NanoVllmConfig, "pool_blocks", of="new_pool", on=BUDGET, rules="NANO-BLK-1, NANO-BLK-3")(
    altered(plus(1)), "pool, a block more"
)

# --- the gates ------------------------------------------------------------------------------------

for on, text, wrong, rules in (
    ("shared prefix", "uncached ones only", lambda _right, n, cached, _: n - cached, "NANO-ADM-1"),
    (SHARED, "cached ones, too", lambda _right, length, *_: length, "NANO-ADM-5"),
    (BUDGET, "one more", altered(plus(1)), "NANO-ADM-5"),
    (BUDGET, "nothing", always(0), "NANO-ADM-1"),
):
    fault(formulas, "counted_tokens", of="schedule", on=on, rules=rules)(wrong, f"counted, {text}")
for text, wrong, rules in (
    ("its last token is kept", lambda _right, used, own, most: used + own < most, "NANO-ADM-5"),
    ("others do not count", lambda _right, _used, own, most: own <= most, "NANO-ADM-1"),
):
    fault(formulas, "within_budget", of="schedule", on=BUDGET, rules=rules)(
        wrong, f"budget, {text}"
    )
fault(block_manager, "passes_memory_gate", of="can_allocate", on=DRY, rules="NANO-ADM-5")(
    lambda right, free, *given: right(free - 1, *given), "memory gate, a block is kept free"
)
fault(block_manager, "has_block_for", of="can_append", on=DRY, rules="NANO-PRE-1")(
    lambda _right, free, *_given: free >= 1, "appending, always for a block"
)

# --- what the runner is handed --------------------------------------------------------------------

for text, wrong in (
    (
        "a smaller stride",
        lambda _right, block, position, size: block * (size - 1) + position % size,
    ),
    ("a larger stride", lambda _right, block, position, size: block * (size + 1) + position % size),
    ("the next one", lambda right, block, position, size: right(block, position + 1, size)),
):
    fault(blocks, "slot", of="graph", on=BUDGET, rules="NANO-SLT-1")(wrong, f"slot, {text}")
fault(blocks, "block_index", of="graph", on=BUDGET, rules="NANO-SLT-1")(
    lambda right, position, size: right(position, size + 1), "block of a position, a wrong stride"
)
fault(formulas, "graph_batch_size", of="graph", on=SHARED, rules="NANO-DEC-4")(
    lambda _right, batch, *_given: batch, "captured size, the batch"
)
fault(formulas, "graph_batch_size", of="graph", on=SHARED, rules="NANO-DEC-4")(
    lambda _right, _batch, *given: formulas.captured_sizes(*given)[-1], "captured size, the largest"
)

# --- contents of blocks ---------------------------------------------------------------------------

for text, wrong in (("the hash", lambda _right, key: key), ("nothing", always(b""))):
    fault(block_hashes, "content", of="is_hit", on=ALIKE.name, rules="NANO-PFX-10")(
        wrong, f"content, {text}"
    )
fault(block_hashes, "_digest", of="is_hit", on=ALIKE.name, rules="NANO-PFX-10")(
    lambda right, tokens: right(tokens[:8]), "content, of the first token"
)
fault(RememberedKeys, "of", of="block_keys", on=SHARED, rules="NANO-PFX-10")(
    lambda right, *given: [bytes(len(key)) for key in right(*given)], "keys, all alike"
)
fault(RememberedKeys, "of", of="block_keys", on=SHARED, rules="NANO-PFX-10")(
    lambda right, self, id_, count: [id_.encode() + key[1:] for key in right(self, id_, count)],
    "keys, of the sequence's own",
)
