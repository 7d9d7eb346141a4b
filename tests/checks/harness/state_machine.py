"""Hypothesis as the environment: it chooses arrivals, aborts, early ends and steps.

A failure prints a program, which runs as a test once the name of the class is imported.
"""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from checks.harness.case import Case
from checks.harness.comparing import Strictness, differences
from checks.harness.policy import evidence_of
from checks.harness.system import Action, InProcess, Scheduler, taken_by
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
    """Keys of a small configuration that can serve requests of `tokens` tokens."""
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
    tokens = max(request["prompt_parts"][0][1] + request["max_tokens"] for request in requests)
    return {"config": draw(configurations(tokens)), "requests": requests}


class Lockstep(RuleBasedStateMachine):
    """The reference and `system`, with the same actions."""

    system: InProcess

    @initialize(case=cases())
    def begin(self, case: dict[str, Any]) -> None:
        requests = tuple(map(request_of, case["requests"]))
        here = Case(SpyreConfig.from_mapping(case["config"]), requests)
        self.requests = [request.id for request in requests]
        self.reference = evidence_of("spyre").reference(here)
        self.other = self.system.start(here)
        self.coming = list(self.requests)
        self.index = 0

    @precondition(lambda self: self.coming)
    @rule()
    def arrive(self) -> None:
        """The next request."""
        newcomer = self.coming.pop(0)
        self.reference.arrive(newcomer)
        self.other.arrive(newcomer)

    @rule(request=st.integers(0, 5))
    def abort(self, request: int) -> None:
        """Abort an arrived request, which may have finished already."""
        arrived = self.requests[: len(self.requests) - len(self.coming)]
        if request < len(arrived):
            self.reference.abort(arrived[request])
            self.other.abort(arrived[request])

    @rule(ends=st.lists(st.sampled_from("012345"), max_size=2))
    def step(self, ends: list[str]) -> None:
        """Each of `ends` that samples now samples the end of sequence."""
        action = Action(ends=tuple(ends), time=float(self.index))
        expected, found = (taken_by(system, self.index, action) for system in self.both)
        self.index += 1
        look = evidence_of("spyre").compared[Strictness.EXACT]
        differ = [
            f"step {found.index}, {differing.field} {differing.place}: "
            f"{differing.expected!r}, found {differing.found!r}"
            for differing in differences(look, expected, found)
        ]
        assert not differ, "\n".join(differ)

    @property
    def both(self) -> tuple[Scheduler[Step], ...]:
        return self.reference, self.other

    def teardown(self) -> None:
        """To the end: all leave, and nothing is held."""
        while not self.reference.state.is_idle and self.index < MOST_STEPS:
            self.step([])
        assert self.reference.state.is_idle, f"no end after {self.index} steps"
        assert not self.reference.state.pool.references


def machine_of(system: InProcess) -> type[Lockstep]:
    """The state machine for a system."""
    return type("Lockstep", (Lockstep,), {"system": system})
