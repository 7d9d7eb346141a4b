"""The vLLM V1 machine serving a case, which says what drafter and connector do."""

from collections.abc import Collection
from typing import Any

from attrs import evolve, frozen

from checks.fuzz.cases import Case
from reference.vllm_v1.machine import VllmV1Machine
from reference.vllm_v1.step import Environment
from spec.core.records import Event
from spec.vllm_v1.records import Context, Load, Sequence, State, Step


@frozen
class ScriptedMachine:
    """The machine with a drafter and a connector, whose doings a case says."""

    machine: VllmV1Machine
    case: Case

    @staticmethod
    def of(case: Case) -> "ScriptedMachine":
        """The machine for a case.

        Raises:
            WorkloadError: a request that could never be served.
        """
        external = {one: has.tokens for one, has in case.external.items()}
        return ScriptedMachine(VllmV1Machine.of(case.config, case.requests, external), case)

    @property
    def ctx(self) -> Context:
        """What rules may look up."""
        return self.machine.ctx

    def initial(self) -> State:
        """Nobody has arrived."""
        return self.machine.initial()

    def arrive(self, state: State, request_id: str) -> State:
        """A request is handed in between two steps."""
        return self.machine.arrive(state, request_id)

    def abort(self, state: State, request_id: str) -> State:
        """A client goes away between two steps."""
        return self.machine.abort(state, request_id)

    def step(self, state: State, *, index: int, time: float, leavers: tuple[str, ...] = ()) -> Step:
        """One scheduler step, after the loads that end before it, which its events tell, too.

        Requests end where they say that they do; `leavers` go away while the model runs.
        """
        loading = (*state.skipped, *state.draining)
        done = [one.id for one in loading if self.load_ends(one, index)]
        done.sort(key=self.fails)  # an action names those that have come first
        for one in done:
            state = self.machine.end_load(state, one, self.fails(one))
        ends = (Event("load_failed" if self.fails(one) else "loaded", one, "") for one in done)
        environment = Environment(self.machine.ends_as_said, self.accepted, self.fails, leavers)
        step = self.machine.step(state, environment, index, time)
        return evolve(step, events=(*ends, *step.events))

    def load_ends(self, row: Sequence, index: int) -> bool:
        """True if its load ends before the step, but not where its client has only just left."""
        if row.load is not Load.LOADING or self.ctx.requests[row.id].abort_at == index:
            return False
        return index % self.case.external[row.id].every == 0

    def fails(self, request_id: str) -> bool:
        """True if nothing of what the connector has comes."""
        return self.case.external[request_id].fails

    def accepted(self, row: Sequence, drafts: int) -> int:
        """How many of its next drafts are right, before the first wrong one."""
        right = self.case.right_drafts.get(row.id, "0")
        places = range(row.generated, row.generated + drafts)
        wrong = (n for n, place in enumerate(places) if right[place % len(right)] == "0")
        return next(wrong, drafts)


def surroundings(step: Step) -> dict[str, Any]:
    """What drafter and connector did in a step, as an action says it."""

    def named(transition: str) -> tuple[str, ...]:
        return tuple(event.id for event in step.happened(transition))

    return {
        "accepted": {one: count for one, count in step.accepted.items() if count},
        "loaded": named("loaded"),
        "lost": (*named("load_failed"), *named("lose_load")),
    }


def leave(
    machine: ScriptedMachine, state: State, step: Step, leaving: Collection[str]
) -> tuple[Step, tuple[str, ...]]:
    """The step from a state once more, when of these clients all who are there leave meanwhile."""
    present = {row.id for row in step.planned.present}
    leavers = tuple(one for one in leaving if one in present)
    if not leavers:
        return step, ()
    again = machine.step(state, index=step.index, time=step.time, leavers=leavers)
    return evolve(again, aborted=step.aborted), leavers
