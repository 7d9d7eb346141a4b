"""Faults of the transitions of a group: arrivals, aborts, decisions and results."""

from typing import Any

from attrs import evolve

from reference.vllm_v0 import transitions
from spec.vllm_v0.records import Sequence
from tests.checks.faults.patches import (
    Wrong,
    changed,
    depending,
    each,
    first,
    first_to_back,
    kept,
    last,
    last_to_front,
    plus,
    result,
)
from tests.checks.faults.vllm_v0.table import fault

# --- between two steps ----------------------------------------------------------------------------

fault(transitions, "arrive", on="chunked, beyond the model", rules="V0-LIF-3")(
    result(waiting=last_to_front), "newcomer in front"
)
fault(transitions, "arrive", on="released, forks, recompute", rules="V0-LIF-3")(
    result(waiting=last(prompt_len=lambda count: max(count - 1, 1))), "prompt loses a token"
)
fault(transitions, "arrive", on="chunked, beyond the model", rules="V0-LIF-3, V0-SEQ-6")(
    result(waiting=last(sequences=lambda rows: (*rows, Sequence(f"{rows[0].id}/1")))),
    "arrives as two sequences",
)
fault(transitions, "arrive", on="chunked, beyond the model", rules="V0-LIF-3")(
    result(waiting=lambda queue: queue[-1:]), "arrives alone"
)
fault(transitions, "abort", on="encoder", rules="V0-BLK-3, V0-BLK-5, V0-LIF-3, V0-LIF-5")(
    kept("pool"), "aborted keeps its blocks"
)
fault(transitions, "abort", on="encoder, swap", rules="V0-BLK-4, V0-LIF-3, V0-LIF-5")(
    kept("cpu"), "aborted keeps CPU blocks"
)
fault(transitions, "abort", on="encoder", rules="V0-LIF-3")(kept("aborted"), "abort is not noted")
fault(transitions, "abort", on="encoder", rules="V0-LIF-1, V0-LIF-3")(
    kept("waiting"), "aborted waits on"
)
fault(transitions, "abort", on="encoder", rules="V0-BLK-3, V0-LIF-1, V0-LIF-3")(
    kept("running"), "aborted runs on"
)
fault(transitions, "abort", on="encoder, swap", rules="V0-BLK-4, V0-LIF-1, V0-LIF-3")(
    kept("swapped"), "aborted stays swapped out"
)
fault(
    transitions,
    "without",
    of="abort",
    on="swap, little room on the CPU",
    rules="V0-BLK-4, V0-BLK-5, V0-LIF-2, V0-ORD-11",
)(result(swapped=()), "a group that leaves takes the swapped along")

# --- decisions ------------------------------------------------------------------------------------

fault(
    transitions,
    "admit",
    on="chunked, beyond the model",
    rules="V0-CHK-9, V0-LIF-1, V0-LIF-2, V0-LKA-6, V0-ORD-1, V0-ORD-8",
)(kept("waiting"), "admitted and waiting")
fault(transitions, "admit", on="chunked, beyond the model", rules="guard V0-ADM-3")(
    result(waiting=()), "queue behind the admitted is cleared"
)
fault(transitions, "append", on="chunked, lookahead", rules="V0-LKA-1")(
    lambda right, *given: right(*given[:-1], 0), "slots without lookahead"
)
fault(transitions, "append", on="outgrows the GPU", rules="V0-SEQ-7")(
    lambda right, *given: (right(*given)[0], (), right(*given)[2]), "copies are not reported"
)
fault(transitions, "recompute", on="outgrows the GPU", rules="V0-LIF-6, V0-PRE-7")(
    depending(lambda _ctx, _state, row: changed(waiting=first(computed=row.computed))),
    "victim keeps its progress",
)
fault(transitions, "recompute", on="outgrows the GPU", rules="V0-BLK-3")(
    kept("pool"), "victim's blocks are lost"
)
fault(transitions, "recompute", on="outgrows the GPU", rules="V0-PRE-7")(
    result(waiting=first(sequences=each(generated=0))), "victim loses its answer"
)
fault(transitions, "recompute", on="chunked, caching", rules="V0-PFX-9, V0-PRE-7")(
    depending(lambda _ctx, _state, row: changed(waiting=first(cached=row.cached))),
    "victim remembers what was cached",
)
fault(transitions, "recompute", on="outgrows the GPU", rules="V0-PRE-8")(
    result(waiting=first_to_back), "victim at the end of the queue"
)
fault(transitions, "recompute", on="outgrows the GPU", rules="V0-CHK-9, V0-PRE-7")(
    result(waiting=first(is_prefill=False)), "victim is no prompt"
)
fault(
    transitions,
    "recompute",
    on="outgrows the GPU",
    rules="V0-BLK-3, V0-BUD-5, V0-CHK-9, V0-LIF-1, V0-LIF-2, V0-LIF-8, V0-LIF-9, V0-LKA-6, "
    "V0-ORD-11",
)(kept("running"), "victim runs on")
fault(transitions, "swap_out", on="artificial", rules="V0-SWP-11")(
    result(swapped=last_to_front), "swapped out in front"
)
fault(transitions, "swap_out", on="outgrows the GPU", rules="V0-SWP-2")(
    lambda right, *given: (right(*given)[0], (), right(*given)[2]), "nothing is copied out"
)
fault(transitions, "swap_out", on="outgrows the GPU", rules="V0-SWP-4")(
    result(swapped=last(computed=0)), "swapped out loses its progress"
)
fault(
    transitions,
    "swap_out",
    on="outgrows the GPU",
    rules="V0-BLK-3, V0-BUD-5, V0-LIF-1, V0-LIF-2, V0-LIF-8, V0-LIF-9, V0-ORD-11",
)(kept("running"), "swapped out and running")
fault(transitions, "swap_out", on="outgrows the GPU", rules="V0-BLK-10, V0-BLK-4")(
    kept("cpu"), "CPU blocks are not taken"
)
fault(
    transitions,
    "swap_in",
    on="swap, little room on the CPU",
    rules="V0-BLK-10, V0-BLK-4, V0-LIF-1, V0-LIF-2, V0-LIF-4, V0-LKA-6, V0-SWP-2",
)(kept("swapped"), "back and swapped out")
fault(transitions, "swap_in", on="swap, little room on the CPU", rules="V0-BLK-4")(
    kept("cpu"), "CPU blocks are not given back"
)
fault(transitions, "swap_in", on="swap, little room on the CPU", rules="V0-SWP-5")(
    result(running=last(computed=plus(-1))), "back with a token less"
)


