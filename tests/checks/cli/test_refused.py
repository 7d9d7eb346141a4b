"""Refused command lines: one message, exit code 2, no effect."""

import shlex
from pathlib import Path

import pytest

from tests.checks.command import lockstep

# What each is refused for, whole or up to the dots. In the directory are a file, a directory, a
# workload and a broken one; no driver is installed.
REFUSED = {
    "run directory": "cannot read directory: is a directory",
    "run w.jsonl --config directory": "cannot read directory: is a directory",
    "run broken.jsonl": (
        'broken.jsonl, line 1: line: found \'{"id": "1",\'; allowed: one JSON object; this is '
        "broken at column 12"
    ),
    "run w.jsonl --set chunk=64": "--set: key: found 'chunk'; allowed: policy, block_size, …",
    "run w.jsonl --set chunk_size=100": (
        "--set chunk_size: found 100; allowed: a multiple of block_size (64)"
    ),
    "run w.jsonl --set max_batch_tkv_limit=3": (
        "w.jsonl, line 1: prompt_len + max_tokens - 1 (its largest tkv): found 4; allowed: at most "
        "max_batch_tkv_limit (3)"
    ),
    "run w.jsonl --set max_model_len=4": (
        "w.jsonl, line 1: prompt_len + max_tokens: found 5; allowed: at most max_model_len (4)"
    ),
    "run w.jsonl --set block_size=1 --set num_blocks=4": (
        "w.jsonl, line 1: blocks of prompt_len + max_tokens: found 5; allowed: at most num_blocks "
        "(4)"
    ),
    "run w.jsonl --trace no/t.jsonl": "cannot write no/t.jsonl: no such file or directory",
    "run w.jsonl --slo ttft=2,tpot=1": (
        "--slo: bound: found 'tpot=1'; allowed: ttft=X, itl=X, e2e=X, each once"
    ),
    "run w.jsonl --slo ttft=soon": "--slo: ttft: found 'soon'; allowed: a number of time units",
    "run w.jsonl --slo itl=-1": "--slo: slo itl: found -1.0; allowed: time units above 0",
    "explore exact --record --max-states 5": (
        "--record: found 'a bound'; allowed: instances that are explored to the end"
    ),
    "explore exact --record --set max_num_seqs=1": (
        "--record: found 'exact'; allowed: default instances as they are"
    ),
    "run w.jsonl --compare admission=exact": (
        "--compare: comparison: found 'admission=exact'; allowed: key=one,other"
    ),
    "run w.jsonl --compare admission=exact,exact": (
        "--compare: admission: found 'exact,exact'; allowed: different values"
    ),
    "run w.jsonl --compare interleave=true,false --compare interleave=false,true": (
        "--compare: comparison: found 'interleave, interleave'; allowed: each key once"
    ),
    "run w.jsonl --compare chunk_size=4,5 --set block_size=4": (
        "--compare chunk_size: found 5; allowed: a multiple of block_size (4)"
    ),
    "run w.jsonl --compare interleave=true,false --timeline t.json": (
        "--compare: found 'interleave=true,false'; allowed: no --trace, --figures or --timeline"
    ),
    "run w.jsonl --set cost.per_token=1": (
        "--set cost.per_token: found 1; allowed: a key out of prefill_time, decode_time, "
        "per_chunk_token, per_row, per_cached_token, per_attended_token"
    ),
    **{
        f"run w.jsonl --set policy={policy} {option}": message
        for policy in ("nano-vllm", "vllm-v1")
        for option, message in {
            "--figures f.jsonl": (
                f"--figures: found '{policy}'; allowed: spyre, whose figures these are"
            ),
        }.items()
    },
    "run w.jsonl --set policy=vllm-v0 --using engine": (
        "--using: found 'engine'; allowed: reference for vllm-v0, which has no engine"
    ),
    "replay directory": "cannot read directory: is a directory",
    "explore nothing": "INSTANCE: found 'nothing'; allowed: layout; …",
    "explore layout --set policy=vllm-v1": "INSTANCE: found 'layout'; allowed: vllm-v1, fcfs; …",
    "explore exact --set max_batch_tkv_limit=8": (
        "prompt_len + max_tokens - 1 (its largest tkv): found 10; allowed: at most …"
    ),
    "rules SPY-VOL-9": "ID: found 'SPY-VOL-9'; allowed: SPY-VOL-…",
    "prove PRV-NOTHING": "OBLIGATION: found 'PRV-NOTHING'; allowed: PRV-…",
    "fuzz --time 1 --episodes 1": "--time: found 1.0; allowed: not together with --episodes",
    "fuzz --set pausing=maybe": "--set pausing: found 'maybe'; allowed: true or false",
    "fuzz --set colour=red": "--set: key: found 'colour'; allowed: policy, block_size, …",
    "fuzz --set pausing": "--set: setting: found 'pausing'; allowed: key=value",
    "fuzz --set pausing=true --set reservation=false": (
        "--set reservation: found False; allowed: true, where requests …"
    ),
    "fuzz --set block_size=3 --set chunk_size=4": (
        "--set chunk_size: found 4; allowed: a multiple of block_size (3)"
    ),
    "fuzz --policy vllm-v0": "system: found 'engine'; allowed: reference of vllm-v0",
    "fuzz --set max_model_len=1": "--set: found {'max_model_len': 1}; allowed: room for …",
    "fuzz --target unknown --episodes 2": "DRIVER: found 'unknown'; allowed: template, …",
    "fuzz --target reference --corpus file": (
        "--corpus: found 'file'; allowed: a directory, or what can become one"
    ),
    "conform nobody": "DRIVER: found 'nobody'; allowed: template, nano-vllm, …",
    "conform sendnn==1.0": "DRIVER: found 'sendnn==1.0'; allowed: template, sendnn==2.6.3…",
    "conform sendnn --time 5": (
        "DRIVER: found 'sendnn'; allowed: an installed driver; install it with: lockstep driver "
        "install sendnn"
    ),
    "conform template --time 5 --episodes 1": "--time: found 5.0; allowed: not together …",
    "conform template --recorded": "--recorded: found True; allowed: together with --case",
    "conform template --case no.jsonl": "cannot read no.jsonl: no such file or directory",
    "conform template --set block_size=64": (
        "--set block_size: found 64; allowed: 16, as toy 1.0 can do"
    ),
    "conform template --report no/page.md": "cannot write no/page.md: no such file or directory",
    "conform template --json no/r.json": "cannot write no/r.json: no such file or directory",
    "conform template --findings file/findings": (
        "--findings: found 'file/findings'; allowed: a directory, or what can become one"
    ),
    "driver install sendnn --version 1.0": "DRIVER: found 'sendnn==1.0'; allowed: template, …",
}

