"""Table of bad inputs: the input, the command, and a word of the message.

Files named FILE in a command are written before it runs, with the content that the table has.
"""

import json
from collections.abc import Iterator
from typing import Any

from attrs import frozen

_REQUEST = {"id": "0", "prompt_len": 1, "max_tokens": 4}


@frozen
class BadInput:
    """A refused command line: `word` is in its message, `content` is in its FILE."""

    name: str
    command: str
    word: str
    content: bytes | None = None


def bad_inputs() -> Iterator[BadInput]:
    """All rows of the table."""
    yield from _workloads()
    yield from _configurations()
    yield from _settings()
    yield from _traces()
    yield from _foreign_files()
    yield from _numbers()
    yield from _names()
    yield from _paths()
    for line, message in REFUSED.items():
        yield BadInput(line, line, message.partition("…")[0])
    for line in USAGE_ERRORS:
        yield BadInput(line, line, "")


# --- files ----------------------------------------------------------------------------------------


def _workloads() -> Iterator[BadInput]:
    """Invalid workloads; `tests/engine/test_workloads.py` has each field."""
    texts: dict[str, tuple[bytes, str]] = {
        "a bad field": (_lines(_REQUEST | {"prompt_len": 1.5}), "prompt_len"),
        "many sequences": (_lines(_REQUEST | {"n": 10**6}), "n"),
        "empty": (b"", "no request"),
        "blank lines": (b"\n \n\n", "no request"),
        "no JSON": (b"hello\n", "format"),
        "cut off": (b'{"id": "0", "prompt_len": 1, "max_', "JSON"),
        "not UTF-8": (b'{"id": "\xff"}\n', "UTF-8"),
        "UTF-16": ('{"id": "0"}'.encode("utf-16"), "UTF-8"),
        "NaN": (b'{"id": "0", "prompt_len": NaN, "max_tokens": 1}\n', "prompt_len"),
        "Azure without rows": (b"TIMESTAMP,ContextTokens,GeneratedTokens\n", "no request"),
        "Azure with words": (b"TIMESTAMP,ContextTokens,GeneratedTokens\nnow,many,few\n", "line 2"),
        "Azure with other columns": (b"TIMESTAMP,Tokens\n", "TIMESTAMP"),
        "binary": (bytes(range(256)), "format"),
        "an array": (b"[1, 2]", "[0]"),
        "a document that is cut off": (b'{\n "benchmarks": [', "line 2"),
        "a result without details": (b'{"request_throughput": 1.5}', "input_lens"),
    }
    for name, (content, word) in texts.items():
        yield BadInput(f"workload, {name}", "run FILE", word, content)
    for option in ("--format nothing", "--chars-per-token 0", "--output-len 0"):
        yield BadInput(f"workload, {option}", f"run w.jsonl {option}", option.split()[0][2:])
    yield BadInput(
        "explore a workload", "explore --workload FILE", "max_tokens", _lines({"id": "0"})
    )
    for format_ in ("azure", "mooncake", "guidellm"):
        line = f"run FILE --format {format_}"
        yield BadInput(f"own workload read as {format_}", line, "line 1", _lines(_REQUEST))


def _configurations() -> Iterator[BadInput]:
    """Invalid configuration files; `test_configuration.py` has more."""
    texts = {
        "unknown key": ("blocksize = 4", "blocksize"),
        "a number as policy": ("policy = 3", "policy"),
        "an unknown cost": ("[cost]\nper_request = 1", "per_request"),
        "no number as cost": ("[cost]\nper_row = nan", "per_row"),
        "a typo for another policy": ("[vllm-v1]\nblock_sise = 16", "block_sise"),
        "a typo for another policy, dotted": ("vllm-v0.nonsense = 1", "nonsense"),
        "endless nesting": ("x = " + "[" * 2_000, "line 1"),
        "a date": ("block_size = 2026-01-01", "block_size"),
    }
    for name, (text, word) in texts.items():
        command = "run w.jsonl --config FILE"
        yield BadInput(f"configuration, {name}", command, word, text.encode())
    yield BadInput("configuration, binary", "run w.jsonl --config FILE", "UTF-8", b"\xff\xfe\x00")
    yield BadInput("configuration, long", "run w.jsonl --config FILE", "short", b"#" * 2**21)


def _settings() -> Iterator[BadInput]:
    """Invalid settings."""
    settings = {
        "block_size=four": "block_size",
        "block_size=-4": "block_size",
        "block_size=1e3": "block_size",
        "block_size=99999999999999999999": "block_size",
        "vllm-v1.nonsense=3": "nonsense",
        "nano-vllm.=3": "key",
        "sglang.block_size=3": "key",
        "policy=sglang": "policy",
        "prefill_time=-1": "prefill_time",
        "prefill_time=inf": "prefill_time",
        "chunk_size=1000000000": "chunk_size",
        "num_blocks=1000000000": "num_blocks",
        "max_model_len=1000000000": "num_blocks",
    }
    for setting, word in settings.items():
        line = f"run w.jsonl --set {setting}"
        yield BadInput(line, line, word)
    yield BadInput("explore exact --set =4", "explore exact --set =4", "key=value")
    compared = {
        "admission=exact,bogus": "--compare admission",
        "admission": "--compare",
        "nonsense=1,2": "nonsense",
    }
    for setting, word in compared.items():
        line = f"run w.jsonl --compare {setting}"
        yield BadInput(line, line, word)


