"""Files from outside that are wrong in a place: refused with file and place, or judged; never more.

The fuzzer knows what the files are made of. Each kind is read by the command that it is for, in
this process; some are whole commands.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest
from attrs import frozen
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.checks.command import Ran, lockstep
from tests.checks.outside.mutations import mutated

ROOT = Path(__file__).parents[3]
TESTS = ROOT / "tests"
FILE = "FILE"  # which a command reads
MUTATIONS = int(os.environ.get("LOCKSTEP_MUTATIONS", "2000"))  # of each kind, thoroughly
_MOST_LINE = 1_000  # characters of a refusal
_SEEDS_BYTES = 30_000  # of a file that is changed


@frozen
class Kind:
    """A kind of file: files to begin with, and the command that reads one."""

    seeds: Callable[[], Sequence[bytes]]
    command: tuple[str, ...]
    fast: int = 40  # mutations in each run of the tests


def stored(*patterns: str) -> Callable[[], Sequence[bytes]]:
    """The files of the tests that are so named, none of them long."""

    def read() -> Sequence[bytes]:
        paths = sorted(path for one in patterns for path in TESTS.glob(one))
        return [path.read_bytes() for path in paths if path.stat().st_size < _SEEDS_BYTES]

    return read


def written(*command: str) -> Callable[[], Sequence[bytes]]:
    """What the command writes to its last argument."""

    def write() -> Sequence[bytes]:
        assert lockstep(*command, "written").code in (0, 1, 3)
        content = Path("written").read_bytes()
        Path("written").unlink()
        return [content]

    return write


def traces() -> Sequence[bytes]:
    """A trace of each policy, whole ones too, and counterexamples."""
    requests = [{"id": str(n), "prompt_len": n + 1, "max_tokens": 4} for n in range(3)]
    Path("w.jsonl").write_text("\n".join(map(json.dumps, requests)))
    found = [*stored("corpus/*.jsonl")()]
    for policy in ("spyre", "nano-vllm", "vllm-v0", "vllm-v1"):
        found += written("run", "w.jsonl", "--set", f"policy={policy}", "--trace")()
    return found


KINDS = {
    "recording, again": Kind(
        stored("recorded/*.jsonl"), ("conform", "template", "--case", FILE, "--recorded")
    ),
    "recording, as a page": Kind(stored("recorded/*.jsonl"), ("view", FILE, "--out", "p"), 15),
    "trace": Kind(traces, ("replay", FILE)),
    "trace, as a page": Kind(traces, ("view", FILE, "--out", "p"), 15),
    "checkpoint of explore": Kind(
        written("explore", "eviction", "--max-states", "20", "--resume"),
        ("explore", "eviction", "--max-states", "30", "--resume", FILE),
    ),
    "checkpoint of fuzz": Kind(
        written("fuzz", "--target", "reference", "--episodes", "2", "--resume"),
        ("fuzz", "--target", "reference", "--episodes", "2", "--resume", FILE),
    ),
    "report of explore": Kind(
        written("explore", "eviction", "--json"),
        ("explore", "eviction", "--max-states", "5", "--expect", FILE),
    ),
    "report of fuzz": Kind(
        written("fuzz", "--target", "reference", "--episodes", "1", "--json"),
        ("fuzz", "--target", "reference", "--episodes", "1", "--expect", FILE),
    ),
    "workload": Kind(lambda: [(ROOT / "examples/first.jsonl").read_bytes()], ("run", FILE)),
    "configuration": Kind(
        lambda: [(ROOT / "examples/first.toml").read_bytes()],
        ("run", str(ROOT / "examples/tiny.jsonl"), "--config", FILE),
    ),
}
every_kind = pytest.mark.parametrize("name", KINDS)


def must_be_refused_or_judged(ran: Ran, content: bytes) -> None:
    """The contract of all commands."""
    assert ran.code in (0, 1, 2, 3), (ran.err, content[:2_000])
    shown = ran.out + ran.err
    assert not any(one in shown for one in "\x00\x1b\u202e"), repr(shown)
    if ran.code == 2:
        line = ran.err.splitlines()[-1]
        assert line.startswith("lockstep: "), ran.err
        assert len(line) < _MOST_LINE, line
        assert FILE in line, line
    assert not list(Path().rglob("*.part"))


def tried(kind: Kind, seeds: Sequence[bytes], dice: Random) -> Ran:
    content = mutated(dice, dice.choice(seeds))
    Path(FILE).write_bytes(content)
    ran = lockstep(*kind.command)
    must_be_refused_or_judged(ran, content)
    return ran


@every_kind
def test_what_is_wrong_in_a_file_is_refused_or_judged(name: str) -> None:
    kind, codes = KINDS[name], Counter[int]()
    seeds = kind.seeds()
    for seed in range(kind.fast):
        codes[tried(kind, seeds, Random(seed)).code] += 1

    assert codes[2] >= kind.fast // 4  # it is wrong in places that matter


@pytest.mark.thorough
@every_kind
def test_the_fuzzer_of_files_finds_nothing(name: str) -> None:
    kind = KINDS[name]
    seeds = kind.seeds()

    @settings(
        max_examples=MUTATIONS,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
    @given(st.randoms(use_true_random=False))
    def finds_nothing(dice: Random) -> None:
        tried(kind, seeds, dice)

    finds_nothing()


@pytest.mark.thorough
@every_kind
def test_whole_commands_leave_nothing_behind(name: str) -> None:
    kind = KINDS[name]
    seeds = kind.seeds()
    for seed in range(200):
        dice = Random(10**6 + seed)
        content = mutated(dice, dice.choice(seeds))
        Path(FILE).write_bytes(content)
        limited = ("/bin/sh", "-c", 'ulimit -v 4000000; exec "$@"', "sh")
        done = subprocess.run(
            [*limited, sys.executable, "-m", "lockstep", *kind.command],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        must_be_refused_or_judged(Ran(done.returncode, done.stdout, done.stderr), content)
        assert "Traceback" not in done.stderr


# --- what must not happen again -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        (
            "recording, again",
            ('"strictness":', '"strictnes":'),
            "line 1: strictness: found nothing",
        ),
        ("recording, again", ('"judged":true', '"judged":1'), "line 1: judged: found 1"),
        ("recording, again", ('"kind":"decode"', '"kind":5'), "record.kind: found 5"),
        ("recording, again", ('"finished":[]', '"finished":{}'), "record.finished: found {}"),
        ("recording, again", ('"steps":', '"steps":-'), "outcome.steps: found -"),
        ("report of explore", ('"instances"', '"instance"'), "instances: found nothing"),
        ("checkpoint of explore", ('"taken": ', '"taken": -'), "taken: found -"),
        ("checkpoint of fuzz", ('"episodes": ', '"episodes": "x", "y": '), "content.episodes"),
        ("trace", ('"step":0', '"step":1e400'), "line: found"),
    ],
)
def test_the_place_is_named(name: str, change: tuple[str, str], says: str) -> None:
    kind = KINDS[name]
    seed = next(one for one in map(bytes.decode, kind.seeds()) if change[0] in one)
    Path(FILE).write_text(seed.replace(*change, 1))

    ran = lockstep(*kind.command)

    assert ran.code == 2, ran.err
    assert ran.err.startswith(f"lockstep: {FILE}")
    assert says in ran.err
