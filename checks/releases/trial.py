"""Trials of a driver: small episodes that show that it works.

If its policy has no machine yet, a few requests are served without a comparison.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing

from attrs import evolve, frozen

from checks.harness.campaigns.campaign import Plan
from checks.harness.case import Case
from checks.harness.driver.process import DriverGoneError, DriverProcess
from checks.harness.driver.protocol import DriverError, played, read_line
from checks.harness.system import Json

_DRAWN = 100
_FEW, _SEVERAL = 3, 4  # requests
_STEPS = 40  # of a trial; more than any scheduler needs for the requests below
_TOKENS = {"a": (12, 3), "b": (5, 6), "c": (20, 1)}  # of prompt and output


def trial_cases(plan: Plan) -> Iterator[Case]:
    """Random cases with few requests; in the first all arrive at once and none is aborted.

    Cases whose model length is a multiple of the block size are preferred, because releases show
    known differences in the others.

    Raises:
        ConfigError: the driver supports no drawn configuration.
    """
    drawn = [plan.case(number) for number in range(_DRAWN)]
    plain = [case for case in drawn if case.config.max_model_len % case.config.block_size == 0]
    case = max(plain or drawn, key=lambda case: min(len(case.requests), _FEW))
    requests = tuple(evolve(request, arrival=0, abort_at=None) for request in case.requests[:_FEW])
    yield evolve(case, requests=requests, swarm=None)
    yield from (
        other for other in plain or drawn if other is not case and len(other.requests) <= _SEVERAL
    )


@frozen
class Tried:
    """The result of a small episode.

    `hello`: the driver's first line. `fields`: the fields of its records. `steps`: the number of
    steps that computed tokens. `finished`: the number of finished requests. `failure`: the error
    that the driver raised, or empty.
    """

    hello: Json
    fields: tuple[str, ...]
    steps: int
    finished: int
    failure: str

    @property
    def worked(self) -> bool:
        """True if every request was served."""
        return not self.failure and self.finished == len(_TOKENS)


def try_unmodelled(command: Sequence[str]) -> Tried:
    """Serve a few requests that arrive at once, with the driver's own defaults.

    Raises:
        DriverError: the driver violates the protocol.
    """
    play = {"do": "play", "steps": [{"arrive": list(_TOKENS)}, *({} for _ in range(_STEPS - 1))]}
    with closing(DriverProcess(command)) as process:
        try:
            hello = read_line(process.hello())
            started = process.ask({"do": "start", "config": {}, "requests": _requests()})
            if "error" in started:
                raise DriverError("driver's answer", started["error"], '{"started": true}')
            answer = process.ask(play)
        except DriverGoneError as gone:
            raise DriverError(f"{command[-1]} does not run as a driver", str(gone), "") from None
    taken = played(answer)
    return Tried(
        hello=hello,
        fields=tuple(sorted({field for record in taken.records for field in record})),
        steps=sum(bool(record["scheduled"]) for record in taken.records),
        finished=sum(len(record["finished"]) for record in taken.records),
        failure="" if taken.failure is None else str(taken.failure),
    )


def _requests() -> list[Json]:
    """Prompts without a token in common; each request runs to its `max_tokens`."""
    return [
        {
            "id": name,
            "prompt": [100 * number + index for index in range(prompt)],
            "max_tokens": output,
            "output_len": output,
            "output": [1000 * number + index for index in range(output)],
        }
        for number, (name, (prompt, output)) in enumerate(_TOKENS.items(), start=1)
    ]