def _traces() -> Iterator[BadInput]:
    """Invalid traces; `tests/checks/export/test_reading.py` has each field."""
    header: dict[str, Any] = {
        "format": "lockstep-trace",
        "version": 1,
        "policy": "spyre",
        "source": "reference",
        "config": {"policy": "spyre"},
        "requests": [_REQUEST],
        "full": False,
    }
    changes: dict[str, tuple[dict[str, Any], str]] = {
        "another version": ({"version": 99}, "version"),
        "an unknown policy": ({"policy": "sglang", "config": {"policy": "sglang"}}, "policy"),
        "a pool that fits no memory": (
            {"config": {"policy": "spyre", "num_blocks": 10**12}},
            "num_blocks",
        ),
        "blocks that fit no memory": (
            {"policy": "nano-vllm", "config": {"policy": "nano-vllm", "block_size": 10**12}},
            "block_size",
        ),
        "an enormous request": ({"requests": [_REQUEST | {"prompt_len": 10**12}]}, "prompt_len"),
        "an action that is not possible": ({"actions": ["arrive 9"]}, "actions"),
    }
    for name, (change, word) in changes.items():
        yield BadInput(f"trace, {name}", "replay FILE", word, _lines(header | change))
    violation = {"violation": {"rule": "SPY-NO-1", "says": "", "found": ""}}
    yield BadInput("trace, an unknown rule", "replay FILE", "SPY-NO-1", _lines(header, violation))


def _foreign_files() -> Iterator[BadInput]:
    """Files of the wrong kind."""
    contents = {
        "empty": b"",
        "text": b"hello\n",
        "binary": bytes(range(256)),
        "another object": b'{"format": "something else", "version": 1}\n',
        "nesting without end": b"[" * 100_000,
    }
    readers = (
        "replay FILE",
        "conform template --case FILE",
        "bisect FILE --versions 2.5.0..2.6.0",
        "explore exact --resume FILE",
        "fuzz --resume FILE",
        "explore exact --expect FILE",
    )
    for name, content in contents.items():
        for command in readers:
            yield BadInput(f"{name}: {command}", command, "allowed", content)


# --- options --------------------------------------------------------------------------------------


def _numbers() -> Iterator[BadInput]:
    """Numbers out of range."""
    for value in ("nan", "inf", "-1", "0", "0.0005", "1e30", "soon"):
        yield BadInput(f"fuzz --time {value}", f"fuzz --time {value}", "--time")
    for command in ("explore exact", "prove PRV-PAD-1", "mutants", "conform template"):
        yield BadInput(f"{command} --time nan", f"{command} --time nan", "--time")
    counts = {
        "run w.jsonl --limit": ("0", "-1", "x", "1.5"),
        "run w.jsonl --rate": ("0", "-1", "x"),
        "run w.jsonl --asked": ("0.5", "-1", "x"),
        "explore exact --max-states": ("0", "many"),
        "explore exact --max-depth": ("0", "-2"),
        "explore exact --seed": ("x",),
        "fuzz --episodes": ("-1", "1e3"),
        "fuzz --seed": ("x",),
        "prove PRV-PAD-1 --seed": ("-1", "99999999999"),
        "mutants --sample": ("0", "x"),
    }
    for option, values in counts.items():
        for value in values:
            yield BadInput(f"{option} {value}", f"{option} {value}", option.split()[-1])
    for value in ("ttft", "ttft=", "ttft=nan", "ttft=0", "itl=1,itl=2", "speed=3"):
        yield BadInput(f"--slo {value}", f"run w.jsonl --slo {value}", "--slo")


def _names() -> Iterator[BadInput]:
    """Unknown names, unknown options, and options that exclude each other."""
    lines = {
        "replay": "FILE",
        "run w.jsonl more": "more",
        "run w.jsonl --using vllm": "--using",
        "run w.jsonl --format csv": "--format",
        "explore exact --order best": "--order",
        "explore exact --order random": "--order",
        "explore exact documented --resume x": "INSTANCE",
        "explore exact --expect nothing.json": "nothing.json",
        "fuzz --policy sglang": "policy",
        "fuzz --strictness some": "--strictness",
        "conform template --record": "--record",
        "survey sendnn --versions 1": "--versions",
        "survey nobody --versions 1..2": "nobody",
        "bisect": "CASE",
        "driver check nobody": "DRIVER",
        "mutants nothing-like-it": "PATTERN",
        "mutants --policy sglang": "--policy",
        "mutants --room kitchen": "--room",
        "replay t.jsonl --target nobody": "t.jsonl",
    }
    for line, word in lines.items():
        yield BadInput(line, line, word)


