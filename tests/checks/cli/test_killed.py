"""Signals, memory limits and dying processes: exit code, one line, results kept, no leftovers.

Commands run in a session of their own, in which all processes that they start are found again.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from resource import RLIMIT_AS, setrlimit

import pytest
from attrs import frozen

ROOT = Path(__file__).parents[3]
PATIENCE_S = 60.0  # on a busy machine
CPU_S = 1.0  # after which a command is in the midst of its work

COMMANDS = {
    "run": ("run", "big.jsonl", "--trace", "t", "--json", "r"),
    "run, compared": ("run", "big.jsonl", "--compare", "admission=exact,shipped", "--json", "r"),
    "run, reference": (
        *("run", "big.jsonl", "--using", "reference", "--timeline", "t", "--json", "r"),
    ),
    "run, vllm-v1": ("run", "big.jsonl", "--set", "policy=vllm-v1", "--json", "r"),
    "explore": ("explore", "--json", "r"),
    "explore, one": ("explore", "exact, four requests", "--resume", "c", "--json", "r"),
    "explore, random walks": (
        *("explore", "exact", "--order", "random", "--max-depth", "50", "--time", "300"),
        *("--json", "r"),
    ),
    "fuzz": ("fuzz", "--time", "300", "--json", "r", "--resume", "c"),
    "fuzz, vllm-v1": (
        *("fuzz", "--policy", "vllm-v1", "--target", "reference", "--time", "300", "--json", "r"),
    ),
    "fuzz, a silent driver": ("fuzz", "--target", "silent.py", "--episodes", "9", "--json", "r"),
    "conform": ("conform", "template", "--time", "300", "--report", "p", "--json", "r"),
    "prove": ("prove", "--json", "r"),
    "mutants": ("mutants", "--policy", "spyre", "--json", "r"),
}
IN_ONE_PROCESS = {"run, reference", "run, vllm-v1", "explore, one", "explore, random walks"}
WITH_WORKERS = [name for name in COMMANDS if name not in IN_ONE_PROCESS]
SAMPLE = {"explore", "fuzz, a silent driver"}
SIGNALLED = {("explore", signal.SIGINT), ("fuzz, a silent driver", signal.SIGTERM)}  # fast tier
THOROUGH = pytest.mark.thorough

SILENT = """
import time
print('{"format": "lockstep-driver", "version": 1, "name": "silent", "release": "1"}', flush=True)
time.sleep(1000)
"""


def each(names: list[str]) -> pytest.MarkDecorator:
    """Parametrise by command: a sample in the fast tier, all in the thorough tier."""
    values = [pytest.param(name, marks=[] if name in SAMPLE else THOROUGH) for name in names]
    return pytest.mark.parametrize("name", values)


@frozen
class Process:
    """A process of a session: its number, its parent's, seconds of CPU that it has used."""

    id: int
    parent: int
    seconds: float


