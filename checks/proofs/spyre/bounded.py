"""Obligations about runs from the start: whatever three requests ask for, and whenever they come.

Lengths, limits, slots, arrivals, early ends and aborts are left to the solver, so these look where
no chosen instance does. The numbers that refute a claim are a workload.
"""

from collections.abc import Callable, Iterator, Sequence

from attrs import evolve, frozen

from checks.proofs.registry import Integer, Numbers, Statement, Verdict
from checks.proofs.spyre.agreement import OF_NUMERIC_MACHINE, of_machine
from checks.proofs.spyre.inductive import REQUESTS, any_clients, clients_are_servable
from checks.proofs.spyre.numeric_machine import (
    Client,
    Setting,
    StepResult,
    at_the_start,
    between,
    rule_of,
    step,
)
from checks.proofs.unshared import unshared
from spec.core.arithmetic import Truth
from spec.core.blocks import block_count
from spec.core.requests import Request
from spec.spyre.config import SpyreConfig
from spec.spyre.variants import ADMISSIONS, Admission


@frozen
class Bounds:
    """The longest prompt, the most tokens to generate and the largest limit, in tokens."""

    prompt_len: int
    max_tokens: int
    limit: int

    @property
    def in_words(self) -> str:
        """For the bounds of an obligation."""
        return (
            f"prompts up to {self.prompt_len} tokens, outputs up to {self.max_tokens}, limits up "
            f"to {self.limit}"
        )


ENOUGH_TO_FAIL = Bounds(prompt_len=4, max_tokens=3, limit=16)
TWO_CHUNKS = Bounds(prompt_len=5, max_tokens=3, limit=16)


@frozen
class Run:
    """Which runs are looked at: so many steps from the start under this configuration.

    `within`: how large the numbers may be; any size if absent.
    """

    steps: int
    admission: Admission
    block_size: int = 2
    chunk_size: int = 4
    interleave: bool = True
    within: Bounds | None = TWO_CHUNKS

    @property
    def in_words(self) -> str:
        """For the bounds of an obligation."""
        lengths = "all lengths and limits" if self.within is None else self.within.in_words
        return (
            f"every run of {self.steps} steps with {REQUESTS} requests that are not paused, blocks "
            f"enough, {lengths}, all arrivals, early ends and aborts; block {self.block_size}, "
            f"chunk {self.chunk_size}"
        )

    @property
    def where(self) -> str:
        """The keys of the configuration, as an obligation has them."""
        return f"admission={self.admission}, interleave={str(self.interleave).lower()}"

    @property
    def tops(self) -> dict[str, int]:
        """The largest value of each number; none if they may be of any size."""
        if self.within is None:
            return {}
        most = self.within
        length = most.prompt_len + most.max_tokens
        tops = {"limit": most.limit, "max_model_len": length, "max_num_seqs": REQUESTS}
        for index in range(REQUESTS):
            tops[f"prompt_len_{index}"] = most.prompt_len
            tops[f"max_tokens_{index}"] = tops[f"output_len_{index}"] = most.max_tokens
            # Whatever comes later than the last step never comes.
            tops[f"arrival_{index}"] = tops[f"abort_at_{index}"] = self.steps
        return tops

    def setting(self, integer: Integer) -> Setting:
        """The configuration, with limits to be chosen."""
        return Setting(
            block_size=self.block_size,
            chunk_size=self.chunk_size,
            interleave=self.interleave,
            limit=integer("limit"),
            max_num_seqs=integer("max_num_seqs"),
            max_model_len=integer("max_model_len"),
            rule=rule_of(self.admission),
            judged_first=ADMISSIONS[self.admission].is_judged_first(interleave=self.interleave),
        )

    def scenario(self, numbers: Numbers) -> tuple[SpyreConfig, list[Request]]:
        """The run of the reference that the numbers of a refutation describe."""
        clients = any_clients(numbers.__getitem__)
        sizes = [(client.prompt_len, client.max_tokens) for client in clients]
        requests = [
            evolve(one, output_len=own.output_len, arrival=own.arrival, abort_at=own.abort_at)
            for own, one in zip(clients, unshared(*sizes), strict=True)
        ]
        most = max(map(sum, sizes))
        config = SpyreConfig(
            block_size=self.block_size,
            chunk_size=self.chunk_size,
            interleave=self.interleave,
            admission=self.admission,
            max_batch_tkv_limit=numbers["limit"],
            max_num_seqs=min(numbers["max_num_seqs"], REQUESTS),
            max_model_len=numbers["max_model_len"],
            num_blocks=REQUESTS * block_count(most, self.block_size),
            prefix_caching=False,
        )
        return config, requests


