"""One small episode that any driver can do: to see that it works, not that it is right.

Where its policy has no machine yet, a few requests are served and nothing is compared.
"""

import json
import subprocess
from collections.abc import Sequence

from attrs import evolve, frozen

from checks.harness.campaign import Plan
from checks.harness.case import Case
from checks.harness.driver.client import START_S, driver_environment
from checks.harness.driver.protocol import DriverError, played, read_line
from checks.harness.system import Json

_TRIES = 100
_FEW = 3  # requests
_STEPS = 40  # asked for at once; more than the requests below need of any scheduler
_TOKENS = {"a": (12, 3), "b": (5, 6), "c": (20, 1)}  # of prompt and output


def trial_case(plan: Plan) -> Case:
    """A few requests of the first plain case that has so many, at once, none of them aborted.

    With a model length that is no multiple of the block, releases do what is known of them.

    Raises:
        ConfigError: the driver can do no configuration.
    """
    cases = (one for one in map(plan.case, range(_TRIES)) if len(one.requests) >= _FEW)
    case = next(one for one in cases if one.config.max_model_len % one.config.block_size == 0)
    requests = tuple(evolve(one, arrival=0, abort_at=None) for one in case.requests[:_FEW])
    return evolve(case, requests=requests, swarm=None)


@frozen
class Tried:
    """How a small episode went.

    `hello`: the driver's first line; `fields`: of its records. `steps`: those in which something
    ran; `finished`: requests, a count; `failure`: what was raised, empty if nothing was.
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
    """Serve a few requests that come at once, with the driver's own defaults.

    Raises:
        DriverError: the driver does not speak the protocol.
    """
    play = {"do": "play", "steps": [{"arrive": list(_TOKENS)}, *({} for _ in range(_STEPS - 1))]}
    lines = [{"do": "start", "config": {}, "requests": _requests()}, play, {"do": "stop"}]
    done = subprocess.run(
        list(command),
        input="".join(f"{json.dumps(line)}\n" for line in lines),
        capture_output=True,
        text=True,
        timeout=START_S,
        env=driver_environment(),
        check=False,
    )
    answers = [read_line(line) for line in done.stdout.splitlines()]
    if len(answers) != len(lines):
        last = "\n".join(done.stderr.strip().splitlines()[-1:])
        allowed = f"{len(lines)}; it ended with {last!r}"
        raise DriverError("driver's answers", len(answers), allowed)
    hello, started, answer = answers
    if "error" in started:
        raise DriverError("driver's answer", started["error"], '{"started": true}')
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