@fault(transitions, "swap_in", on="swap, little room on the CPU", rules="V0-SWP-1, V0-SWP-2")
def copied_the_wrong_way(right: Wrong, *given: Any) -> Any:
    state, pairs, events = right(*given)
    return state, tuple((target, source) for source, target in pairs), events


fault(transitions, "ignore", on="chunked, beyond the model", rules="V0-ADM-3, V0-LIF-2")(
    kept("ignored"), "ignored is not noted"
)
fault(transitions, "ignore", on="chunked, beyond the model", rules="V0-LIF-1, V0-LIF-2, V0-ORD-8")(
    kept("waiting"), "ignored waits on"
)
fault(transitions, "ignore", on="chunked, beyond the model", rules="V0-LIF-1, V0-LIF-2, V0-LIF-4")(
    result(finished=frozenset()), "the ignored alone have finished"
)
fault(transitions, "free_finished", on="forks", rules="V0-LIF-7, V0-LKA-6")(
    lambda _right, _ctx, state, _request: (state, ()), "finished ones keep their blocks"
)
fault(transitions, "ignore", on="outgrows the GPU", rules="V0-BLK-4, V0-BLK-5")(
    lambda right, *given, **_more: right(*given[:4], False), "ignored keeps its blocks"
)

# --- what comes of it -----------------------------------------------------------------------------

fault(transitions, "compute", on="chunked, beyond the model", rules="V0-CHK-1, V0-CHK-9")(
    lambda right, ctx, state, tokens: (state, right(ctx, state, tokens)[1]), "nothing is computed"
)
fault(transitions, "compute", on="outgrows the GPU", rules="V0-CHK-1, V0-CHK-9, V0-SEQ-6")(
    lambda right, ctx, state, tokens: right(
        ctx, state, {request_id: max(count - 1, 1) for request_id, count in tokens.items()}
    ),
    "last token of a chunk is not computed",
)
fault(transitions, "compute", on="outgrows the GPU", rules="V0-CHK-9, V0-SEQ-6")(
    result(running=each(is_prefill=True)), "prompt without an end"
)
fault(
    transitions,
    "_computed",
    of="compute",
    on="chunked, caching, an answer",
    rules="V0-CHK-9, V0-PFX-9",
)(result(is_prefill=False), "prompt ends with its first chunk")
fault(transitions, "fork", on="outgrows the GPU", rules="V0-SEQ-1")(
    lambda _right, _ctx, state, _one: (state, ()), "never forked"
)
fault(transitions, "changed", of="fork", on="chunked, caching, an answer", rules="V0-ORD-11")(
    lambda _right, state, group: evolve(
        state, running=(*(request for request in state.running if request.id != group.id), group)
    ),
    "forked goes to the end of the queue",
)
fault(transitions, "sample", on="chunked, beyond the model", rules="V0-LIF-4")(
    lambda right, ctx, state, sampled, ended: right(
        ctx, state, {request_id: count + 1 for request_id, count in sampled.items()}, ended
    ),
    "two tokens at once",
)
fault(transitions, "sample", on="chunked, beyond the model", rules="V0-LIF-4")(
    lambda right, *given: right(*given[:-1], ()), "end is not noted"
)
fault(transitions, "sample", on="chunked, beyond the model", rules="V0-LIF-4")(
    lambda right, ctx, state, sampled, _ended: right(ctx, state, sampled, sampled), "all end"
)
fault(transitions, "sample", on="chunked, multi-step", rules="V0-CHK-1")(
    depending(
        lambda _ctx, state, *_: changed(
            running=lambda rows: tuple(
                evolve(row, computed=old.computed)
                for row, old in zip(rows, state.running, strict=True)
            )
        )
    ),
    "right guesses are not computed",
)
