"""Every successor of packed states: arrivals, aborts, and steps with their early ends."""

from checks.explore.compiled.jit import compiled
from checks.policies.spyre.compiled.machine import abort, arrive, finish, has_all, step
from checks.policies.spyre.compiled.packing import pack, unpack
from checks.policies.spyre.compiled.setting import Numbers, Setting
from checks.policies.spyre.compiled.work import (
    ABORTED,
    ABSENT,
    FINISHED,
    IS_STUCK,
    PAUSED,
    WAITING,
    Work,
    copy,
)

ARRIVE, ABORT, STEP = range(3)  # what an edge is; its number is followed by a request or a set
ARGUMENT_BITS = 8
DOES_NOT_FIT, STUCK = -1, -2


@compiled
def expand(
    setting: Setting,
    works: tuple[Work, Work, Work],
    states: Numbers,
    first: int,
    last: int,
    found: Numbers,
    sources: Numbers,
    actions: Numbers,
) -> int:
    """Write the successors of the states from `first` to before `last`; returns how many.

    Of each there is the state, the one that it is found from, and the action that leads to it.
    DOES_NOT_FIT if a state is too wide for its words, STUCK if a guard of the machine does not hold
    in the last of the states that `sources` has.
    """
    base, between, after = works
    count = 0
    for index in range(first, last):
        unpack(setting, states[index], base)
        begin = count
        is_pending = False
        # arrivals
        for request in range(setting.requests):
            phase = base.phase[request]
            is_pending |= WAITING <= phase <= PAUSED
            has_left = phase == FINISHED or phase == ABORTED
            if phase == ABSENT or (has_left and setting.may_return[request]):
                copy(setting, base, after)
                arrive(after, request)
                actions[count] = (ARRIVE << ARGUMENT_BITS) | request
                if not pack(setting, after, found[count]):
                    return DOES_NOT_FIT
                count += 1
        # aborts
        for request in range(setting.requests):
            if setting.may_abort[request] and WAITING <= base.phase[request] <= PAUSED:
                copy(setting, base, after)
                abort(setting, after, request)
                actions[count] = (ABORT << ARGUMENT_BITS) | request
                if not pack(setting, after, found[count]):
                    return DOES_NOT_FIT
                count += 1
        # a step, and which of the requests that may end early in it do
        if is_pending:
            copy(setting, base, between)
            sampled = step(setting, between)
            may_end = 0
            for request in range(setting.requests):
                if (sampled >> request) & 1 and not has_all(setting, between, request):
                    may_end |= setting.may_end[request] << request
            ending = may_end
            while True:
                copy(setting, between, after)
                finish(setting, after, sampled, ending)
                actions[count] = (STEP << ARGUMENT_BITS) | ending
                if not pack(setting, after, found[count]):
                    return DOES_NOT_FIT
                count += 1
                if ending == 0:
                    break
                ending = (ending - 1) & may_end
            if between.at[IS_STUCK]:
                sources[0] = index
                return STUCK
        for edge in range(begin, count):
            sources[edge] = index
    return count
