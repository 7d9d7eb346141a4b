"""The scheduler: what waits, who is admitted, which rows decode. Cost per step follows the batch.

`core` holds its state, `prefill`, `joining`, `decode` and `pausing` plan a step from it,
`carrying_out` and `leaving` change it, `scheduler` is what others call.
"""

from engine.spyre.scheduler.plan import DecodePlan, IdlePlan, Outcome, Plan, PrefillPlan
from engine.spyre.scheduler.scheduler import Scheduler, StalePlanError

__all__ = [
    "DecodePlan",
    "IdlePlan",
    "Outcome",
    "Plan",
    "PrefillPlan",
    "Scheduler",
    "StalePlanError",
]
