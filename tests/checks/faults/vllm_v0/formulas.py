"""Faults of the formulas in `spec/`: every module that imports them has them wrong."""

from array import array
from collections.abc import Sequence
from struct import pack

from spec.core import blocks, requests
from spec.core.arithmetic import cdiv
from spec.core.requests import BlockKey
from spec.vllm_v0 import block_keys, config
from spec.vllm_v0.block_keys import PrefixKeys
from spec.vllm_v0.config import VllmV0Config
from spec.vllm_v0.records import Group
from tests.checks.faults.patches import Wrong, altered, always, own_tokens_only, plus
from tests.checks.faults.vllm_v0.table import fault

# --- what a configuration implies -----------------------------------------------------------------

fault(VllmV0Config, "token_budget", on="chunked, delay", rules="V0-BUD-8")(
    altered(plus(1)), "budget, a token more"
)
fault(VllmV0Config, "token_budget", on="chunked, delay", rules="V0-BUD-8")(
    altered(plus(-1)), "budget, a token less"
)
fault(VllmV0Config, "prompt_limit", on="too long", rules="V0-PRG-2")(
    altered(plus(1)), "longest prompt, a token more"
)
fault(VllmV0Config, "prompt_limit", on="too long", rules="V0-PRG-2")(
    lambda _right, self: self.max_model_len, "longest prompt, not held to the budget"
)
fault(VllmV0Config, "prompt_limit", on="chunked, caching, an answer", rules="V0-ADM-2")(
    lambda _right, self: self.token_budget, "longest prompt, held to the budget in chunks, too"
)
fault(VllmV0Config, "long_threshold", on="partial prefills", rules="V0-CHK-5")(
    altered(plus(1)), "threshold, a token more"
)
fault(VllmV0Config, "long_threshold", on="partial prefills", rules="V0-ADM-7")(
    altered(plus(-1)), "threshold, a token less"
)
fault(
    VllmV0Config, "is_multi_step", on="chunked, multi-step", rules="V0-LKA-2, V0-LKA-3, V0-LKA-4"
)(always(False), "several steps, never")
fault(
    VllmV0Config,
    "is_multi_step",
    on="chunked, lookahead",
    rules="V0-BLK-6, V0-LKA-2, V0-LKA-3, V0-LKA-4",
)(lambda _right, self: self.num_lookahead_slots > 0, "several steps, with any lookahead")
fault(VllmV0Config, "pool_blocks", on="outgrows the GPU", rules="V0-BLK-1")(
    altered(plus(-1)), "pool, a block less"
)

# --- blocks ---------------------------------------------------------------------------------------

fault(config, "prompt_blocks", on="outgrows the GPU", rules="V0-PRG-1")(
    lambda _right, slots, encoder, size: slots // size + cdiv(encoder, size),
    "prompt blocks, full ones only",
)
fault(config, "prompt_blocks", on="encoder", rules="V0-PRG-1")(
    lambda _right, slots, encoder, size: cdiv(slots + encoder, size),
    "prompt blocks, shared with the encoder",
)
fault(config, "prompt_blocks", on="encoder", rules="V0-PRG-1")(
    lambda _right, slots, _encoder, size: cdiv(slots, size), "prompt blocks, without the encoder"
)
fault(config, "prompt_blocks", on="swap, little room on the CPU", rules="V0-ADM-7")(
    lambda right, slots, *given: right(slots + 1, *given), "prompt blocks, a slot too many"
)
fault(config, "touched_blocks", on="outgrows the GPU", rules="V0-PRG-1")(
    altered(plus(-1)), "touched blocks, without the last one"
)
fault(config, "touched_blocks", on="swap, little room on the CPU", rules="V0-PRE-5")(
    altered(plus(1)), "touched blocks, one too many"
)
fault(config, "touched_blocks", on="lookahead, swap", rules="V0-PRG-1")(
    lambda _right, _slots, new, size: cdiv(new, size), "touched blocks, as from a full table"
)
fault(blocks, "missing_blocks", on="outgrows the GPU", rules="V0-PRE-1, V0-PRE-2, V0-PRE-9")(
    lambda right, end, _held, size: right(end, 0, size), "missing blocks, as if none is held"
)
fault(blocks, "missing_blocks", on="outgrows the GPU", rules="V0-PRE-1, V0-PRE-2, V0-PRE-9")(
    lambda right, end, *given: right(end + 1, *given), "missing blocks, a slot too many"
)
fault(blocks, "missing_blocks", on="outgrows the GPU", rules="V0-PRE-1, V0-PRE-2, V0-PRE-9")(
    lambda right, end, held, size: right(end, held, size) + 1, "missing blocks, one too many"
)
fault(config, "swapped_blocks", on="outgrows the GPU", rules="V0-PRG-1")(
    lambda _right, full, _touched, held: max(full, held), "swapped blocks, without new slots"
)
fault(config, "swapped_blocks", on="lookahead, little room on the CPU", rules="V0-PRG-1")(
    lambda _right, full, touched, _held: full + touched, "swapped blocks, without what is held"
)
fault(config, "swapped_blocks", on="outgrows the GPU", rules="V0-PRE-5")(
    lambda _right, full, touched, held: full + touched + held, "swapped blocks, all of them"
)
fault(config, "swapped_blocks", on="swap, little room on the CPU", rules="V0-PRE-5")(
    altered(plus(1)), "swapped blocks, one too many"
)

