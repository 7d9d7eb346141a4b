"""Faults of the formulas in `spec/`: every module that imports them has them wrong."""

from typing import Any

from reference.spyre import admission as of_reference
from spec.core import blocks
from spec.core.configuration import PolicyConfig
from spec.spyre import admission, padding, reservation, state
from spec.spyre import queue as of_queue
from spec.spyre.config import SpyreConfig
from spec.spyre.state import State
from spec.spyre.variants import AdmissionVariant, Queue
from tests.checks.faults.patches import altered, always, changed, each, plus
from tests.checks.faults.spyre.table import fault


def longer(tokens: int) -> Any:
    """Rows that may generate this number of further tokens."""
    return each(remaining=plus(tokens))


# --- joining: the maximum length ------------------------------------------------------------------

fault(admission, "model_length_holds", on="half a block of length", rules="SPY-LEN-2")(
    lambda right, _decoding, row, *given: right((), row, *given), "length, of the newcomer only"
)
fault(admission, "model_length_holds", on="documented, length", rules="SPY-LEN-2")(
    lambda right, decoding, row, most, size: right(decoding, row, most - 1, size),
    "length, one token stricter",
)
fault(admission, "model_length_holds", on="half a block of length", rules="SPY-LEN-2")(
    lambda right, decoding, row, most, size: right(decoding, row, most + 1, size),
    "length, one token looser",
)
fault(admission, "joined_tkvs", on="documented", rules="SPY-VOL-2")(
    lambda right, *given: [tkv + 1 for tkv in right(*given)], "joined tkv, with the next token"
)

# --- joining: the text's projection ---------------------------------------------------------------

fault(admission, "documented_volume_holds", on="slack in the text", rules="SPY-VOL-2")(
    lambda right, decoding, row, limit, size: right(longer(-size)(decoding), row, limit, size),
    "documented, without slack",
)
fault(admission, "documented_volume_holds", on="slack in the text", rules="SPY-VOL-2")(
    lambda right, decoding, row, limit, size: right(longer(size)(decoding), row, limit, size),
    "documented, two blocks of slack",
)
fault(admission, "documented_volume_holds", on="documented", rules="SPY-VOL-2")(
    lambda right, decoding, row, limit, size: right(decoding, row, limit - 1, size),
    "documented, less than the limit",
)
fault(admission, "projected_volumes", on="documented", rules="SPY-VOL-2")(
    lambda right, tkvs, own: right([tkv for tkv in tkvs if tkv < own], own),
    "projection, only rows that the newcomer outlives",
)
fault(admission, "projected_volumes", on="documented", rules="SPY-VOL-2, SPY-PRI-4")(
    lambda right, tkvs, own: right([*tkvs, own], own), "projection, its own end always"
)

# --- joining: the release's projection ------------------------------------------------------------

fault(admission, "shipped_row_futures", on="shipped, not interleaved", rules="SPY-VOL-3")(
    lambda right, decoding, row, size, _last: right(decoding, row, size, 0),
    "shipped, without the last tkv",
)
fault(admission, "shipped_row_futures", on="shipped, not interleaved", rules="SPY-VOL-3")(
    lambda right, decoding, *given: right(longer(-1)(decoding), *given),
    "shipped, decoding rows a token shorter",
)

# --- joining: the worst case ----------------------------------------------------------------------

fault(padding, "reaches_block_end", on="peak before the end", rules="SPY-VOL-4")(
    always(True), "peak, always the full width"
)
fault(admission, "decode_lives", on="a longer row ends first", rules="SPY-VOL-4, SPY-PRI-4")(
    lambda right, decoding, row: right(decoding, changed(remaining=plus(1))(row)),
    "lives, the newcomer's one step longer",
)
fault(admission, "decode_lives", on="hit up to the last chunk", rules="SPY-VOL-4")(
    lambda right, decoding, row: right(longer(-1)(decoding), row), "lives, one step shorter"
)
fault(admission, "rows_until", on="a longer row ends first", rules="SPY-VOL-4")(
    lambda _right, lives, _steps: [length for length, _ in lives],
    "rows, also those that have ended",
)
fault(admission, "peak_volume_until", on="hit up to the last chunk", rules="SPY-VOL-4")(
    lambda right, lives, steps, size: right(
        [life for life in lives if life[1] == steps], steps, size
    ),
    "peak volume, of rows that end together only",
)
fault(padding, "volume", on="documented", rules="SPY-VOL-2")(
    lambda _right, rows, tkv: max(rows - 1, 1) * tkv, "volume, a row too few"
)
fault(AdmissionVariant, "refusal", on="hit up to the last chunk", rules="SPY-VOL-4")(
    lambda right, self, admission: right(
        changed(conditions=lambda all_: all_[1:])(self), admission
    ),
    "conditions, without the first",
)
fault(AdmissionVariant, "is_judged_first", on="shipped, not interleaved", rules="SPY-VOL-3")(
    lambda _right, _self, *, interleave: False, "judged first, never"
)
fault(AdmissionVariant, "is_judged_first", on="exact, not interleaved", rules="SPY-ADM-4")(
    lambda _right, _self, *, interleave: not interleave, "judged first, by any admission"
)

