"""The vLLM V1 reference serving a case, which says what drafter and connector do."""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

from attrs import define, evolve, field, frozen

from checks.harness.case import Case
from checks.harness.reference import Reference
from checks.harness.speculation import foreseen
from checks.harness.system import Action
from checks.remembered import machine_remembering
from reference.vllm_v1.machine import VllmV1Machine
from reference.vllm_v1.step import Environment
from spec.core.records import Event
from spec.core.requests import Request
from spec.vllm_v1.config import VllmV1Config
from spec.vllm_v1.records import Load, Step
from spec.vllm_v1.records import Sequence as Row


@frozen
class External:
    """What a connector has of a request: its first `tokens`.

    An asynchronous load ends with a step whose number is a multiple of `every`. `fails`: nothing of
    it comes.
    """

    tokens: int
    every: int = 1
    fails: bool = False


def externals(case: Case) -> dict[str, External]:
    """What a connector has, by request, as the workload or what surrounds the scheduler says."""
    said = {one.id: External(one.external) for one in case.requests if one.external}
    drawn = case.surroundings.get("external", {})
    return said | {one: External(**has) for one, has in drawn.items()}


def accepted_drafts(config: VllmV1Config, request: Request, first: int, count: int) -> int:
    """How many drafts in place of `count` tokens, from the one numbered `first` on, are right.

    As the request says, else as configured.
    """
    if request.right_drafts is not None:
        return foreseen(request.right_drafts, first, count)
    return count if config.accepted_drafts is None else min(config.accepted_drafts, count)


@define
class VllmV1Reference(Reference):
    """The machine with a drafter and a connector."""

    external: Mapping[str, External] = field(init=False)
    right_drafts: Mapping[str, str] = field(init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.external = externals(self.case)
        self.right_drafts = self.case.surroundings.get("right_drafts", {})

    @staticmethod
    def of(case: Case) -> "VllmV1Reference":
        """The reference for a case.

        Raises:
            WorkloadError: a request that could never be served.
        """
        tokens = {one: has.tokens for one, has in externals(case).items()}
        machine = VllmV1Machine.of(case.config, case.requests, tokens)
        return VllmV1Reference(machine_remembering(machine), case)

    def surroundings(self, step: Step) -> dict[str, Any]:
        """What drafter and connector did in a step, as an action says it."""

        def named(transition: str) -> tuple[str, ...]:
            return tuple(event.id for event in step.happened(transition))

        return {
            "accepted": {one: count for one, count in step.accepted.items() if count},
            "loaded": named("loaded"),
            "lost": (*named("load_failed"), *named("lose_load")),
        }

    def with_leavers(self, step: Step, leaving: Sequence[str]) -> tuple[Step, tuple[str, ...]]:
        """The step once more, with those of these clients gone that can have left meanwhile."""
        present = {row.id for row in step.planned.present}
        leavers = tuple(one for one in leaving if one in present)
        if not leavers:
            return step, ()
        return self._as_the_case_says(step.index, step.time, leavers), leavers

    def _as_the_case_says(self, index: int, time: float, leavers: tuple[str, ...] = ()) -> Step:
        """One scheduler step, after the loads that end before it."""
        done = [one.id for one in self._loading() if self._load_ends(one, index)]
        done.sort(key=self._fails)  # an action names those that have come first
        ends = self.machine.ends_as_said
        environment = Environment(ends, self._accepted, self._fails, leavers)
        return self._stepped(done, self._fails, environment, index, time)

    def _taken(self, index: int, action: Action) -> Step:
        """One scheduler step with what the action says of drafter, connector and clients."""
        machine, named, lost = self.machine, (*action.loaded, *action.lost), frozenset(action.lost)
        ending, accepted = action.ends, action.accepted
        loading = {one.id for one in self._loading()}
        environment = Environment(
            machine.ends_as_said if ending is None else self._ends_in(ending, accepted or {}),
            self._accepts_as_said
            if accepted is None
            else lambda row, drafts: min(accepted.get(row.id, 0), drafts),
            lost.__contains__,
            action.abort_running,
        )
        if action.accepted is None:
            # Nothing is said: what the workload names has come, not as a client has only just left.
            loading -= {*action.abort}
            named = (*named, *(one for one in loading if machine.ctx.requests[one].external))
        done = [one for one in dict.fromkeys(named) if one in loading]
        step = self._stepped(done, lost.__contains__, environment, index, action.time)
        if action.ends is None:
            return step
        return evolve(step, ended=tuple(one for one in step.outputs if one in action.ends))

    def _accepts_as_said(self, row: Row, drafts: int) -> int:
        ctx = self.machine.ctx
        return accepted_drafts(ctx.config, ctx.requests[row.id], row.generated, drafts)

    def _ends_in(
        self, ending: Container[str], accepted: Mapping[str, int]
    ) -> Callable[[Row], bool]:
        """Whether a row of these ends: with its last token in the step, if not before as it says.

        `accepted`: drafts, by request, behind which it gets one token more.
        """
        had = {row.id: row.generated for row in self.state.present}
        requests = self.machine.ctx.requests

        def ends(row: Row) -> bool:
            last = had[row.id] + accepted.get(row.id, 0) + 1
            return row.id in ending and row.generated >= min(requests[row.id].end, last)

        return ends

    def _stepped(
        self, done: Iterable[str], fails: Any, environment: Environment, index: int, time: float
    ) -> Step:
        """The step after these loads have ended, which its events say, too."""
        state, ends = self.state, []
        for one in done:
            state = self.machine.end_load(state, one, fails(one))
            ends.append(Event("load_failed" if fails(one) else "loaded", one, ""))
        step: Step = self.machine.step(state, environment, index, time)
        return evolve(step, events=(*ends, *step.events))

    def _loading(self) -> list[Row]:
        rows = (*self.state.skipped, *self.state.draining)
        return [one for one in rows if one.load is Load.LOADING]

    def _load_ends(self, row: Row, index: int) -> bool:
        """True if its load ends before the step, but not where its client has only just left."""
        if self.machine.ctx.requests[row.id].abort_at == index:
            return False
        return index % self.external[row.id].every == 0

    def _fails(self, request_id: str) -> bool:
        """True if nothing of what the connector has comes."""
        return self.external[request_id].fails

    def _accepted(self, row: Row, drafts: int) -> int:
        """How many of its next drafts are right, before the first wrong one."""
        return foreseen(self.right_drafts.get(row.id, "0"), row.generated, drafts)
