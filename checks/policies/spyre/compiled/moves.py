"""Every successor of packed states: arrivals, aborts, and steps with their early ends."""

from checks.explore.compiled.jit import entry
from checks.explore.compiled.model import DOES_NOT_FIT, STUCK
from checks.policies.spyre.compiled.machine import abort, arrive, finish, has_all, step
from checks.policies.spyre.compiled.names import (
    ABORTED,
    ABSENT,
    AT,
    FINISHED,
    IS_STUCK,
    MAY_ABORT,
    MAY_END,
    MAY_RETURN,
    PAUSED,
    PHASE,
    WAITING,
)
from checks.policies.spyre.compiled.packing import pack, unpack
from checks.policies.spyre.compiled.rules import broken_by_step, broken_in_state
from checks.policies.spyre.compiled.setting import Numbers, Setting, Work
from checks.policies.spyre.compiled.work import copy

ARRIVE, ABORT, STEP = range(
    3
)  # kinds of edges; an action is a kind and a request or set of requests
ARGUMENT_BITS = 8


@entry
def open_goals(setting: Setting, base: Work, states: Numbers, goals: Numbers) -> None:
    """Write the open `GOALS` of each state, as bits, into `goals`; `base` is scratch space."""
    for index in range(len(states)):
        unpack(setting, states[index], base)
        goals[index] = 0
        for request in range(setting.requests):
            phase = base[PHASE, request]
            goals[index] |= (WAITING <= phase <= PAUSED) << request
            goals[index] |= (phase == PAUSED) << (request + setting.requests)


@entry
def expand(
    setting: Setting,
    claims: Setting,
    works: tuple[Work, Work, Work],
    states: Numbers,
    first: int,
    last: int,
    edges: tuple[Numbers, Numbers, Numbers, Numbers],
) -> int:
    """Write the edges of the states from `first` to before `last`; returns their number.

    `edges`: for each edge its target state, source, action and broken rules, see
    `checks.explore.compiled.model`. `works`: scratch space for a state, a state within a step, and
    the state after an edge. `claims`: the setting for which rules are judged.
    """
    base, between, after = works
    targets, sources, actions, broken = edges
    count = 0
    for index in range(first, last):
        unpack(setting, states[index], base)
        begin = count
        is_pending, is_stuck = False, 0
        # arrivals
        for request in range(setting.requests):
            phase = base[PHASE, request]
            is_pending |= WAITING <= phase <= PAUSED
            has_left = phase in (FINISHED, ABORTED)
            if phase == ABSENT or (has_left and base[MAY_RETURN, request]):
                copy(setting, base, after)
                arrive(after, request)
                actions[count] = (ARRIVE << ARGUMENT_BITS) | request
                broken[count] = broken_in_state(claims, after) & claims.rules
                if not pack(setting, after, targets[count]):
                    return DOES_NOT_FIT
                is_stuck |= after[AT, IS_STUCK]
                count += 1
        # aborts
        for request in range(setting.requests):
            if base[MAY_ABORT, request] and WAITING <= base[PHASE, request] <= PAUSED:
                copy(setting, base, after)
                abort(setting, after, request)
                actions[count] = (ABORT << ARGUMENT_BITS) | request
                broken[count] = broken_in_state(claims, after) & claims.rules
                if not pack(setting, after, targets[count]):
                    return DOES_NOT_FIT
                is_stuck |= after[AT, IS_STUCK]
                count += 1
        # steps, one for each set of early ends
        if is_pending:
            copy(setting, base, between)
            sampled = step(setting, between)
            by_step = broken_by_step(claims, base, between, sampled)
            may_end = 0
            for request in range(setting.requests):
                if (sampled >> request) & 1 and not has_all(setting, between, request):
                    may_end |= base[MAY_END, request] << request
            ending = 0
            while True:
                copy(setting, between, after)
                finish(setting, after, sampled, ending)
                actions[count] = (STEP << ARGUMENT_BITS) | ending
                broken[count] = (by_step | broken_in_state(claims, after)) & claims.rules
                if not pack(setting, after, targets[count]):
                    return DOES_NOT_FIT
                is_stuck |= after[AT, IS_STUCK]
                count += 1
                if ending == may_end:
                    break
                ending = (ending - may_end) & may_end  # the next larger set of these
        if is_stuck:
            sources[0] = index
            return STUCK
        for edge in range(begin, count):
            sources[edge] = index
    return count
