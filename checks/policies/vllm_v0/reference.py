"""The vLLM V0 reference serving a case, with right speculated tokens from the case."""

from collections.abc import Mapping
from typing import Any

from attrs import define, evolve

from checks.harness.case import Case
from checks.harness.reference import Reference
from checks.harness.speculation import foreseen
from checks.harness.system import Action
from checks.remembered import machine_remembering
from reference.vllm_v0.decisions import Environment
from reference.vllm_v0.machine import VllmV0Machine
from spec.vllm_v0.records import Group, Step


@define
class VllmV0Reference(Reference):
    """The machine with speculated tokens."""

    @staticmethod
    def of(case: Case) -> "VllmV0Reference":
        """The reference for a case.

        Raises:
            WorkloadError: a request could never be served.
        """
        machine = VllmV0Machine.of(case.config, case.requests)
        return VllmV0Reference(machine_remembering(machine), case)

    def surroundings(self, step: Step) -> Mapping[str, Any]:
        """The number of right speculated tokens by request, as keys of an action."""
        if self.case.config.is_multi_step:
            return {}
        counts = {id_: len(tokens) - 1 for id_, tokens in step.sampled.items()}
        return {"accepted": {id_: count for id_, count in counts.items() if count}}

    def ends(self, step: Step) -> None:
        """Each sequence of a request ends where it says, by itself and within several steps."""

    def _as_the_case_says(self, index: int, time: float) -> Step:
        environment = Environment(self.machine.sequence_ends, self._right, _none)
        step: Step = self.machine.step(self.state, environment, index, time)
        return step

    def _taken(self, index: int, action: Action) -> Step:
        ends, accepted = action.ends, action.accepted
        environment = Environment(
            self.machine.sequence_ends if ends is None else lambda sequence: sequence.id in ends,
            self._right
            if accepted is None
            else lambda group, slots: min(accepted.get(group.id, 0), slots),
            _none,
        )
        step: Step = self.machine.step(self.state, environment, index, action.time)
        if ends is None:
            return step
        return evolve(step, ended=tuple(id_ for id_ in step.sampled if id_ in ends))

    def _right(self, group: Group, slots: int) -> int:
        """The number of the group's next speculated tokens before the first wrong one."""
        right = self.case.surroundings.get("right_drafts", {}).get(group.id, "0")
        return foreseen(right, group.generated, slots)


def _none(_group: Group) -> bool:
    """No group is preempted without a reason."""
    return False
