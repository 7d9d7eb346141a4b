"""Judge a system by the rules and the simulated device alone, without a comparison.

The reference only decides when clients arrive and leave. So releases can be judged that no variant
of the reference describes. An error does not end the episode: each is noted in the first step that
shows it.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TypeAlias

from attrs import define, field

from checks.harness.comparing import Strictness
from checks.harness.driver.faults import play
from checks.harness.finding import FOR_EVER, Episode, Finding, Kind
from checks.harness.own_steps import OwnSteps, Wrong
from checks.harness.paths import AnyScript
from checks.harness.policy import evidence_of
from checks.harness.script import most_steps
from checks.harness.system import Action, Failure, Json, Step, System, Taken
from checks.words import counted
from spec.core.records import IDLE
from spec.core.requests import Request

Excused: TypeAlias = Callable[[str, Step], bool]
"""True if an error with this cause is expected in this step of the system."""


def judged_by_rules(
    system: System, script: AnyScript, excused: Excused = lambda _cause, _step: False
) -> Episode:
    """Serve the script's case until no request is left."""
    actions = [*script]
    last_arrival = max((at for at, action in enumerate(actions) if action.arrive), default=0)
    # No client acts after the script, but the system may need more steps than the reference.
    actions += [Action()] * (most_steps(script.case) - len(actions))
    episode, delivered = Episode(), _Given(script.ctx.requests)
    own = OwnSteps(system, script.case.config, script.ctx, episode, differs=True)
    for index, taken in enumerate(play(system, script.case, actions)):
        if isinstance(taken, Failure):
            episode.note(Finding(Kind.CRASH, episode.steps, taken.cause, str(taken)))
            break
        wrong = own.wrong(taken, actions[index])
        for cause, says, broken in chain(wrong, _wrong_totals(script, taken)):
            if excused(cause, taken.step):
                episode.expected[cause] += 1
                continue
            finding = Finding(Kind.BROKEN_RULE, episode.steps, cause, says, broken=broken)
            episode.note(finding)
        delivered.add(taken.step.outputs)
        episode.steps += 1
        is_idle = taken.step.kind == IDLE and taken.step.after.is_idle
        if is_idle and episode.steps > last_arrival + 1:
            break
    else:
        if episode.steps == len(actions):  # a recording may end before its requests
            says = f"a request still waits after {counted(episode.steps, 'step')}"
            episode.note(Finding(Kind.ENDLESS, episode.steps, FOR_EVER, says))
    episode.tokens = delivered.are_right
    return episode


@define
class _Given:
    """The tokens that requests got so far; `are_right`: all equal those of serving alone.

    `are_right` is None if a request has several sequences: their tokens are not compared.
    """

    requests: Mapping[str, Request]
    are_right: bool | None = True
    _counts: Counter[str] = field(factory=Counter)

    def __attrs_post_init__(self) -> None:
        if any(request.n > 1 for request in self.requests.values()):
            self.are_right = None

    def add(self, outputs: Mapping[str, Sequence[int]]) -> None:
        """Compare the tokens of the next step."""
        for request_id, tokens in outputs.items() if self.are_right else ():
            request, first = self.requests[request_id], self._counts[request_id]
            due = [request.output_token(first + place) for place in range(len(tokens))]
            self.are_right = self.are_right and due == [*tokens]
            self._counts[request_id] += len(tokens)


def _wrong_totals(script: AnyScript, taken: Taken) -> Iterator[Wrong]:
    """Reported block counts that differ from the block tables and the pool in the record."""
    before = {"blocks": taken.record.get("before", {}).get("blocks", {})}
    record: Json = {"blocks": taken.record.get("blocks", {}), "before": before}
    twice = evidence_of(script.case.config.policy).adapter.reported_twice
    for difference in twice(script.ctx, taken.step, record, Strictness.OBSERVABLE):
        name = difference.field.removeprefix("before.")
        counted, total = difference.found, difference.expected
        says = f"{name} is counted as {counted}, its requests and pool add up to {total}"
        yield f"count: {name}", says, ()