USAGE_ERRORS = (
    *("fly", "run", "run w.jsonl --nothing", "explore --max-states none", "fuzz --episodes 0"),
    *("fuzz --seed -1", "conform template --strictness some"),
)


@pytest.fixture(autouse=True)
def _files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_DRIVERS", "drivers")
    Path("file").touch()
    Path("directory").mkdir()
    Path("w.jsonl").write_text('{"id": "0", "prompt_len": 1, "max_tokens": 4}\n', encoding="utf-8")
    Path("broken.jsonl").write_text('{"id": "1", \n', encoding="utf-8")


def refusal(line: str) -> str:
    ran = lockstep(*shlex.split(line))
    assert (ran.code, ran.out) == (2, "")
    assert {path.name for path in Path().iterdir()} == {
        *("file", "directory", "w.jsonl", "broken.jsonl")
    }
    return ran.err


@pytest.mark.parametrize(("line", "message"), REFUSED.items(), ids=REFUSED)
def test_command_line_is_refused_in_one_line(line: str, message: str) -> None:
    said = refusal(line)

    beginning, cut, _ = message.partition("…")
    assert said.startswith(f"lockstep: {beginning}")
    assert said.count("\n") == 1
    assert cut or said == f"lockstep: {message}\n"


@pytest.mark.parametrize("line", USAGE_ERRORS)
def test_usage_error_shows_how_the_command_is_used(line: str) -> None:
    assert "Usage: lockstep" in refusal(line)