# --- prompts and chunks ---------------------------------------------------------------------------

fault(padding, "right_padding", on="odd length, documented", rules="SPY-PAD-1, SPY-PAD-2")(
    lambda right, length, size: right(length, size) or size, "right padding, never none"
)
fault(padding, "chunk_count", on="documented", rules="SPY-CHK-3, SPY-PAD-3")(
    altered(plus(1)), "chunks, one too many"
)
fault(padding, "chunk_count", on="odd length, exact", rules="SPY-CHK-3, SPY-PAD-3")(
    lambda _right, length, size: max(length // size, 1), "chunks, only full ones"
)
fault(
    padding,
    "padded_length",
    on="documented",
    rules="SPY-ADM-4, SPY-CHK-3, SPY-CHK-4, SPY-PAD-1, SPY-PAD-3",
)(lambda right, length, size: right(length, size) + size, "padded length, a chunk more")
fault(padding, "left_padding", on="documented", rules="SPY-PAD-1, SPY-PAD-3")(
    lambda _right, length, _size, chunk: -length % chunk, "left padding, by tokens"
)
fault(
    padding,
    "active_chunk",
    on="hit up to the last chunk",
    rules="SPY-ADM-4, SPY-CHK-3, SPY-CHK-5, SPY-CHK-7",
)(
    lambda right, computed, _padding, chunk: right(computed, 0, chunk),
    "active chunk, without padding",
)
fault(padding, "chunk_start", on="hit up to the last chunk", rules="SPY-CHK-5")(
    lambda right, chunk, _padding, size: right(chunk, 0, size), "chunk start, without padding"
)
fault(padding, "chunk_end", on="hit up to the last chunk", rules="SPY-CHK-5, SPY-CHK-7")(
    lambda right, chunk, _padding, *lengths: right(chunk, 0, *lengths), "chunk end, without padding"
)

# --- prefix caching -------------------------------------------------------------------------------

fault(
    padding, "skipped_chunks", on="hit up to the last chunk", rules="SPY-PFX-3, SPY-RES-2, BLK-8"
)(always(0), "skipped chunks, none")
fault(padding, "skipped_chunks", on="a false prefix", rules="SPY-PFX-3")(
    lambda right, hits, _padding, *given: right(hits, 0, *given), "skipped chunks, without padding"
)
fault(
    padding, "reused_blocks", on="same prompt", rules="SPY-CHK-3, SPY-CHK-5, SPY-PFX-3, SPY-PFX-4"
)(lambda _right, hits, *_layout: hits, "reused blocks, all that are cached")
fault(padding, "redirected_blocks", on="same prompt", rules="SPY-PFX-5")(
    always(0), "redirected blocks, none"
)
fault(padding, "redirected_blocks", on="hit up to the last chunk", rules="SPY-PFX-5")(
    lambda _right, hits, *_layout: hits, "redirected blocks, all that are cached"
)

# --- the decode batch -----------------------------------------------------------------------------

fault(padding, "batch_width_blocks", on="documented", rules="SPY-DEC-3, SPY-TKV-1")(
    altered(plus(1)), "width, a block more"
)
fault(padding, "batch_width_blocks", on="documented", rules="SPY-DEC-3, SPY-DEC-4, SPY-TKV-1")(
    lambda right, lengths, size: right(lengths[:1], size), "width, that of the first row"
)
fault(
    padding,
    "row_left_padding",
    on="documented",
    rules="SPY-DEC-2, SPY-DEC-6, SPY-TKV-1, SPY-TKV-2, SPY-VOL-2",
)(always(0), "row padding, none")
fault(
    padding,
    "row_left_padding",
    on="documented",
    rules="SPY-DEC-3, SPY-DEC-4, SPY-TKV-1, SPY-TKV-2, SPY-TKV-4, SPY-TKV-6",
)(lambda _right, length, width, size: width * size - length, "row padding, by tokens")
fault(padding, "last_block_offset", on="documented", rules="SPY-TKV-2")(
    lambda _right, length, size: length % size, "offset, from 0"
)
fault(padding, "max_tkv", on="documented", rules="SPY-TKV-2")(
    lambda _right, lengths, _size: max(lengths), "largest tkv, without padding"
)
fault(padding, "max_tkv", on="documented", rules="SPY-TKV-2")(
    lambda right, lengths, size: -(-right(lengths, size) // size) * size, "largest tkv, rounded up"
)
fault(state.Sequence, "tkv", on="documented", rules="SPY-TKV-1, SPY-TKV-2, SPY-DEC-6")(
    lambda _right, self: self.computed, "tkv, without padding"
)
fault(state.Sequence, "tkv", on="documented", rules="SPY-TKV-1, SPY-TKV-2")(
    altered(plus(1)), "tkv, with the next token"
)

# --- blocks ---------------------------------------------------------------------------------------

fault(blocks, "block_count", on="documented", rules="BLK-8, SPY-DEC-5")(
    lambda _right, length, size: length // size + 1, "block count, one more of whole blocks"
)
fault(PolicyConfig, "pool_blocks", on="documented", rules="BLK-6")(
    altered(plus(-1)), "pool, a block less"
)
fault(of_reference, "worst_case_of", on="documented", rules="SPY-RES-2")(
    altered(plus(1)), "worst case, a block more"
)
fault(of_reference, "worst_case_of", on="documented", rules="SPY-RES-2")(
    lambda right, length, remaining, size: right(length, remaining - 1, size),
    "worst case, without the last token",
)
fault(reservation, "may_reserve", on="odd length, documented", rules="SPY-RES-4")(
    lambda right, worst, shared, free, promised: right(worst + 1, shared, free, promised),
    "may reserve, a block too late",
)
fault(reservation, "may_reserve", on="eviction", rules="SPY-RES-4")(
    lambda right, worst, _shared, *given: right(worst, 0, *given),
    "may reserve, shared blocks counted",
)
fault(reservation, "may_reserve", on="dry pool", rules="guard SPY-RES-1")(
    lambda right, worst, shared, free, _promised: right(worst, shared, free, 0),
    "may reserve, promised blocks again",
)
fault(reservation, "promised_blocks", on="same prompt", rules="SPY-RES-2")(
    lambda _right, worst, held: worst, "promise, what is held, too"
)
fault(reservation, "still_promised", on="documented", rules="SPY-RES-2")(
    lambda _right, promised, _handed: promised, "promise, never kept"
)

# --- priorities and records -----------------------------------------------------------------------

fault(state, "must_interleave", on="shipped, not interleaved", rules="SPY-PRI-6")(
    lambda _right, _config, past, decodes: past.last_kind == "prefill" and decodes,
    "interleaved, whatever is configured",
)
fault(state, "must_interleave", on="documented", rules="SPY-PRI-3")(
    always(False), "interleaved, never"
)
fault(state, "past_after", on="odd length, shipped", rules="SPY-VOL-5")(
    lambda right, config, kind, _tkv: right(config, kind, 0), "past, no tkv"
)
fault(Queue, "steps_over", on="overtaking for blocks", rules="SPY-PRI-7, SPY-PRI-14")(
    lambda _right, self, _rule: self is Queue.OVERTAKING, "overtaking, whatever is refused"
)
fault(Queue, "steps_over", on="shipped, not interleaved", rules="SPY-PRI-6")(
    always(False), "overtaking, never"
)
fault(of_queue, "chosen_from", on="exact, aligned", rules="SPY-PRI-8, SPY-PRI-9")(
    lambda _right, _cohort, waiting, _most: waiting, "aligned, chosen from all"
)
fault(of_queue, "chosen_from", on="exact, aligned", rules="SPY-PRI-8, SPY-PRI-9")(
    lambda right, _cohort, waiting, most: right(0, waiting, most), "aligned, no cohort is left"
)
fault(of_queue, "chosen_from", on="exact, aligned", rules="SPY-PRI-8, SPY-PRI-9")(
    lambda right, cohort, waiting, most: right(cohort, waiting, most + 1), "aligned, one too many"
)
fault(of_queue, "row_width", on="exact, aligned", rules="SPY-PRI-8")(
    lambda right, prompt_len, _max_tokens, alike: right(prompt_len, 0, alike),
    "by width, of the prompt alone",
)
fault(of_queue, "row_width", on="exact, aligned", rules="SPY-PRI-8")(
    lambda right, prompt_len, max_tokens, _alike: right(prompt_len, max_tokens, 0),
    "by width, none alike",
)
fault(of_queue, "alike_width", on="exact, aligned", rules="SPY-PRI-8")(
    lambda _right, limit, max_num_seqs, _chunk_size: limit // max_num_seqs,
    "by width, a share without a chunk",
)
fault(of_queue, "waits_for_rows", on="aligned, wide one behind rows", rules="SPY-PRI-11")(
    always(False), "by width, rows are not let go on"
)
fault(of_queue, "waits_for_rows", on="aligned, wide one behind rows", rules="SPY-PRI-6")(
    lambda right, width, alike, decoding, waiting: right(width, alike, decoding + 1, waiting),
    "by width, a row fewer is waited for",
)
fault(Queue, "is_by_width", on="exact, aligned", rules="SPY-PRI-8")(
    always(False), "by width, never"
)
fault(SpyreConfig, "may_pause", on="shipped, not interleaved", rules="SPY-VOL-1")(
    always(False), "pausing, never"
)
fault(SpyreConfig, "may_pause", on="documented", rules="SPY-PAU-6")(always(True), "pausing, always")
fault(State, "running", on="exact", rules="SPY-ADM-1")(
    lambda right, self: right(self)[1:], "running, without the first"
)
fault(State, "admitted", on="odd length, exact", rules="BLK-2, LIF-2")(
    lambda _right, self: self.decoding, "admitted, only those decoding"
)
fault(State, "present", on="documented", rules="BLK-2, LIF-2")(
    lambda _right, self: self.waiting, "present, only those waiting"
)
