"""The vLLM V1 reference serving a case, with drafter and connector as in the case."""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

from attrs import define, evolve, field, frozen

from checks.harness.case import Case, External
from checks.harness.reference import Reference
from checks.harness.speculation import foreseen, proposed
from checks.harness.system import Action
from checks.remembered import machine_remembering
from reference.vllm_v1.machine import VllmV1Machine
from reference.vllm_v1.step import Environment
from spec.core.errors import WorkloadError
from spec.core.records import Event
from spec.core.requests import Request
from spec.vllm_v1.config import VllmV1Config
from spec.vllm_v1.records import Load, Step
from spec.vllm_v1.records import Sequence as Row


def externals(case: Case) -> dict[str, External]:
    """The external tokens by request, from the workload or the case's surroundings."""
    drawn = case.surroundings.get("external", {})
    own = (
        (row.id, {"tokens": row.external, "if_lost": row.external_if_lost}) for row in case.requests
    )
    held = {id_: External(**said | drawn.get(id_, {})) for id_, said in own}
    return {id_: external for id_, external in held.items() if external.tokens}


def accepted_drafts(config: VllmV1Config, request: Request, first: int, count: int) -> int:
    """The number of right drafts among `count`, for the output tokens from number `first` on.

    The request's `right_drafts` decide, else the configuration.
    """
    if request.right_drafts is not None:
        return foreseen(request.right_drafts, first, count)
    return count if config.accepted_drafts is None else min(config.accepted_drafts, count)


@frozen
class _Transfers:
    """What comes before a step: loads and sends that end, answered lookups, and grammars.

    `fails`: true for a request whose load is lost.
    """

    loaded: Iterable[str]
    fails: Callable[[str], bool]
    sent: Iterable[str]
    answered: Iterable[str]
    compiled: Iterable[str]


