"""Codecs are derived from the record classes of a policy."""

import json

from attrs import evolve, frozen

from checks.export.trace.codec import Codec
from checks.export.trace.line import Past
from checks.harness.case import Case
from checks.harness.runs.serving import served
from spec.core.blocks import BlockPool
from spec.core.records import StepRecord
from spec.nano_vllm.config import NanoVllmConfig
from spec.nano_vllm.records import Sequence
from tests.requests import request


@frozen
class State:
    """A scheduler at rest, with a field that no other policy has."""

    pool: BlockPool
    waiting: tuple[Sequence, ...] = ()
    running: tuple[Sequence, ...] = ()
    finished: frozenset[str] = frozenset()
    aborted: frozenset[str] = frozenset()
    streak: int = 0

    @property
    def present(self) -> tuple[Sequence, ...]:
        return (*self.waiting, *self.running)

    @property
    def is_idle(self) -> bool:
        return not self.present


@frozen(kw_only=True)
class Step(StepRecord):
    """A step, with fields that no other policy has."""

    kind: str
    before: State
    after: State
    turned: tuple[str, ...] = ()
    load: float


CODEC: Codec[State, Step] = Codec(step=Step)


def test_fields_of_a_policy_are_written_and_read_without_a_word_in_its_codec() -> None:
    done = next(iter(served(Case(NanoVllmConfig(), (request("a", 3, 2),)))))
    before = State(done.before.pool, done.before.waiting, streak=1)
    after = State(done.after.pool, running=done.after.running, streak=2)
    step = Step(
        index=0,
        time=0.0,
        kind=done.kind,
        before=before,
        after=after,
        scheduled=done.scheduled,
        outputs={"a": (7,)},
        events=done.events,
        turned=("a",),
        load=0.5,
    )

    line = json.loads(json.dumps(CODEC.step_as_json(step, Past(), full=True)))

    assert (line["state"]["turned"], line["state"]["load"]) == (["a"], 0.5)
    assert line["state"]["after"]["streak"] == 2
    assert (line["running"], list(line["block_tables"]), line["arrived"]) == (["a"], ["a"], ["a"])
    assert CODEC.step_from_json(line, None) == step
    assert CODEC.step_from_json(line, None) != evolve(step, turned=())
