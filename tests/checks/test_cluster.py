"""Work on a cluster gives the answers of this machine, even when a worker dies."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from attrs import frozen

from checks.cluster import cluster_cores
from checks.cores import on_all_cores
from spec.core.errors import InputError
from tests.checks import command
from tests.checks.releases.repository import committed
from tests.lockstep.broken import TEMPLATE, broken

distributed = pytest.importorskip("distributed")

EXAMPLES = Path(__file__).parents[2] / "examples"
ITEMS = 8
PATIENCE_S = 120  # for processes of a busy machine to begin
_CLOCKED = ("seconds", "steps_per_second", "states_per_second", "bytes_per_state")


@frozen
class LoopbackCluster:
    """A scheduler and the pids of its workers, all processes on this machine."""

    address: str
    workers: tuple[int, ...]


def _process(stack: ExitStack, *words: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", "distributed.cli." + words[0], *words[1:]],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    stack.callback(process.wait)
    stack.callback(process.terminate)
    return process


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LoopbackCluster]:
    """One scheduler and two worker processes of one thread each."""
    with ExitStack() as stack:
        where = tmp_path / "scheduler.json"
        file = ("--scheduler-file", str(where))
        loopback = ("--host", "127.0.0.1", "--no-dashboard")
        _process(stack, "dask_scheduler", *file, *loopback, "--port", "0")
        until = time.monotonic() + PATIENCE_S
        while not where.exists():
            assert time.monotonic() < until
            time.sleep(0.05)
        options = (*loopback, "--nthreads", "1", "--no-nanny")
        space = ("--local-directory", str(tmp_path / "workers"))
        workers = [_process(stack, "dask_worker", *file, *options, *space) for _ in range(2)]
        address: str = json.loads(where.read_text())["address"]
        with distributed.Client(address, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=PATIENCE_S)
        yield LoopbackCluster(address, tuple(worker.pid for worker in workers))


def without_clocks(report: Any) -> Any:
    """The report without times and memory figures."""
    if isinstance(report, dict):
        kept = {key: value for key, value in report.items() if key not in _CLOCKED}
        return {key: without_clocks(value) for key, value in kept.items()}
    return [without_clocks(item) for item in report] if isinstance(report, list) else report


def answer(directory: Path, *arguments: str) -> tuple[int, Any, dict[str, bytes]]:
    """Exit code, report and all files that a command leaves in an empty directory."""
    directory.mkdir()
    words = [sys.executable, "-m", "lockstep", *arguments, "--json", "-"]
    done = subprocess.run(words, cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    files = {path.name: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    return done.returncode, without_clocks(json.loads(done.stdout)), files


@pytest.mark.thorough
@pytest.mark.parametrize(
    "words",
    [
        ("fuzz", "--episodes", "100", "--seed", "3"),
        ("conform", "template", "--episodes", "40"),
        ("explore", "--set", "policy=nano-vllm"),
        ("prove", "PRV-PAD"),
        ("run", str(EXAMPLES / "first.jsonl"), "--compare", "admission=exact,shipped,documented"),
        ("run", str(EXAMPLES / "first.jsonl"), "--compare", "policy=spyre,vllm-v0,nano-vllm"),
    ],
    ids=" ".join,
)
def test_a_cluster_gives_the_answer_of_this_machine(
    words: tuple[str, ...], cluster: LoopbackCluster, tmp_path: Path
) -> None:
    there = answer(tmp_path / "there", *words, "--on", cluster.address)
    assert there == answer(tmp_path / "here", *words)


def killed_once(mark: Path, pid: int, item: int) -> int:
    """The square; the worker `pid` dies the first time that it has a piece of work."""
    if os.getpid() == pid and not mark.exists():
        mark.touch()
        os.kill(pid, signal.SIGKILL)
    return item * item


def test_what_a_killed_worker_was_doing_is_done_elsewhere(
    cluster: LoopbackCluster, tmp_path: Path
) -> None:
    mark = tmp_path / "killed"
    work = partial(killed_once, mark, cluster.workers[0])
    with cluster_cores(cluster.address):
        outcomes = list(on_all_cores(work, range(ITEMS)))
    assert mark.exists()
    assert outcomes == [item * item for item in range(ITEMS)]


BUSY_S = 0.5  # of the processor: the worker is in the middle of a piece of work


@pytest.mark.thorough
@pytest.mark.parametrize(
    "words",
    [
        ("fuzz", "--episodes", "200", "--seed", "3"),
        ("conform", "template", "--episodes", "60"),
        ("explore", "--set", "policy=nano-vllm"),
        ("prove", "PRV-PAD", "PRV-VOL"),
        (
            *("run", str(EXAMPLES / "azure_sample.csv")),
            *("--compare", "admission=exact,shipped", "--compare", "queue=fcfs,aligned,overtaking"),
        ),
        (
            *("survey", "../repository/driver.py", "--git", "../repository"),
            *("HEAD~3..HEAD", "--episodes", "30"),
        ),
    ],
    ids=lambda words: words[0],
)
def test_a_command_whose_worker_is_killed_in_the_middle_gives_the_same_answer(
    words: tuple[str, ...],
    cluster: LoopbackCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    psutil = pytest.importorskip("psutil")  # of distributed
    monkeypatch.chdir(tmp_path)
    committed(TEMPLATE, broken("joins behind"), TEMPLATE, broken("a slot too many"))  # for survey
    worker = psutil.Process(cluster.workers[0])
    idle_s = worker.cpu_times().user
    there = tmp_path / "there"

    def kill_when_busy() -> None:
        until = time.monotonic() + PATIENCE_S
        while worker.cpu_times().user < idle_s + BUSY_S and time.monotonic() < until:
            time.sleep(0.02)
        worker.kill()

    killing = Thread(target=kill_when_busy)
    killing.start()
    answered = answer(there, *words, "--on", cluster.address)
    is_over = not killing.is_alive()
    killing.join()

    assert is_over  # it was killed before the command ended
    assert answered == answer(tmp_path / "here", *words)


def process_id(_item: int) -> int:
    """The process id of the worker."""
    return os.getpid()


def noted(directory: Path) -> None:
    """Leaves a file for each process."""
    (directory / str(os.getpid())).touch()


def test_each_worker_is_prepared_and_cleared(cluster: LoopbackCluster, tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    after.mkdir()
    with cluster_cores(cluster.address):
        pids = set(
            on_all_cores(process_id, range(ITEMS), partial(noted, before), partial(noted, after))
        )
    assert pids <= set(cluster.workers)
    workers = {str(pid) for pid in cluster.workers}
    assert {path.name for path in before.iterdir()} == workers
    assert {path.name for path in after.iterdir()} == workers
    assert set(on_all_cores(process_id, range(ITEMS))).isdisjoint(cluster.workers)


def test_an_address_that_does_not_answer_is_refused_in_a_line() -> None:
    ran = command.lockstep("fuzz", "--episodes", "5", "--on", "tcp://127.0.0.1:9")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    says = "lockstep: --on: found 'tcp://127.0.0.1:9'; allowed: a Dask scheduler"
    assert ran.err.startswith(says)


@pytest.mark.parametrize("address", ["127.0.0.1:8786", "http://127.0.0.1:8786", "tcp://here"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(InputError, match="allowed: tcp://HOST:PORT"), cluster_cores(address):
        pass


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match="extra `dask`"), cluster_cores("tcp://127.0.0.1:8786"):
        pass


@pytest.mark.thorough
def test_a_bound_of_time_does_not_go_to_a_cluster(cluster: LoopbackCluster) -> None:
    ran = command.lockstep("fuzz", "--time", "1", "--on", cluster.address)
    assert ran.code == 2
    assert "allowed: --episodes" in ran.err


# --- addresses where something else answers, or nothing -------------------------------------------


@pytest.mark.parametrize(
    "says", [b"", b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n"]
)
def test_an_address_that_is_silent_or_speaks_otherwise_is_refused_soon(
    says: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("checks.cluster._CONNECT_SECONDS", 0.5)
    began = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(says)
                time.sleep(1)

        thread = Thread(target=answer)
        thread.start()
        with pytest.raises(InputError, match="allowed: a Dask scheduler"), cluster_cores(address):
            pass
        assert time.monotonic() - began < 20
        thread.join()
