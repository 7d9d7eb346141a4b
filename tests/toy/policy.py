"""A toy: one queue, of which the first request is computed in a step, at most `limit` tokens."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from attrs import evolve, field, frozen

from checks.explore.instance import Instance
from checks.explore.policy import Machine
from checks.export.policy import Presentation
from checks.export.trace.codec import Codec
from checks.harness.case import Case
from checks.harness.comparing import compared_fields
from checks.harness.generating import generator_of
from checks.harness.policy import Engine, Evidence, plain_adapter, plain_reference
from checks.harness.system import Action
from checks.registry import Claims
from reference.core.block_pool import empty_pool
from reference.core.machine import ReferenceMachine
from spec.core import records
from spec.core.blocks import BlockPool
from spec.core.configuration import PolicyConfig, checked_keys
from spec.core.records import DECODE, IDLE, PREFILL, SomeSequence, SomeState, StepRecord, context_of
from spec.core.requests import Request
from spec.core.rule import Registry, Source
from tests.requests import request
from tests.toy.scheduler import Queue


@frozen(kw_only=True, field_transformer=checked_keys)
class ToyConfig(PolicyConfig):
    policy: str = "toy"
    limit: int = 3  # tokens


@frozen
class Row(SomeSequence):
    id: str
    computed: int = 0
    generated: int = 0


@frozen
class State(SomeState):
    pool: BlockPool = field(factory=lambda: empty_pool(()))
    waiting: tuple[Row, ...] = ()
    running: tuple[Row, ...] = ()
    finished: frozenset[str] = frozenset()
    aborted: frozenset[str] = frozenset()

    def without(self, name: str) -> "State":
        return evolve(self, waiting=tuple(row for row in self.waiting if row.id != name))


@frozen(kw_only=True)
class Step(StepRecord):
    kind: str
    before: State
    after: State


Context: TypeAlias = records.Context[ToyConfig]
RULES: Registry[ToyConfig, Context, State, Step] = Registry()


@RULES.of_step(
    "TOY-1",
    Source("toy", "The queue"),
    witness=lambda ctx, step: ctx.config.limit in step.scheduled.values(),
)
def _limited(ctx: Context, step: Step) -> Iterator[str]:
    """A step computes at most `limit` tokens, all of the first in the queue."""
    for name, tokens in step.scheduled.items():
        if tokens > ctx.config.limit or name != step.before.waiting[0].id:
            yield f"{tokens} tokens of {name}"


@frozen
class ToyMachine(ReferenceMachine[Context, State]):
    def initial(self) -> State:
        return State()

    def arrive(self, state: State, request_id: str) -> State:
        return evolve(state, waiting=(*state.waiting, Row(request_id)))

    def abort(self, state: State, request_id: str) -> State:
        return evolve(state.without(request_id), aborted=state.aborted | {request_id})

    def step(self, state: State, ends: Any = None, index: int = 0, time: float = 0.0) -> Step:
        step = Step(kind=IDLE, index=index, time=time, before=state, after=state)
        return self._computed(step, ends or self.ends_as_said) if state.waiting else step

    def _computed(self, step: Step, ends: Callable[[Row], bool]) -> Step:
        row, *others = step.before.waiting
        request = self.ctx.requests[row.id]
        kind = PREFILL if row.computed < request.prompt_len else DECODE
        left = request.prompt_len + row.generated - row.computed
        tokens = min(self.ctx.config.limit, left)
        sampled = row.generated + (tokens == left)
        after = evolve(row, computed=row.computed + tokens, generated=sampled)
        state = evolve(step.before, waiting=(after, *others))
        step = evolve(step, kind=kind, scheduled={row.id: tokens}, after=state)
        if tokens < left:
            return step
        step = evolve(step, outputs={row.id: [request.output_token(row.generated)]})
        if sampled < request.max_tokens and not ends(after):
            return step
        state = evolve(state.without(row.id), finished=state.finished | {row.id})
        return evolve(step, after=state, finished=(row.id,))


class ToyEngine:
    """The scheduler in this process."""

    def __init__(self, case: Case) -> None:
        ctx = context_of(case.config, case.requests)
        self.requests, self.decoder = ctx.requests, EVIDENCE.adapter.decoder(ctx)
        self.queue = Queue(case.config.limit)

    def arrive(self, request_id: str) -> None:
        self.queue.add(request_id, self.requests[request_id].prompt_len)

    def abort(self, request_id: str) -> None:
        self.queue.remove(request_id)

    def step(self, index: int, action: Action) -> Any:
        before = self.queue.state()
        record = self.queue.step(self._sample) | self.queue.state() | {"before": before}
        return self.decoder.step(record, action, index)

    def _sample(self, name: str, index: int) -> tuple[int, bool]:
        return self.requests[name].output_token(index), index + 1 == self.requests[name].end


TWO = Instance(
    name="two",
    about="two requests in one queue",
    config=ToyConfig(),
    requests=(request("0", 4, 2), request("1", 2, 2)),
    aborts=frozenset({"1"}),
    early_ends=frozenset({"0"}),
)


def reference(config: ToyConfig, requests: Iterable[Request]) -> ToyMachine:
    return ToyMachine(context_of(config, requests))


CLAIMS: Claims[ToyConfig, Context, State, Step] = Claims(
    config=ToyConfig, registry=RULES, step=Step
)
MACHINE: Machine[ToyConfig, Context, State] = Machine(of=reference, instances=(TWO,))
PRESENTATION: Presentation[ToyConfig, State, Step] = Presentation(codec=Codec(step=Step))
EVIDENCE: Evidence[ToyConfig, Context, Step] = Evidence(
    reference=plain_reference(reference),
    engine=Engine(start=ToyEngine),
    generate=generator_of(ToyConfig),
    compared=compared_fields(Step),
    adapter=plain_adapter(reference, PRESENTATION.codec),
)
PARTS: dict[str, Any] = {
    "claims": CLAIMS,
    "machine": MACHINE,
    "evidence": EVIDENCE,
    "presentation": PRESENTATION,
}