def steps_of(steps: int, setting: Setting, clients: Sequence[Client]) -> Iterator[StepResult]:
    """The first steps of the run."""
    state = at_the_start(clients)
    for index in range(steps):
        result = step(setting, clients, between(clients, state, index))
        state = result.after
        yield result


def within_volume(setting: Setting, result: StepResult) -> Truth:
    """The step's volume is within the limit."""
    return result.volume <= setting.limit


def within_length(setting: Setting, result: StepResult) -> Truth:
    """The step's tkv is within the model length."""
    return result.tkv <= setting.max_model_len


def every_step_of(
    integer: Integer, run: Run, holds: Callable[[Setting, StepResult], Truth]
) -> Statement:
    """It holds of every step of every such run."""
    setting, clients = run.setting(integer), any_clients(integer)
    times = [moment >= 0 for one in clients for moment in (one.arrival, one.abort_at)]
    bounds = [integer(name) <= top for name, top in run.tops.items()]
    return Statement(
        [holds(setting, result) for result in steps_of(run.steps, setting, clients)],
        given=[*clients_are_servable(setting, clients), *times, *bounds],
        tops=run.tops,
    )


# --- obligations ---------------------------------------------------------------------------------

_VOLUME = "No run exceeds the volume limit under"


def _register(
    id_: str,
    sentence: str,
    run: Run,
    rules: Sequence[str],
    holds: Callable[[Setting, StepResult], Truth] = within_volume,
    *,
    is_refuted: bool = False,
    thorough: bool = False,
) -> None:
    of_machine(
        id_,
        sentence=sentence,
        where=f"{run.where}, {OF_NUMERIC_MACHINE}",
        bounds=run.in_words,
        rules=rules,
        expected=Verdict.REFUTED if is_refuted else Verdict.PROVEN,
        thorough=thorough,
        scenario=run.scenario if is_refuted else None,
        run=run,
        holds=holds,
    )(every_step_of)


_register(
    "PRV-RUN-1A",
    f"{_VOLUME} `documented` in its first 3 steps.",
    Run(3, Admission.DOCUMENTED, within=None),
    ["SPY-VOL-1"],
)
_register(
    "PRV-RUN-1B",
    f"{_VOLUME} `documented` in its first 4 steps.",
    Run(4, Admission.DOCUMENTED, within=ENOUGH_TO_FAIL),
    ["SPY-VOL-1"],
    is_refuted=True,
)
for _letter, _steps in (("A", 8), ("B", 12)):
    _register(
        f"PRV-RUN-2{_letter}",
        f"{_VOLUME} `exact` (head-on: no other obligation is built on).",
        Run(_steps, Admission.EXACT),
        ["SPY-VOL-1"],
        thorough=_letter == "B",
    )
_register(
    "PRV-RUN-3A",
    f"{_VOLUME} `shipped` with interleaving, even if no request is ever paused.",
    Run(7, Admission.SHIPPED),
    ["SPY-VOL-1", "SPY-PAU-6"],
)
_register(
    "PRV-RUN-3B",
    f"{_VOLUME} `shipped` without interleaving, if no request is ever paused.",
    Run(4, Admission.SHIPPED, interleave=False, within=Bounds(4, 2, 16)),
    ["SPY-PAU-6"],
    is_refuted=True,
)
_register(
    "PRV-RUN-4",
    "No run exceeds the model length under `exact`, whether or not it is whole blocks.",
    Run(4, Admission.EXACT, block_size=4, within=ENOUGH_TO_FAIL),
    ["SPY-LEN-1"],
    within_length,
    is_refuted=True,
)
