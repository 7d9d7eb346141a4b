"""How drivers of Spyre schedulers are held against its machine."""

from checks.conformance.counterpart import Counterpart, Counts
from checks.conformance.leftout import FIELDS
from checks.fuzz.cases import case_of
from checks.fuzz.counts import ACTIONS, count_step, phase_of
from checks.fuzz.shrink import simpler_cases
from checks.policies import SPYRE as POLICY
from checks.policies.spyre.driver.comparing import step_differences, totals_told
from checks.policies.spyre.driver.hardware import Hardware
from checks.policies.spyre.driver.moves import seen_events
from checks.policies.spyre.driver.told import Teller
from reference.spyre.machine import SpyreMachine

SPYRE = Counterpart(
    policy=POLICY,
    draw=case_of,
    simpler=simpler_cases,
    machine=lambda case: SpyreMachine.of(case.config, case.requests),
    tokens_at_once=lambda config: config.chunk_size,
    teller=Teller,
    differences=step_differences,
    totals=totals_told,
    fields=FIELDS[POLICY.name],
    moves=seen_events,
    device=Hardware,
    counts=Counts(actions=ACTIONS, add=count_step, phase=phase_of),
)
