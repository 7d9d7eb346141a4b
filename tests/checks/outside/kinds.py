"""The kinds of file that come from outside: their seeds, and the commands that read them."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

from attrs import frozen

from checks.cli.cost_file import write_cost
from checks.cli.envelope import make_report
from checks.cli.examples import EXAMPLES
from checks.cli.expect import expected_verdicts
from checks.harness.policy import evidence_of
from checks.harness.views.live import Live, offer
from checks.registry import POLICIES, claims_of
from lockstep.conforming import replay
from spec.core.errors import InputError
from tests.checks.command import Ran, lockstep, settings
from tests.checks.outside.here import drivers_here
from tests.engine.foreign_files import SAMPLES

TESTS = Path(__file__).parents[2]
FILE = "FILE"  # which a command reads
_SEED_BYTES = 30_000  # at most, of a file that is changed

Read = Callable[[], Ran]
Seeds = Callable[[], Sequence[bytes]]


@frozen(kw_only=True)
class Kind:
    """A kind of file. `place`: its path. `named`: part of the place that a refusal names, or None.

    `command`: the command that reads it; else `read` does. `fast`: mutations in the fast tier.
    """

    seeds: Seeds
    command: tuple[str, ...] = ()
    read: Read | None = None
    place: str = FILE
    named: str | None = FILE
    fast: int = 10

    def ran(self) -> Ran:
        """Read the file that is there now."""
        return lockstep(*self.command) if self.read is None else self.read()


# --- seeds ----------------------------------------------------------------------------------------


def stored(*patterns: str, root: Path = TESTS) -> Seeds:
    """The short files that match a pattern."""

    def read() -> Sequence[bytes]:
        paths = sorted(path for pattern in patterns for path in root.glob(pattern))
        return [path.read_bytes() for path in paths if path.stat().st_size < _SEED_BYTES]

    return read


def written(*command: str, suffix: str = "") -> Seeds:
    """The file that the command writes as its last argument, whose name it may give a suffix."""

    @cache
    def write() -> Sequence[bytes]:
        ran = lockstep(*command, "written")
        assert ran.code in (0, 1, 3), ran.err
        path = Path(f"written{suffix}")
        content = path.read_bytes()
        path.unlink()
        return [content]

    return write


def serving(policy: str) -> tuple[str, ...]:
    """The command that serves a few requests with a policy."""
    lines = [{"id": str(number), "prompt_len": number + 1, "max_tokens": 4} for number in range(3)]
    Path("w.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    sizes = settings("block_size=4", "max_model_len=64", "num_blocks=12")
    return "run", "w.jsonl", *settings(f"policy={policy}"), *sizes


def traces(*options: str, policies: Iterable[str] = POLICIES) -> Seeds:
    """A trace of each of these policies."""

    @cache
    def write() -> Sequence[bytes]:
        made = (written(*serving(policy), *options, "--trace")() for policy in policies)
        return [content for contents in made for content in contents]

    return write


@cache
def recordings() -> Sequence[bytes]:
    """The findings in the template when it counts a token too many."""
    with drivers_here(lambda line: line.replace(b'"generated": 2', b'"generated": 3')):
        assert lockstep("conform", "template", "--episodes", "2").code == 1
    return stored("*.jsonl", root=Path("findings"))()


@cache
def counterexamples() -> Sequence[bytes]:
    """Broken rules and runs that repeat for ever, of each policy."""
    instances = {
        "spyre": ("documented", "open, pausing, a single token"),
        "nano-vllm": ("all of it shared", "oversized", "open, a single token"),
        "vllm-v1": ("async load, priority", "sync load, gone", "open, priority"),
        "vllm-v0": ("released, forks", "open, priority, swap"),
    }
    for policy, names in instances.items():
        ran = lockstep("explore", *names, "--set", f"policy={policy}", "--out", "examples")
        assert ran.code == 1, ran.err
    return stored("*.jsonl", root=Path("examples"))()


def configurations() -> Sequence[bytes]:
    """An example, and a configuration of each policy that names every key."""
    made = [(EXAMPLES / "first.toml").read_bytes()]
    for policy in POLICIES:
        values = {"policy": policy, **claims_of(policy).config().as_mapping()}
        lines = (f"{key} = {json.dumps(value)}" for key, value in values.items())
        made.append("\n".join(lines).encode())
    return made


def calibrations() -> Sequence[bytes]:
    """As `lockstep calibrate` writes them."""
    cost = {"prefill_time": 0.004, "decode_time": 0.004, "per_row": 2e-4}
    write_cost(Path("cost.toml"), cost, "40 steps of vLLM 0.28.0; R² 0.99")
    return [Path("cost.toml").read_bytes()]


def workloads() -> Sequence[bytes]:
    """One that uses every key, and an example."""
    of_every_key = [
        {"id": "a", "arrival": 0, "prompt_len": 60, "max_tokens": 10, "priority": 1, "n": 1},
        {"id": "b", "arrival": 3, "prompt": [17, 17, 4, 9], "max_tokens": 17, "output_len": 9},
        {"id": "c", "prompt_parts": [["system", 128], ["c", 40]], "max_tokens": 4, "abort_at": 12},
        {"id": "d", "arrival_s": 0.7, "prompt_len": 12, "max_tokens": 3, "output": [5, 5, 8]},
        {"id": "e", "prompt_len": 9, "max_tokens": 6, "lora": 0, "right_drafts": "101"},
    ]
    own = "\n".join(map(json.dumps, [{"format": "lockstep-workload", "version": 1}, *of_every_key]))
    return [own.encode(), (EXAMPLES / "first.jsonl").read_bytes()]


def azure() -> Sequence[bytes]:
    """A few rows of such a trace."""
    rows = (f"2023-11-16 18:15:{second}.5000000,{second},4\n" for second in range(10, 16))
    return [("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(rows)).encode()]


def mooncake() -> Sequence[bytes]:
    """A few rows of such a trace."""
    rows = (
        {"timestamp": 27 * row, "input_length": 600, "output_length": 5, "hash_ids": [0, row]}
        for row in range(4)
    )
    return ["\n".join(map(json.dumps, rows)).encode()]


def of_other_tools() -> Sequence[bytes]:
    """A sample of each of their formats."""
    return [sample.text.encode() for sample in SAMPLES.values()]


def situations() -> Sequence[bytes]:
    """Those that the editor of live examples offers first."""
    offers = (json.loads(offer(name)) for name in POLICIES)
    return [json.dumps(instance).encode() for said in offers for instance in said["instances"][:6]]


def checkout() -> Sequence[bytes]:
    """The project file of a working tree."""
    return [b'[project]\nname = "p"\ndependencies = ["torch", "vllm>=0.26.0,<0.28.1"]\n']


def note() -> Sequence[bytes]:
    """The notes of the environments of a release and of a working tree."""
    done = {"release": RELEASE, "done": ["what it imports", "nano-vllm 0.0.2"]}
    return [json.dumps(done | more).encode() for more in ({}, {"checkout": "/tree", "begun": []})]


def report_of_mutants() -> Sequence[bytes]:
    """A report written by hand: to make one takes minutes."""
    content = {
        "seed": 0,
        "chosen": 2,
        "tried": 2,
        "stale": 0,
        "verdicts": {"spec/a.py:f 1": "noticed", "spec/a.py:f 2": "overlooked"},
        "scores": [{"room": "spec", "policy": "core", "mutants": 2, "explore": 1, "score": 0.5}],
    }
    return [json.dumps(make_report("mutants", 0, content)).encode()]


# --- readers that are no command ------------------------------------------------------------------


def compared() -> Ran:
    """As `lockstep mutants --expect` does, once all mutants were tried."""
    try:
        expected = expected_verdicts(FILE, "mutants", dict, lambda report: report["verdicts"])
    except InputError as error:
        return Ran(2, "", f"lockstep: {error}\n")
    return Ran(expected.compared({"spec/a.py:f 1": "noticed"}, lambda _: False).exit_code, "", "")


def replayed() -> Ran:
    """As a test of a finding does, by what the file names."""
    try:
        return Ran(int(not replay(FILE).holds), "", "")
    except InputError as error:
        return Ran(2, "", f"lockstep: {error}\n")


def opened() -> Ran:
    """As a live example does."""
    said = json.loads(Live().open(Path(FILE).read_text(encoding="utf-8", errors="replace")))
    return Ran(2, "", f"lockstep: {said['error']}\n") if "error" in said else Ran(0, "", "")


# --- the kinds ------------------------------------------------------------------------------------

RELEASE = "nano-vllm==0.0.2"
_OF_RELEASE = ("nano-vllm", "--versions", "0.0.2..0.0.2")
_EVICTION = ("explore", "eviction", "--max-states")
_COMPILED = ("explore", "eviction", "--using", "compiled", "--max-states")
_FUZZED = ("fuzz", "--target", "reference", "--episodes", "2")
_CONFORMED = ("conform", "template", "--episodes", "2")
_SURVEYED = ("survey", *_OF_RELEASE, "--episodes", "2")
_PROVED = ("prove", "PRV-DEF-2")
_TINY = str(EXAMPLES / "tiny.jsonl")


def _reports(*command: str, fast: int = 8) -> Kind:
    """Reports that later runs of the command are compared with."""
    return Kind(seeds=written(*command, "--json"), command=(*command, "--expect", FILE), fast=fast)


def _kept(*command: str) -> Kind:
    """Checkpoints, from which the command goes on."""
    return Kind(seeds=written(*command, "--resume"), command=(*command, "--resume", FILE))


KINDS: Mapping[str, Kind] = {
    "recording, again": Kind(
        seeds=stored("recorded/*.jsonl"),
        command=("conform", "template", "--case", FILE, "--recorded"),
        fast=20,
    ),
    "recording, by a driver": Kind(
        seeds=recordings, command=("conform", "template", "--case", FILE)
    ),
    "recording, made smaller": Kind(
        seeds=recordings, command=("conform", "template", "--case", FILE, "--shrink")
    ),
    "recording, on releases": Kind(
        seeds=stored("recorded/nano*.jsonl"),
        command=("bisect", FILE, "--driver", *_OF_RELEASE),
    ),
    "recording, as a page": Kind(
        seeds=stored("recorded/*.jsonl"), command=("view", FILE, "--out", "page")
    ),
    "recording, as a test": Kind(seeds=recordings, read=replayed),
    "trace": Kind(seeds=traces(), command=("replay", FILE), fast=20),
    "trace, on the engine": Kind(
        seeds=traces(policies=[policy for policy in POLICIES if evidence_of(policy).engine]),
        command=("replay", FILE, "--target", "engine"),
    ),
    "trace, whole states": Kind(
        seeds=traces("--full"), command=("replay", FILE, "--states", "--itf", "itf")
    ),
    "trace, as a page": Kind(seeds=traces("--full"), command=("view", FILE, "--out", "page")),
    "counterexample": Kind(seeds=counterexamples, command=("replay", FILE, "--itf", "itf")),
    "counterexample, by a driver": Kind(
        seeds=counterexamples, command=("replay", FILE, "--target", "template")
    ),
    "counterexample, as a page": Kind(
        seeds=counterexamples, command=("view", FILE, "--out", "page")
    ),
    "counterexample, as a test": Kind(seeds=counterexamples, read=replayed),
    "finding": Kind(seeds=stored("corpus/*.jsonl"), command=("replay", FILE)),
    "finding, as a page": Kind(
        seeds=stored("corpus/*.jsonl"), command=("view", FILE, "--out", "page")
    ),
    "states of explore": _kept(*_COMPILED, "20"),
    "checkpoint of explore": _kept(*_EVICTION, "20"),
    "checkpoint of fuzz": _kept(*_FUZZED),
    "checkpoint of conform": _kept(*_CONFORMED),
    "checkpoint of survey": Kind(
        seeds=written(*_SURVEYED, "--resume", suffix=".0.0.2"),
        command=(*_SURVEYED, "--resume", FILE),
        place=f"{FILE}.0.0.2",
    ),
    "report of explore": _reports(*_EVICTION, "5"),
    "report of prove": _reports(*_PROVED),
    "report of fuzz": _reports(*_FUZZED),
    "report of conform": _reports(*_CONFORMED),
    "report of survey": _reports(*_SURVEYED),
    "report of mutants": Kind(seeds=report_of_mutants, read=compared),
    "workload": Kind(seeds=workloads, command=("run", FILE), fast=20),
    "workload, explored": Kind(
        seeds=workloads, command=("explore", "--workload", FILE, "--max-states", "9")
    ),
    "workload of Azure": Kind(seeds=azure, command=("run", FILE)),
    "workload of Mooncake": Kind(seeds=mooncake, command=("run", FILE)),
    "workload of another tool": Kind(seeds=of_other_tools, command=("run", FILE)),
    "configuration": Kind(seeds=configurations, command=("run", _TINY, "--config", FILE), fast=20),
    "configuration, explored": Kind(
        seeds=configurations,
        command=("explore", "--config", FILE, "--workload", _TINY, "--max-states", "9"),
    ),
    "calibration": Kind(seeds=calibrations, command=("simulate", _TINY, "--cost", FILE)),
    "note of an environment": Kind(
        seeds=note,
        command=("driver", "list"),
        place="drivers/sendnn-tree-12345678/installed.json",
        named=None,
    ),
    "project of a checkout": Kind(
        seeds=checkout,
        command=("driver", "install", "sendnn", "--source", "tree", "--into", "none"),
        place="tree/pyproject.toml",
        named="",
    ),
    "live situation": Kind(seeds=situations, read=opened, named=""),
}
