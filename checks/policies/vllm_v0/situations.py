"""Situations of vLLM V0: the classes of each transition, and settings that reach rare ones."""

from typing import Any

from checks.harness.situations import (
    ABORT,
    AHEAD,
    BEFORE,
    FREE,
    GENERATED,
    HOLDERS,
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
from spec.vllm_v0.records import State


def phase_of(state: State, request_id: str) -> str:
    """The phase of a request; running requests are prefilling or decoding."""
    group = next((group for group in state.present if group.id == request_id), None)
    if group is None:
        return "gone already"
    if group not in state.running:
        return "waiting" if group in state.waiting else "swapped"
    return "prefilling" if group.is_prefill else "decoding"


def _encoder_blocks(_moment: Moment, group: Any) -> int:
    return len(group.cross)


SEQUENCES = count_of_row("sequences", lambda _moment, group: len(group.sequences))
ENCODER = count_of_row("blocks of the encoder", _encoder_blocks)
VICTIMS = count("victims", lambda moment: len(moment.step.preempted))
SWAPPED = count("swapped groups", lambda moment: len(moment.step.before.swapped))
URGENT = count("victims of priority", lambda moment: len(moment.step.by_priority))
CPU = count("free blocks of the CPU", lambda moment: len(moment.step.before.cpu.free))
PHASE = phase(phase_of, "waiting", "prefilling", "decoding", "swapped")
RULE = Class("rule", ("V0-ADM-1", "V0-BUD-1"), lambda moment: moment.event.rule)

TABLE: Table = {
    STEP: (VICTIMS, URGENT, SWAPPED, WAITING, FREE),
    REFUSED: (RULE, FREE, GENERATED, SWAPPED),
    "preempt": (*REQUEST, ENCODER, PHASE, BEFORE),
    "swap_out": (SEQUENCES, ENCODER, *REQUEST, CPU, BEFORE),
    "swap_in": (SEQUENCES, ENCODER, *REQUEST, FREE, BEFORE),
    "admit": (TOKENS, AHEAD, GENERATED, BEFORE, FREE),
    "append": (SEQUENCES, HOLDERS, PLACE, FREE),
    "copy": (SEQUENCES, ENCODER, HOLDERS, BEFORE),
    "chunk": (TOKENS, *REQUEST),
    "fork": (ENCODER, PLACE, FREE),
    "ignore": (AHEAD, GENERATED, PHASE),
    "finish": (SEQUENCES, ENCODER, *REQUEST, BEFORE),
    ABORT: (PHASE, SEQUENCES, ENCODER, *REQUEST),
}

_SWAPS = {
    "prefix_caching": False,
    "num_lookahead_slots": 0,
    "num_cpu_blocks": 40,
    "block_size": 2,
}

ADVICE = (
    Advice(
        "swap_out, sequences 2+, blocks of the encoder 1",
        "no group of several sequences with an encoder was swapped out",
        _SWAPS,
    ),
    Advice(
        "copy, sequences 2+, blocks of the encoder 1",
        "no group of several sequences with an encoder copied a block",
        _SWAPS,
    ),
)
