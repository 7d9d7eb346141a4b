"""Hypothesis as the environment: who arrives, who goes away, who ends early, when to step.

What it prints on a failure is a program; with the name of the class imported it can be pasted into
a test.
"""

from typing import Any

from checks.fuzz.compare import differences
from checks.fuzz.reference import reference_target
from checks.fuzz.subjects import REFERENCE
from checks.fuzz.target import Subject
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from engine.workloads.own import request_of
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Step

MOST_STEPS = 2_000


@st.composite
def workloads(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Up to six requests as lines of a workload file; prompts share streams."""
    return [
        {
            "id": str(index),
            "prompt_parts": [[draw(st.sampled_from("abc")), draw(st.integers(1, 12))]],
            "max_tokens": draw(st.integers(1, 8)),
        }
        for index in range(draw(st.integers(1, 6)))
    ]


@st.composite
def configurations(draw: st.DrawFn, tokens: int) -> dict[str, Any]:
    """Keys of a small configuration that can serve requests of so many tokens."""
    block = draw(st.integers(1, 4))
    admission = draw(st.sampled_from(["exact", "documented", "shipped"]))
    pausing = draw(st.booleans())
    reserves = pausing or admission == "shipped"
    return {
        "block_size": block,
        "chunk_size": block * draw(st.integers(1, 3)),
        "max_model_len": tokens + draw(st.integers(0, 8)),
        "max_num_seqs": draw(st.integers(1, 4)),
        "max_batch_tkv_limit": tokens + draw(st.integers(0, 60)),
        "num_blocks": -(-tokens // block) + draw(st.integers(0, 20)),
        "interleave": not draw(st.booleans()),
        "prefix_caching": draw(st.booleans()),
        "admission": admission,
        "queue": draw(st.sampled_from(["fcfs", "overtaking"])),
        "reservation": reserves or not draw(st.booleans()),
        "pausing": pausing,
        "long_output_first": draw(st.booleans()),
    }


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """A configuration and requests that it can serve."""
    requests = draw(workloads())
    tokens = max(one["prompt_parts"][0][1] + one["max_tokens"] for one in requests)
    return {"config": draw(configurations(tokens)), "requests": requests}


class Lockstep(RuleBasedStateMachine):
    """The reference and `subject`, the same done to both."""

    subject: Subject = REFERENCE

    @initialize(case=cases())
    def begin(self, case: dict[str, Any]) -> None:
        self.config = SpyreConfig.from_mapping(case["config"])
        self.requests = list(map(request_of, case["requests"]))
        self.reference = reference_target(self.config, self.requests)
        self.target = self.subject.make(self.config, self.requests)
        self.coming = [request.id for request in self.requests]
        self.index = 0

    @precondition(lambda self: self.coming)
    @rule()
    def arrive(self) -> None:
        """The next request."""
        newcomer = self.coming.pop(0)
        self.reference.arrive(newcomer)
        self.target.arrive(newcomer)

    @rule(request=st.integers(0, 5))
    def abort(self, request: int) -> None:
        """Of one that has arrived; it may have left already."""
        arrived = self.requests[: len(self.requests) - len(self.coming)]
        if request < len(arrived):
            self.reference.abort(arrived[request].id)
            self.target.abort(arrived[request].id)

    @rule(ends=st.lists(st.sampled_from("012345"), max_size=2))
    def step(self, ends: list[str]) -> None:
        """Whoever of `ends` samples now samples the end of sequence."""
        expected = self.reference.step(self.index, float(self.index), ends)
        found = self.target.step(self.index, float(self.index), ends)
        self.index += 1
        self._compare(expected, found)

    def teardown(self) -> None:
        """To the end: all leave, and nothing is held."""
        while not self.reference.state.is_idle and self.index < MOST_STEPS:
            self.step([])
        assert self.reference.state.is_idle, f"no end after {self.index} steps"
        assert not self.reference.state.pool.references

    def _compare(self, expected: Step, found: Step) -> None:
        told = [
            f"step {found.index}, {one.field} {one.place}: {one.expected!r}, found {one.found!r}"
            for one in differences(expected, found, leaves_out=self.subject.leaves_out)
        ]
        assert not told, "\n".join(told)


def machine_of(subject: Subject) -> type[Lockstep]:
    """The state machine for another target."""
    return type("Lockstep", (Lockstep,), {"subject": subject})