def processes(session: int) -> Iterator[Process]:
    """The running processes of the session."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent, _, found, *rest = path.read_text().rpartition(") ")[2].split()
            if int(found) == session and state != "Z":
                ticks = int(rest[7]) + int(rest[8])
                seconds = ticks / os.sysconf("SC_CLK_TCK")
                yield Process(int(path.parent.name), int(parent), seconds)


def until(is_so: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.05)


SESSIONS: list[int] = []  # of the test that runs


class Running:
    """A command that runs in the current directory, in a session of its own."""

    def __init__(self, *arguments: str, memory_bytes: int | None = None) -> None:
        code = "from checks.cli.main import main; main()"

        def prepare() -> None:
            # Tests that are started in the background of a script ignore SIGINT, those that are
            # started by nohup SIGHUP, and so would this.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            if memory_bytes is not None:
                setrlimit(RLIMIT_AS, (memory_bytes, memory_bytes))

        with Path("err").open("w", encoding="utf-8") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code, *arguments],
                stdout=subprocess.PIPE,
                stderr=err,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                start_new_session=True,
                preexec_fn=prepare,
            )
        self.session = self.process.pid
        SESSIONS.append(self.session)

    def is_in_the_midst(self) -> bool:
        """True once the command has used CPU time, in its workers if it has workers."""
        assert self.process.poll() is None, self.said
        used = {process.id: process.seconds for process in processes(self.session)}
        workers = [seconds for id_, seconds in used.items() if id_ != self.session]
        has_drivers = len(used) >= 5  # which may do nothing
        return has_drivers or used.get(self.session, 0) + sum(workers) > CPU_S

    def children(self) -> list[int]:
        return [process.id for process in processes(self.session) if process.parent == self.session]

    def workers(self) -> list[int]:
        """The child processes that are workers: neither drivers nor reapers."""
        own = Path(f"/proc/{self.process.pid}/cmdline").read_bytes()
        found = []
        for child in self.children():
            with suppress(OSError):
                if Path(f"/proc/{child}/cmdline").read_bytes() == own:
                    found.append(child)
        return found

    def ended(self) -> int:
        """The exit code, once the command and all its children have ended."""
        self.process.communicate(timeout=PATIENCE_S)
        until(lambda: not list(processes(self.session)), "processes are left")
        return self.process.returncode

    @property
    def said(self) -> str:
        return Path("err").read_text()


@pytest.fixture(autouse=True)
def _files() -> Iterator[None]:
    lines = (
        json.dumps({"id": str(n), "arrival": n, "prompt_len": 60 + n % 90, "max_tokens": 9})
        for n in range(20_000)
    )
    Path("big.jsonl").write_text("\n".join(lines))
    Path("silent.py").write_text(SILENT)
    yield
    while SESSIONS:  # of a test that failed
        for process in processes(SESSIONS.pop()):
            os.kill(process.id, signal.SIGKILL)


def outputs() -> dict[str, str]:
    """The files that commands write; none is written in part."""
    assert not list(Path().rglob("*.part"))
    return {name: Path(name).read_text() for name in ("r", "t", "p", "c") if Path(name).exists()}


# --- signals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "number"),
    [
        pytest.param(name, number, marks=[] if (name, number) in SIGNALLED else THOROUGH)
        for name in COMMANDS
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    ],
)
def test_signal_ends_all_soon_and_what_was_found_is_reported(name: str, number: int) -> None:
    running = Running(*COMMANDS[name])
    until(running.is_in_the_midst, "it does not begin")
    os.kill(running.process.pid, number)

    assert running.ended() == 3
    assert running.said.startswith("lockstep: incomplete: ended by SIG"), running.said
    assert running.said.count("\n") == 1
    written = outputs()
    if "r" in written:  # it is not, of a command that was about to begin
        assert json.loads(written["r"])["outcome"] == "incomplete"


@pytest.mark.thorough
def test_second_interrupt_ends_at_once() -> None:
    running = Running("run", "big.jsonl", "--using", "reference")
    until(running.is_in_the_midst, "it does not begin")
    for _ in range(2):
        os.kill(running.process.pid, signal.SIGINT)
        time.sleep(0.3)

    assert running.ended() == 3


# --- killed ---------------------------------------------------------------------------------------


@each([name for name in WITH_WORKERS if name != "fuzz, a silent driver"])
def test_killed_worker_is_a_failure_at_once(name: str) -> None:
    # What judges a run beside it is missed at the end of the run.
    short = ("--limit", "2500") if name.startswith("run") else ()
    running = Running(*COMMANDS[name], *short)
    until(lambda: len(running.workers()) > 0, "it does not begin with its workers")
    os.kill(max(running.workers()), signal.SIGKILL)

    code = running.ended()
    assert code == 4
    assert "lockstep: failed: a worker process " in running.said
    assert " was killed" in running.said
    assert "Traceback" not in running.said
    outputs()


@each(list(COMMANDS))
def test_killed_command_leaves_nothing_running_and_earlier_files_whole(name: str) -> None:
    for path in ("r", "t", "p"):
        Path(path).write_text("earlier\n")
    running = Running(*COMMANDS[name])
    until(running.is_in_the_midst, "it does not begin")
    os.kill(running.process.pid, signal.SIGKILL)

    assert running.ended() == -signal.SIGKILL
    assert {Path(path).read_text() for path in ("r", "t", "p")} == {"earlier\n"}
    if Path("c").exists():
        json.loads(Path("c").read_text())


def test_killed_command_leaves_no_driver_that_never_says_hello() -> None:
    Path("mute.py").write_text("import time; time.sleep(1000)")
    running = Running("fuzz", "--target", "mute.py", "--episodes", "9")
    until(lambda: len(running.children()) > 0, "it does not begin with its driver")
    os.kill(running.process.pid, signal.SIGKILL)

    assert running.ended() == -signal.SIGKILL


# --- memory ---------------------------------------------------------------------------------------


@each(list(COMMANDS))
def test_too_little_memory_is_a_failure_before_anything_runs(name: str) -> None:
    running = Running(*COMMANDS[name], memory_bytes=200 << 20)

    assert running.ended() == 4
    assert running.said == (
        "lockstep: failed: 200 MiB of memory are allowed (ulimit -v), 320 are needed\n"
    )
    assert not outputs()


def test_memory_that_is_used_up_on_the_way_is_a_failure() -> None:
    large = "--set", "num_blocks=4000000"  # 2 GB for the simulated device
    running = Running("run", "big.jsonl", *large, "--json", "r", memory_bytes=600 << 20)

    assert running.ended() == 4
    assert running.said.startswith("lockstep: failed: Unable to allocate ")
    assert running.said.count("\n") == 1
    assert json.loads(outputs()["r"])["outcome"] == "failed"