# --- tokens ---------------------------------------------------------------------------------------

fault(config, "uncached_tokens", on="whole hit", rules="V0-ADM-7")(
    lambda _right, new, cached: new - cached, "uncached tokens, none of a whole hit"
)
fault(config, "uncached_tokens", on="whole hit", rules="V0-BUD-3, V0-BUD-4, V0-CHK-1")(
    lambda _right, new, _cached: new, "uncached tokens, all of them"
)
fault(config, "uncached_tokens", on="outgrows the GPU", rules="V0-CHK-1")(
    lambda right, new, cached: right(new, cached + 1), "uncached tokens, one too few"
)
fault(config, "chunk_of", on="partial prefills", rules="V0-CHK-8")(
    lambda right, new, budget, _slots, size: right(new, budget, budget, size), "chunk, no share"
)
fault(config, "chunk_of", on="chunked", rules="V0-ADM-7")(
    lambda right, new, _budget, slots, size: right(new, slots, slots, size), "chunk, no budget"
)
fault(config, "chunk_of", on="partial prefills, three", rules="V0-CHK-2")(
    lambda right, new, budget, slots, _size: right(new, budget, slots, 1), "chunk, no whole blocks"
)
fault(config, "chunk_of", on="chunked, caching", rules="V0-ADM-7")(
    lambda _right, new, budget, slots, size: min(new, cdiv(min(budget, slots), size) * size),
    "chunk, rounded up",
)
fault(config, "chunk_of", on="partial prefills, three", rules="V0-PRG-2")(
    lambda _right, new, budget, slots, size: min(new, budget, slots) // size * size,
    "chunk, its end rounded, too",
)
fault(config, "chunk_of", on="chunked, delay", rules="V0-CHK-3")(
    lambda right, new, budget, slots, size: right(new, budget - 1, slots, size),
    "chunk, a token is kept back",
)
fault(config, "lookahead_slots", on="chunked, multi-step", rules="V0-LKA-2")(
    always(0), "lookahead, none"
)
fault(config, "lookahead_slots", on="chunked, multi-step", rules="V0-LKA-2")(
    lambda right, _is_prefill, config: right(False, config), "lookahead, of prompts, too"
)
fault(config, "lookahead_slots", on="chunked, multi-step", rules="V0-LKA-2")(
    altered(lambda slots: max(slots - 1, 0)), "lookahead, a slot less"
)
fault(config, "lookahead_slots", on="outgrows the GPU", rules="V0-PRE-1, V0-PRE-2, V0-PRE-9")(
    altered(plus(1)), "lookahead, a slot more"
)

# --- contents of blocks ---------------------------------------------------------------------------


@fault(PrefixKeys, "keys_behind", on="shared prefix, adapters", rules="V0-BLK-7, V0-SEQ-3")
def keys_without_the_adapter(
    right: Wrong, self: PrefixKeys, parent: BlockKey, tokens: "array[int]"
) -> Sequence[BlockKey]:
    return [key[:4] + bytes(4) + key[8:] for key in right(self, parent, tokens)]


@fault(PrefixKeys, "keys_behind", on="chunked, caching, an answer", rules="V0-PFX-6")
def keys_without_the_depth(
    right: Wrong, self: PrefixKeys, parent: BlockKey, tokens: "array[int]"
) -> Sequence[BlockKey]:
    return [pack(">I", 1) + key[4:] for key in right(self, parent, tokens)]


fault(requests, "blake2b", of="of", on="chunked, caching, an answer", rules="V0-SEQ-3")(
    own_tokens_only, "keys of a block's own tokens"
)
fault(block_keys, "depth", on="shared prefix", rules="V0-BLK-13")(always(1), "depth, all alike")
fault(block_keys, "depth", on="shared prefix", rules="V0-BLK-13")(
    altered(lambda old: -old), "depth, the other way"
)

# --- records --------------------------------------------------------------------------------------

fault(Group, "tokens", on="outgrows the GPU", rules="V0-BLK-6, V0-LKA-1, V0-LKA-5, V0-LKA-6")(
    lambda _right, self: self.prompt_len, "tokens, the prompt's"
)
fault(Group, "tokens", on="outgrows the GPU", rules="V0-LKA-1, V0-LKA-6")(
    altered(plus(-1)), "tokens, without the newest"
)
fault(Group, "unfinished", on="chunked, delay", rules="V0-BLK-10, V0-LIF-4, V0-LIF-6, V0-LKA-5")(
    lambda _right, self: self.sequences, "unfinished, all"
)
fault(Group, "generated", on="outgrows the GPU", rules="guard V0-SEQ-1")(
    always(0), "generated, nothing"
)
