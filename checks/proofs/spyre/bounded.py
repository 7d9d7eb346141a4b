"""Obligations about runs from the start: whatever three requests ask for, and whenever they come.

Lengths, limits, slots, arrivals, early ends and aborts are chosen by whoever looks for a
violation, so these look where no chosen instance does. The numbers that refute a claim are a
workload.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from attrs import frozen

from checks.proofs.registry import (
    Integer,
    Numbers,
    Statement,
    Verdict,
    obligation,
)
from checks.proofs.spyre.inductive import (
    REQUESTS,
    any_clients,
    clients_are_servable,
)
from checks.proofs.spyre.machine import (
    Client,
    Machine,
    Move,
    Rule,
    Setting,
    documented,
    exact,
    nobody_yet,
    shipped,
)
from checks.proofs.spyre.symbolic import MACHINE
from spec.core.arithmetic import Truth, every
from spec.core.blocks import block_count
from spec.core.requests import Prompt, Request
from spec.spyre.config import SpyreConfig
from spec.spyre.variants import ADMISSIONS, Admission

_RULES: Mapping[Admission, Rule] = {
    Admission.EXACT: exact,
    Admission.DOCUMENTED: documented,
    Admission.SHIPPED: shipped,
}


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
            f"every run of {self.steps} steps with {REQUESTS} requests, {lengths}, all arrivals, "
            f"early ends and aborts; block {self.block_size}, chunk {self.chunk_size}"
        )

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
            rule=_RULES[self.admission],
            judged_first=ADMISSIONS[self.admission].is_judged_first(interleave=self.interleave),
        )


def moves_of(
    steps: int, setting: Setting, clients: Sequence[Client], machine: Machine = MACHINE
) -> Iterator[Move]:
    """The first steps of the run."""
    situation = nobody_yet(clients)
    for index in range(steps):
        move = machine.step(setting, clients, machine.between(clients, situation, index))
        situation = move.after
        yield move


def within_volume(setting: Setting, move: Move) -> Truth:
    """The step's volume is within the limit."""
    return move.volume <= setting.limit


def within_length(setting: Setting, move: Move) -> Truth:
    """The step's tkv is within the model length."""
    return move.tkv <= setting.max_model_len


def every_step_of(
    run: Run,
    holds: Callable[[Setting, Move], Truth],
    integer: Integer,
    machine: Machine = MACHINE,
) -> Statement:
    """It holds of every step of every such run."""
    setting, clients = run.setting(integer), any_clients(integer)
    times = [moment >= 0 for one in clients for moment in (one.arrival, one.abort_at)]
    bounds = [integer(name) <= top for name, top in run.tops.items()]
    moves = moves_of(run.steps, setting, clients, machine)
    return Statement(
        given=[*clients_are_servable(setting, clients), *times, *bounds],
        claim=every(holds(setting, move) for move in moves),
        tops=run.tops,
    )


# --- a refutation as a workload -----------------------------------------------------------------


def scenario_of(run: Run, numbers: Numbers) -> tuple[SpyreConfig, list[Request]]:
    """The run of the reference that the numbers describe."""
    requests = [_request(index, numbers) for index in range(REQUESTS)]
    most = max(one.prompt_len + one.max_tokens for one in requests)
    config = SpyreConfig(
        block_size=run.block_size,
        chunk_size=run.chunk_size,
        interleave=run.interleave,
        admission=run.admission,
        max_batch_tkv_limit=numbers["limit"],
        max_num_seqs=min(numbers["max_num_seqs"], REQUESTS),
        max_model_len=numbers["max_model_len"],
        num_blocks=REQUESTS * block_count(most, run.block_size),
        prefix_caching=False,
    )
    return config, requests


def _request(index: int, numbers: Numbers) -> Request:
    return Request(
        id=str(index),
        prompt=Prompt.of_stream(f"own:{index}", numbers[f"prompt_len_{index}"]),
        max_tokens=numbers[f"max_tokens_{index}"],
        output_len=numbers[f"output_len_{index}"],
        arrival=numbers[f"arrival_{index}"],
        abort_at=numbers[f"abort_at_{index}"],
    )


# --- obligations ---------------------------------------------------------------------------------


def _register(
    id_: str,
    sentence: str,
    run: Run,
    holds: Callable[[Setting, Move], Truth],
    rules: Sequence[str],
    *,
    is_refuted: bool = False,
    thorough: bool = False,
) -> None:
    obligation(
        id_,
        sentence,
        bounds=run.in_words,
        rules=rules,
        expected=Verdict.REFUTED if is_refuted else Verdict.PROVEN,
        thorough=thorough,
        scenario=partial(scenario_of, run) if is_refuted else None,
    )(partial(every_step_of, run, holds))


_VOLUME = "No run exceeds the volume limit under"
_register(
    "PRV-RUN-1A",
    f"{_VOLUME} `documented` in its first 3 steps.",
    Run(3, Admission.DOCUMENTED, within=None),
    within_volume,
    ["SPY-VOL-1", "SPY-VOL-2"],
)
_register(
    "PRV-RUN-1B",
    f"{_VOLUME} `documented` in its first 4 steps.",
    Run(4, Admission.DOCUMENTED, within=ENOUGH_TO_FAIL),
    within_volume,
    ["SPY-VOL-1"],
    is_refuted=True,
)
for _letter, _run in (
    ("A", Run(8, Admission.EXACT)),
    ("B", Run(12, Admission.EXACT)),
):
    _register(
        f"PRV-RUN-2{_letter}",
        f"{_VOLUME} `exact` (head-on: no other obligation is built on).",
        _run,
        within_volume,
        ["SPY-VOL-1", "SPY-VOL-4"],
        thorough=_letter == "B",
    )
_register(
    "PRV-RUN-3A",
    f"{_VOLUME} `shipped` with interleaving, even if nobody is ever paused.",
    Run(7, Admission.SHIPPED),
    within_volume,
    ["SPY-VOL-1", "SPY-VOL-3", "SPY-PAU-6"],
)
_register(
    "PRV-RUN-3B",
    f"{_VOLUME} `shipped` without interleaving, if nobody is ever paused.",
    Run(4, Admission.SHIPPED, interleave=False, within=Bounds(4, 2, 16)),
    within_volume,
    ["SPY-PAU-6"],
    is_refuted=True,
)
_register(
    "PRV-RUN-4",
    "No run exceeds the model length under `exact`, whether or not it is whole blocks.",
    Run(4, Admission.EXACT, block_size=4, within=ENOUGH_TO_FAIL),
    within_length,
    ["SPY-LEN-1"],
    is_refuted=True,
)