def _paths() -> Iterator[BadInput]:
    """Unreadable or unwritable files, outputs that are inputs, one file for two outputs."""
    for command in (
        *("run PATH", "run w.jsonl --config PATH", "explore --workload PATH", "replay PATH"),
        *("conform template --case PATH", "bisect PATH --versions 2.5.0..2.6.0"),
        *("conform template --workload PATH", "conform template --workload w.jsonl --config PATH"),
    ):
        for path in ("missing", "directory", "w.jsonl/inside", "x" * 300, "loop"):
            yield BadInput(f"{command}, {path[:20]}", command.replace("PATH", path), "lockstep: ")
    outputs = {
        "run w.jsonl": ("--trace", "--json", "--figures", "--timeline"),
        "explore exact": ("--json", "--graph", "--resume"),
        "conform template": ("--json", "--report"),
        "fuzz": ("--json", "--resume"),
        "replay w.jsonl": ("--itf", "--json"),
        "prove PRV-PAD-1": ("--json",),
        "rules": ("--json",),
        "mutants": ("--json",),
    }
    for command, options in outputs.items():
        for option in options:
            for path in ("missing/x", "directory", "x" * 300, "/sys/x"):
                line = f"{command} {option} {path}"
                yield BadInput(line[:60], line, "lockstep: ")
    for command, option in (("explore exact", "--out"), ("fuzz", "--corpus")):
        for path in ("w.jsonl", "w.jsonl/inside", "/sys/kernel"):
            line, says = f"{command} {option} {path}", path if path.startswith("/") else option
            yield BadInput(line, line, says)
    same = {
        "run w.jsonl --trace w.jsonl": "WORKLOAD",
        "run w.jsonl --json ./w.jsonl": "WORKLOAD",
        "run w.jsonl --trace link": "WORKLOAD",
        "run w.jsonl --config c.toml --json c.toml": "--config",
        "run w.jsonl --trace a --json a": "--trace",
        "run w.jsonl --figures a --timeline ./a": "--figures",
        "explore --workload w.jsonl --json w.jsonl": "--workload",
        "explore exact --resume a --json a": "--resume",
        "explore exact --expect r.json --json r.json": "--expect",
        "replay w.jsonl --itf w.jsonl": "FILE",
        "conform mine.py --json mine.py": "DRIVER",
        "conform mine.py --workload w.jsonl --json w.jsonl": "--workload",
        "fuzz --target mine.py --json mine.py": "--target",
        "fuzz --resume a --json a": "--resume",
    }
    for line, word in same.items():
        yield BadInput(line, line, word)


def _lines(*objects: Any) -> bytes:
    return "".join(f"{json.dumps(value)}\n" for value in objects).encode()


# --- exact messages -------------------------------------------------------------------------------

# The message of each, whole or up to the dots.
REFUSED = {
    "run directory": "cannot read directory: is a directory",
    "run broken.jsonl": (
        'broken.jsonl, line 1: line: found \'{"id": "1",\'; allowed: one JSON object; this is '
        "broken at column 12"
    ),
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
        "--compare: found 'interleave=true,false'; "
        "allowed: no --trace, --figures, --timeline or --bench"
    ),
    "run w.jsonl --set cost.per_token=1": (
        "--set cost.per_token: found 1; allowed: a key out of prefill_time, decode_time, "
        "per_chunk_token, per_row, per_cached_token, per_attended_token"
    ),
    "run w.jsonl --set policy=vllm-v1 --figures f.jsonl": (
        "--figures: found 'vllm-v1'; allowed: spyre, whose figures these are"
    ),
    "run w.jsonl --set policy=vllm-v0 --using engine": (
        "--using: found 'engine'; allowed: reference for vllm-v0, which has no engine"
    ),
    "explore nothing": "INSTANCE: found 'nothing'; allowed: layout; …",
    "explore layout --set policy=vllm-v1": "INSTANCE: found 'layout'; allowed: vllm-v1, fcfs; …",
    "explore exact --set max_batch_tkv_limit=8": (
        "prompt_len + max_tokens - 1 (its largest tkv): found 10; allowed: at most …"
    ),
    "rules SPY-VOL-9": "ID: found 'SPY-VOL-9'; allowed: SPY-VOL-…",
    "prove PRV-NOTHING": "OBLIGATION: found 'PRV-NOTHING'; allowed: PRV-…",
    "fuzz --time 1 --episodes 1": "--time: found 1.0; allowed: not together with --episodes",
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
    "conform unknown": "DRIVER: found 'unknown'; allowed: template, nano-vllm, …",
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
    "conform template --findings file/findings": (
        "--findings: found 'file/findings'; allowed: a directory, or what can become one"
    ),
    "driver install sendnn --version 1.0": "DRIVER: found 'sendnn==1.0'; allowed: template, …",
}

USAGE_ERRORS = (
    *("fly", "run", "run w.jsonl --nothing", "explore --max-states none", "fuzz --episodes 0"),
    *("fuzz --seed -1", "conform template --strictness some"),
)
