"""What a step does: the running requests first, then the waiting.

Source: vllm-v1, "Token Budget Management".
"""

from engine.vllm_v1.admission import no_room, plan_admissions
from engine.vllm_v1.draft import Draft
from engine.vllm_v1.plan import Plan
from engine.vllm_v1.running_turns import plan_batch, plan_turns
from engine.vllm_v1.state import SchedulerState


def plan_step(state: SchedulerState) -> Plan:
    """The next step; after a preemption no waiting request is looked at in it."""
    grown = plan_batch(state)
    if grown is not None:
        count = len(state.running.rows)
        budget = state.budget - count
        refusal = no_room(state.config, budget, count) if state.has_queued else None
        if refusal is not None or not state.has_queued:
            return Plan(budget, state.running.batch, grown, refusal=refusal)
    draft = Draft.of(state)
    if grown is not None:
        draft.decode_all(grown)
    else:
        plan_turns(draft)
    if draft.preempted:
        draft.refusal = "V1-PRE-4"
    else:
        plan_admissions(draft)
    return draft.plan()