@define
class VllmV1Reference(Reference):
    """The machine with a drafter and a connector."""

    external: Mapping[str, External] = field(init=False)
    every_send: Mapping[str, int] = field(init=False)
    every_answer: Mapping[str, int] = field(init=False)
    every_grammar: Mapping[str, int] = field(init=False)
    right_drafts: Mapping[str, str] = field(init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.external = externals(self.case)
        self.every_send = self.case.times("sends")
        self.every_answer = self.case.times("answers")
        self.every_grammar = self.case.times("grammars")
        said = {row.id: row.right_drafts for row in self.case.requests if row.right_drafts}
        self.right_drafts = said | self.case.surroundings.get("right_drafts", {})

    @staticmethod
    def of(case: Case) -> "VllmV1Reference":
        """The reference for a case.

        Raises:
            WorkloadError: a request could never be served, or loses a load beside kv_groups.
        """
        held = externals(case).items()
        if case.config.kv_groups is not None and any(external.fails for _, external in held):
            raise WorkloadError("fails", True, "false with kv_groups")
        tokens = {id_: external.tokens for id_, external in held}
        if_lost = {id_: external.if_lost for id_, external in held}
        machine = VllmV1Machine.of(case.config, case.requests, tokens, if_lost)
        return VllmV1Reference(machine_remembering(machine), case)

    def surroundings(self, step: Step) -> dict[str, Any]:
        """The results of drafter and connector in a step, as keys of an action."""

        def named(transition: str) -> tuple[str, ...]:
            return tuple(event.id for event in step.happened(transition))

        return {
            "accepted": {id_: count for id_, count in step.accepted.items() if count},
            "proposed": dict(step.proposed),
            "loaded": named("loaded"),
            "lost": (*named("load_failed"), *named("lose_load")),
            "sent": named("sent"),
            "answered": named("answered"),
            "compiled": named("compiled"),
        }

    def with_leavers(self, step: Step, leaving: Sequence[str]) -> tuple[Step, tuple[str, ...]]:
        """The step again, in which the present ones of these requests leave; and their ids."""
        present = {row.id for row in step.planned.present}
        leavers = tuple(id_ for id_ in leaving if id_ in present)
        if not leavers:
            return step, ()
        return self._as_the_case_says(step.index, step.time, leavers), leavers

    def _as_the_case_says(self, index: int, time: float, leavers: tuple[str, ...] = ()) -> Step:
        """One scheduler step, after the loads and sends that end before it."""
        done = [row.id for row in self._loading() if self._load_ends(row, index)]
        done.sort(key=self._fails)  # an action names completed loads first
        ends = self.machine.ends_as_said
        environment = Environment(ends, self._accepted, self._proposed, self._fails, leavers)
        transfers = _Transfers(
            done,
            self._fails,
            [id_ for id_ in self._sending() if self._is_sent(id_, index)],
            [id_ for id_ in sorted(self.state.unanswered) if self._is_answered(id_, index)],
            [id_ for id_ in sorted(self.state.compiling) if self._is_compiled(id_, index)],
        )
        return self._stepped(transfers, environment, index, time)

    def _taken(self, index: int, action: Action) -> Step:
        """One scheduler step with drafter, connector and aborts as in the action."""
        machine, named, lost = self.machine, (*action.loaded, *action.lost), frozenset(action.lost)
        ending, accepted = action.ends, action.accepted
        loading = {row.id for row in self._loading()}
        environment = Environment(
            machine.ends_as_said if ending is None else self._end_predicate(ending, accepted or {}),
            self._accepts_as_said
            if accepted is None
            else lambda row, drafts: min(accepted.get(row.id, 0), drafts),
            self._proposed
            if accepted is None
            else lambda row, most: min(action.proposed.get(row.id, most), most),
            lost.__contains__,
            action.abort_running,
        )
        sending, sent, unanswered = self._sending(), action.sent, self.state.unanswered
        answered = action.answered if action.accepted is not None else unanswered
        compiling = self.state.compiling
        compiled = action.compiled if action.accepted is not None else sorted(compiling)
        if action.accepted is None:
            # By default the workload's external tokens have come, and what has left is sent, but
            # not of requests that were just aborted.
            loading -= {*action.abort}
            named = (*named, *(id_ for id_ in loading if machine.ctx.requests[id_].external))
            sent = (*sent, *(id_ for id_ in sending if id_ not in action.abort))
        sent = tuple(id_ for id_ in dict.fromkeys(sent) if id_ in sending)
        done = [id_ for id_ in dict.fromkeys(named) if id_ in loading]
        answered = [id_ for id_ in answered if id_ in unanswered]
        compiled = [id_ for id_ in compiled if id_ in compiling]
        transfers = _Transfers(done, lost.__contains__, sent, answered, compiled)
        step = self._stepped(transfers, environment, index, action.time)
        if action.ends is None:
            return step
        return evolve(step, ended=tuple(id_ for id_ in step.outputs if id_ in action.ends))

    def _accepts_as_said(self, row: Row, drafts: int) -> int:
        ctx = self.machine.ctx
        return accepted_drafts(ctx.config, ctx.requests[row.id], row.generated, drafts)

    def _end_predicate(
        self, ending: Container[str], accepted: Mapping[str, int]
    ) -> Callable[[Row], bool]:
        """A predicate: true for a row of `ending` after its last token, or earlier as it says.

        `accepted`: the number of accepted drafts by request; the row samples one token more.
        """
        had = {row.id: row.generated for row in self.state.present}
        requests = self.machine.ctx.requests

        def ends(row: Row) -> bool:
            last = had[row.id] + accepted.get(row.id, 0) + 1
            return row.id in ending and row.generated >= min(requests[row.id].end, last)

        return ends

    def _stepped(
        self, transfers: "_Transfers", environment: Environment, index: int, time: float
    ) -> Step:
        """The step after what the connector did before it, which are its first events."""
        state, ends = self.state, []
        for id_ in transfers.compiled:
            state = self.machine.compiled(state, id_)
            ends.append(Event("compiled", id_, ""))
        for id_ in transfers.answered:
            state = self.machine.answer(state, id_)
            ends.append(Event("answered", id_, ""))
        for id_ in transfers.loaded:
            fails = transfers.fails(id_)
            state = self.machine.end_load(state, id_, fails)
            ends.append(Event("load_failed" if fails else "loaded", id_, ""))
        for id_ in transfers.sent:
            state = self.machine.end_send(state, id_)
            ends.append(Event("sent", id_, ""))
        step: Step = self.machine.step(state, environment, index, time)
        return evolve(step, events=(*ends, *step.events))

    def _loading(self) -> list[Row]:
        rows = (*self.state.skipped, *self.state.draining)
        return [row for row in rows if row.load is Load.LOADING]

    def _is_answered(self, request_id: str, index: int) -> bool:
        return index % self.every_answer.get(request_id, 1) == 0

    def _is_compiled(self, request_id: str, index: int) -> bool:
        return index % self.every_grammar.get(request_id, 1) == 0

    def _sending(self) -> list[str]:
        return [row.id for row in self.state.draining if row.sending]

    def _is_sent(self, request_id: str, index: int) -> bool:
        """True if its blocks are sent before the step; False if the request was just aborted."""
        is_gone = self.machine.ctx.requests[request_id].abort_at == index
        return not is_gone and index % self.every_send.get(request_id, 1) == 0

    def _load_ends(self, row: Row, index: int) -> bool:
        """True if its load ends before the step; False if the request was just aborted."""
        if self.machine.ctx.requests[row.id].abort_at == index:
            return False
        return index % self.external[row.id].every == 0

    def _fails(self, request_id: str) -> bool:
        """True if the request's load is lost."""
        return self.external[request_id].fails

    def _accepted(self, row: Row, drafts: int) -> int:
        """The number of its next drafts before the first wrong one."""
        return foreseen(self.right_drafts.get(row.id, "0"), row.generated, drafts)

    def _proposed(self, row: Row, most: int) -> int:
        """The number of drafts for its next tokens."""
        return proposed(self.right_drafts.get(row.id, "0"), row.generated, most)
