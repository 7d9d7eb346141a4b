"""Plan a step: the running requests first, then the waiting requests.

Source: vllm-v1, "Token Budget Management".
"""

from engine.vllm_v1.admission import no_room, plan_admissions
from engine.vllm_v1.draft import Draft
from engine.vllm_v1.plan import Plan
from engine.vllm_v1.running_turns import plan_batch, plan_turns, plan_verification
from engine.vllm_v1.state import SchedulerState


def plan_step(state: SchedulerState) -> Plan:
    """The next step; after a preemption no waiting request is looked at in it."""
    # Rows that refer to encodings take turns, in which they pass them.
    grown = None if state.encoder.taken else plan_batch(state)
    # What rows have to verify is not known where a step is in flight.
    is_apart = state.config.steps_in_flight > 0 or bool(state.encoder.taken)
    verification = None if grown is not None or is_apart else plan_verification(state)
    if grown is not None or verification is not None:
        running = state.running
        new = len(running.members) if verification is None else verification.tokens
        budget = state.budget - new
        is_queued = state.has_queued
        refusal = no_room(state, budget, len(running.members)) if is_queued else None
        if refusal is not None or not is_queued:
            batch = None if grown is None else running.batch
            return Plan(budget, batch, grown or (), refusal=refusal, verification=verification)
    draft = Draft.of(state)
    if grown is not None:
        draft.decode_all(grown)
    elif verification is not None:
        draft.verify_all(verification)
    else:
        plan_turns(draft)
    if draft.preempted:
        draft.refusal = "V1-PRE-4"
    else:
        plan_admissions(draft)
    return draft.plan()
