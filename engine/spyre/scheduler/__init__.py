"""The scheduler: which requests wait, are admitted and decode. Cost per step follows the batch.

`prefill` and `decode` plan a step from the `state`, `admission` says whether a request may join the
batch, `apply` changes the state; `scheduler` is what others call.
"""

from engine.spyre.scheduler.plan import DecodePlan, IdlePlan, Outcome, Plan, PrefillPlan
from engine.spyre.scheduler.scheduler import Scheduler

__all__ = [
    "DecodePlan",
    "IdlePlan",
    "Outcome",
    "Plan",
    "PrefillPlan",
    "Scheduler",
]
