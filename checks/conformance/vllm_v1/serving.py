"""The vLLM V1 machine serving a case, whose drafts are right or wrong whatever the schedule."""

from collections.abc import Collection, Mapping

from attrs import evolve, frozen

from checks.conformance import counterpart
from checks.fuzz.cases import Case
from reference.vllm_v1.machine import VllmV1Machine
from reference.vllm_v1.step import Environment, statistics
from spec.policies.vllm_v1_records import Context, Sequence, State, Step


@frozen
class DraftedMachine:
    """The machine with a drafter; `right_drafts` as a case says them."""

    machine: VllmV1Machine
    right_drafts: Mapping[str, str]

    @staticmethod
    def of(case: Case) -> "DraftedMachine":
        """The machine for a case.

        Raises:
            WorkloadError: a request that could never be served.
        """
        machine = VllmV1Machine.of(case.config, case.requests)
        return DraftedMachine(machine, case.right_drafts)

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

    def step(self, state: State, *, index: int, time: float) -> Step:
        """One scheduler step; requests end where they say that they do."""
        environment = Environment(self.machine.ends_as_said, self.accepted)
        return self.machine.step(state, environment, index, time)

    def accepted(self, row: Sequence, drafts: int) -> int:
        """How many of its next drafts are right, before the first wrong one."""
        right = self.right_drafts.get(row.id, "0")
        places = range(row.generated, row.generated + drafts)
        wrong = (n for n, place in enumerate(places) if right[place % len(right)] == "0")
        return next(wrong, drafts)


def without(step: Step, after: State, leavers: Collection[str]) -> Step:
    """The step, when the clients of these requests left while it ran; statistics come last."""
    cut: Step = counterpart.without(step, after, leavers)
    return evolve(cut, statistics=statistics(after))
