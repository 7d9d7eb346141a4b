"""Kill a command at random moments and restart it until it ends by itself."""

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from signal import SIGKILL
from time import sleep

from attrs import frozen

_COMMAND = (sys.executable, "-c", "from checks.cli.main import main; main()")


@frozen
class Ended:
    """The number of kills before a command ended by itself, and its output."""

    kills: int
    code: int
    out: str
    err: str


def killed_and_called_again(
    arguments: Sequence[object], *, kills: int, within_s: tuple[float, float], seed: int = 0
) -> Ended:
    """Restart a command until it ends by itself; kill each call at a random moment.

    The moment is counted from when the file to resume from is there, so that something was kept.
    Every other time by SIGTERM, which it can act upon; with all processes that it started.
    """
    random, killed = Random(seed), 0
    kept = Path(str(arguments[arguments.index("--resume") + 1]))
    while True:
        process = subprocess.Popen(
            [*_COMMAND, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        while not kept.exists() and process.poll() is None:
            sleep(0.01)
        patience = random.uniform(*within_s) if killed < kills else 600
        try:
            out, err = process.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            if killed % 2:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(20)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, SIGKILL)
            process.communicate()
            killed += 1
            continue
        return Ended(killed, process.returncode, out, err)
