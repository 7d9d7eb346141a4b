"""Files from outside that are wrong in a place are refused with file and place, or judged.

The fuzzer knows the structure of the files. Most files are read in the test process, some by whole
commands.
"""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pytest

from checks.cli.examples import EXAMPLES
from tests.checks.command import Ran
from tests.checks.outside.here import drivers_here, install
from tests.checks.outside.kinds import KINDS, RELEASE, Kind
from tests.checks.outside.memory import takes_less_than
from tests.checks.outside.mutations import mutated

ROOT = Path(__file__).parents[3]
STAND_IN = ROOT / "tests" / "checks" / "drivers" / "nano_stand_in"
MUTATIONS = int(os.environ.get("LOCKSTEP_MUTATIONS", "2700"))  # of each kind, thoroughly
COMMANDS = 60  # of each kind, that are whole
_MOST_LINE = 1_000  # characters of a refusal
_MOST_KB = 1_000_000

every_kind = pytest.mark.parametrize("name", KINDS)


@pytest.fixture(autouse=True)
def _releases(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("LOCKSTEP_DRIVERS", str(Path("drivers").absolute()))
    install(RELEASE)
    with drivers_here():
        yield


def must_be_refused_or_judged(kind: Kind, ran: Ran, content: bytes) -> None:
    """The contract of all commands."""
    assert ran.code in (0, 1, 2, 3), (ran.err, content[:2_000])
    shown = ran.out + ran.err
    assert not any(character in shown for character in "\x00\x1b\u202e"), repr(shown)
    if ran.code == 2:
        line = ran.err.splitlines()[-1]
        assert line.startswith("lockstep: "), ran.err
        assert len(line) < _MOST_LINE, line
        assert kind.named is not None, line
        place = line.partition(": found ")[0]
        assert any(name in place for name in (kind.named, "lockstep: --", str(EXAMPLES))), line
    assert not list(Path().rglob("*.part"))


def tried(kind: Kind, seeds: Sequence[bytes], dice: Random) -> Ran:
    """Read a file that is wrong in a place, with the contract checked."""
    content = spoilt(kind, seeds, dice)
    ran = kind.ran()
    must_be_refused_or_judged(kind, ran, content)
    return ran


def spoilt(kind: Kind, seeds: Sequence[bytes], dice: Random) -> bytes:
    """Write a file that is wrong in a place; returns its content."""
    content = mutated(dice, dice.choice(seeds))
    write(kind, content)
    return content


def write(kind: Kind, content: bytes) -> None:
    """Put a file of this kind in its place."""
    Path(kind.place).parent.mkdir(parents=True, exist_ok=True)
    Path(kind.place).write_bytes(content)


@every_kind
def test_what_is_wrong_in_a_file_is_refused_or_judged(name: str) -> None:
    kind, codes = KINDS[name], Counter[int]()
    seeds = kind.seeds()
    for seed in range(kind.fast):
        codes[tried(kind, seeds, Random(seed)).code] += 1

    if kind.named is not None:
        assert codes[2] >= kind.fast // 4  # it is wrong in places that matter


@pytest.mark.thorough
@every_kind
def test_a_fuzzer_of_files_finds_nothing(name: str) -> None:
    kind = KINDS[name]
    seeds = kind.seeds()
    with takes_less_than(_MOST_KB):
        for seed in range(kind.fast, kind.fast + MUTATIONS):
            tried(kind, seeds, Random(seed))


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.command])
def test_whole_commands_leave_nothing_behind(
    name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    kind, peak = KINDS[name], tmp_path_factory.mktemp("peak") / "kb"
    seeds = kind.seeds()
    for seed in range(COMMANDS):
        content = spoilt(kind, seeds, Random(10**6 + seed))
        limited = ("/bin/sh", "-c", 'ulimit -v 4000000; exec "$@"', "sh")
        done = subprocess.run(
            [*limited, sys.executable, "-m", "tests.checks.outside.peak", str(peak), *kind.command],
            env={**os.environ, "PYTHONPATH": str(ROOT), "LOCKSTEP_NANO_VLLM": str(STAND_IN)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        must_be_refused_or_judged(kind, Ran(done.returncode, done.stdout, done.stderr), content)
        assert "Traceback" not in done.stderr
        assert int(peak.read_text(encoding="utf-8")) < _MOST_KB


# --- regressions ----------------------------------------------------------------------------------


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
        (
            "checkpoint of conform",
            ('"not_evaluated": {', '"not_evaluated": {"x": "y",'),
            "content.not_evaluated: found 'x'",
        ),
        ("trace", ('"step":0', '"step":1e400'), "line: found"),
        ("recording, again", ('"positions":[', '"positions":["1",'), "positions[0]: found '1'"),
        ("recording, again", ('"length":[', '"length":[[],'), "length[0]: found []"),
        ("recording, by a driver", ('"block_size":16', '"block_size":64'), "can do no other"),
        ("recording, by a driver", ('"arrival":0', '"arrival":1000000'), "at most 100000 steps"),
        ("recording, again", ('"policy":"', '"policy":{},"x":"'), "config.policy: found {}"),
        ("recording, as a test", ("conform template", "conform x"), "DRIVER: found 'x'"),
        ("recording, made smaller", ('"set":{', '"set":{"sizes":1,'), "set: found 'sizes'"),
        ("recording, made smaller", ('"choices":', '"choices":[],"x":'), "choices: found ()"),
        ("states of explore", ('"chunk_size": 2', '"chunk_size": [2]'), "chunk_size: found [2]"),
        ("counterexample", ('"max_tokens":', '"max_tokens":99'), "1: prompt_len + max_tokens"),
        ("counterexample", ('"num_cpu_blocks":', '"num_cpu_blocks":99999999'), "num_cpu_blocks: f"),
        ("trace, on the engine", ('"max_num_seqs":', '"max_num_seqs":9999999'), "max_num_seqs: f"),
        ("finding", ('"target":"', '"target":"x'), "target: found 'x"),
        ("note of an environment", ('"/tree"', "[" * 9_000), ""),
        ("project of a checkout", ("<0.28.1", f"<{'9' * 5_000}"), "--source: found 'tree'"),
        ("live situation", ('"requests"', '"requests": 5, "x"'), "requests: found 5"),
        ("live situation", ('"config": {', f'"config": {{"{"9" * 5_000}": 1, '), "999…: found"),
        ("live situation", ('"requests"', f'"x": {"[" * 9_000}'), "situation: found"),
    ],
)
def test_the_place_is_named(name: str, change: tuple[str, str], says: str) -> None:
    kind = KINDS[name]
    old, new = map(str.encode, change)
    seed = next(seed for seed in kind.seeds() if old in seed)
    write(kind, seed.replace(old, new, 1))

    ran = kind.ran()

    if kind.named is None:
        assert (ran.code, ran.err) == (0, "")
    else:
        assert ran.code == 2, ran.err
        assert ran.err.startswith(f"lockstep: {kind.named}")
    assert says in ran.err


def test_a_full_trace_that_contradicts_itself_is_shown() -> None:
    kind = KINDS["trace, as a page"]
    seed = next(seed for seed in kind.seeds() if b"nano-vllm" in seed)
    write(kind, seed.replace(b'"transition":"admit","id":"0"', b'"transition":"admit","id":"x"', 1))

    ran = kind.ran()

    assert ran.code == 0, ran.err
    assert "cannot be judged: KeyError" in Path("page").read_text(encoding="utf-8")


def test_a_state_that_cannot_be_shown_is_refused() -> None:
    kind = KINDS["trace, as a page"]
    seed = next(seed for seed in kind.seeds() if b'"sequences":' in seed)
    write(kind, seed.replace(b'"sequences":', b'"sequences":[],"x":'))

    ran = kind.ran()

    assert ran.code == 2, ran.err
    assert ran.err.startswith("lockstep: FILE, line 2: state: found")


def test_a_record_that_our_device_cannot_follow_is_judged() -> None:
    record = (ROOT / "tests/recorded/vllm-v1-0.28.0-gone_in_their_order.jsonl").read_bytes()
    planned = record.index(b'"planned":')
    wrong = record[planned:].replace(b'"running":["9","10"]', b'"running":["10","10"]', 1)
    kind = KINDS["recording, again"]
    write(kind, record[:planned] + wrong)

    ran = kind.ran()

    assert ran.code == 1, ran.err
    assert "V1-ORD-4 is broken" in ran.out
