"""Drivers that misbehave: copies of the template, each wrong in its hello, answers or streams."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from textwrap import indent

from attrs import frozen

from checks.harness.driver.process import DRIVER_FILES

_TEMPLATE = (DRIVER_FILES / "template.py").read_text(encoding="utf-8")
_SERVE = "    serve(Toy)\n"


@frozen
class Misbehaving:
    """A driver, the allowed exit codes of a command with it, and a word of the output."""

    name: str
    does: str
    codes: tuple[int, ...]
    word: str

    def file(self, directory: Path) -> Path:
        """The driver's file in the directory, made now."""
        path = directory / "driver.py"
        text = _TEMPLATE.replace(_SERVE, indent(self.does, "    ") + "\n")
        path.write_text(text, encoding="utf-8")
        return path


def _hello(name: str, change: str, word: str) -> Misbehaving:
    return Misbehaving(f"hello: {name}", f"Toy.hello = {change}\nserve(Toy)", (2,), word)


def _with(**keys: str) -> str:
    entries = ", ".join(f"{key!r}: {value}" for key, value in keys.items())
    return f"{{**HELLO, {entries}}}"


def _record(name: str, change: str, word: str, codes: tuple[int, ...] = (2,)) -> Misbehaving:
    """Each record `r` is changed before it is answered."""
    does = (
        "class Spoilt(Toy):\n"
        "    def step(self, action):\n"
        "        r = super().step(action)\n"
        f"        {change}\n"
        "        return r\n"
        "serve(Spoilt)"
    )
    return Misbehaving(f"record: {name}", does, codes, word)


def _line(name: str, text: str, word: str, codes: tuple[int, ...] = (2,)) -> Misbehaving:
    """Each answer after the hello is this text; `f` is the output, `line` the question."""
    does = (
        "import json, sys, lockstep_driver\n"
        "f = lockstep_driver.protected_output()\n"
        "print(json.dumps(lockstep_driver.PROTOCOL | HELLO), file=f, flush=True)\n"
        "for line in sys.stdin:\n"
        "    if 'start' in line[:40]:\n"
        "        print('{\"started\": true}', file=f, flush=True)\n"
        "    else:\n"
        f"        print({text}, file=f, flush=True)"
    )
    return Misbehaving(f"line: {name}", does, codes, word)


def _streams(name: str, does: str, word: str, codes: tuple[int, ...] = (2,)) -> Misbehaving:
    return Misbehaving(f"streams: {name}", does, codes, word)


_GONE = (1, 2)  # the scheduler ended the process, or the driver did

_AFTER_HELLO = (
    "import json, os, subprocess, sys, time, lockstep_driver\n"
    "f = lockstep_driver.protected_output()\n"
    "print(json.dumps(lockstep_driver.PROTOCOL | HELLO), file=f, flush=True)\n"
)

MISBEHAVING = (
    _hello("version is true", _with(version="True"), "driver's version: found True"),
    _hello("a number too large", _with(config="{'num_blocks': [10**40]}"), "driver's line"),
    _hello("a name without end", _with(name="'y' * 10**6"), "driver's name: found"),
    _hello("half a character", _with(name="chr(0xd800)"), "driver's name: found"),
    _line("nonsense", "'nonsense'", "driver's line: found 'nonsense'"),
    _line("not a number", "'{\"steps\": NaN}'", "driver's line: found"),
    _line("too many digits", "'{\"steps\": ' + '1' * 5000 + '}'", "driver's line: found"),
    _line("deep", "'{\"steps\": ' + '[' * 9**5 + ']' * 9**5 + '}'", "driver's line: found"),
    _line("no steps", "'{}'", "driver's answer: found '{}'"),
    _line("steps without end", "'{\"steps\": ' + str([{}] * 10**5) + '}'", "driver's record"),
    _line("no end of line", "'x' * (2**26 + 9)", "", (2, 3)),
    _line("bytes that are no text", "'\\udcff'.encode('utf-8', 'replace')", "driver's line: found"),
    _record("no kind", "del r['kind']", "record of step 0, kind: found nothing"),
    _record("an odd kind", "r['kind'] = 'prefil'", "kind: found 'prefil'"),
    _record("1.0 for a count", "r['scheduled'] = {k: 1.0 for k in 'x'}", "scheduled.x: found 1.0"),
    _record("a request of its own", "r['waiting'] = ['mine']", "nothing named 'mine'"),
    _record("tensors", "r['tensors'] = 5", "tensors: found 5"),
    _record("finished is a text", "r['finished'] = 'x'", "finished: found 'x'"),
    _streams("closed output", _AFTER_HELLO + "f.close(); time.sleep(900)", "closed its", _GONE),
    _streams(
        "closed input",
        "import os; os.close(0)\n" + _AFTER_HELLO + "time.sleep(900)",
        "closed its",
        _GONE,
    ),
    _streams("ends", _AFTER_HELLO + "sys.exit('enough')", "enough", _GONE),
    _streams(
        "a child that stays",
        _AFTER_HELLO + "subprocess.Popen(['sleep', '900'])\nsys.exit('enough')",
        "enough",
        _GONE,
    ),
    _streams("does not read", _AFTER_HELLO + "time.sleep(900)", "did not", (3,)),
    _streams(
        "drips", _AFTER_HELLO + "while True: f.write('x'); f.flush(); time.sleep(.1)", "", (3,)
    ),
    _streams(
        "no end of errors",
        "import sys\nfor n in range(2000): sys.stderr.write('e' * 10**5)\nsys.exit('enough')",
        "enough",
    ),
    _streams("says nothing", "import time; time.sleep(900)", "did not answer", (3,)),
    _streams("exits at once", "raise SystemExit('no torch')", "no torch"),
)


# --- each misbehaviour at each moment -------------------------------------------------------------

_MOMENTS = ("hello", "start", "play", "later", "second start")
_SERVES = """\
import json, os, signal, subprocess, sys, time, lockstep_driver
f, toy, seen = lockstep_driver.protected_output(), Toy(), set()
def say(text):
    f.write(text + "\\n")
    f.flush()
def says(moment, answer):
    if moment == {moment!r}:
{does}
    else:
        say(json.dumps(answer))
says("hello", lockstep_driver.PROTOCOL | HELLO)
for line in sys.stdin:
    message = json.loads(line)
    do = message["do"]
    moment = ("later" if do == "play" else "second start") if do in seen else do
    seen.add(do)
    says(moment, lockstep_driver.answer(toy, message))
"""
_DOES = {
    "is silent": "time.sleep(900)",
    "closes its output": "f.close(); time.sleep(900)",
    "closes its input": "os.close(0); time.sleep(900)",
    "closes its streams": "f.close(); os.close(0); os.close(1); os.close(2); time.sleep(900)",
    "ends": "sys.exit(0)",
    "ends in an error": "raise ValueError('e' * 10**6)",
    "is killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "ends, a child goes on": "subprocess.Popen(['sleep', '900']); sys.exit('enough')",
    "a child has its streams": "os.fork() and os._exit(3); time.sleep(900)",
    "takes no signal": "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(900)",
    "stops itself": "os.kill(os.getpid(), signal.SIGSTOP)",
    "leaves its group": "os.setpgid(0, 0); sys.exit('gone')",
    "floods its errors": "for _ in range(99): sys.stderr.write('e' * 10**6)\nsys.exit('enough')",
    "floods its errors for ever": "while True: sys.stderr.write('e' * 10**6)",
    "floods its output": "while True: f.write('x' * 10**6)",
    "says lines for ever": "while True: say('{}')",
    "drips": "while True: f.write(' '); f.flush(); time.sleep(0.05)",
    "says it twice": "say(json.dumps(answer)); say(json.dumps(answer))",
    "says a part": "f.write(json.dumps(answer)[:-3]); f.flush(); sys.exit('enough')",
    "says it late": "time.sleep(0.3); say(json.dumps(answer))",
    "says nothing of it": "say('{}')",
    "says an empty line": "say('')",
    "says null": "say('null')",
    "says a list": "say('[1]')",
    "says no number": "say(json.dumps(answer)[:-1] + ', \"steps\": NaN}')",
    "says a number without end": "say(json.dumps(answer)[:-1] + ', \"steps\": 1e400}')",
    "says many digits": "say(json.dumps(answer)[:-1] + ', \"steps\": ' + '9' * 10**5 + '}')",
    "says it deep": "say('{\"steps\": ' + '[' * 10**6 + ']' * 10**6 + '}')",
    "says a long name": "say(json.dumps({**answer, 'name': 'n' * 10**6}))",
    "says bytes": "os.write(f.fileno(), bytes(range(128, 256)) + b'\\n')",
    "says half a character": 'say(\'{"name": "\\\\ud800", "error": "\\\\udfff"}\')',
    "takes over the terminal": 'say(\'{"name": "\\\\u001b[2J", "error": "\\\\u001b[2J"}\')',
    "says an error of numbers": 'say(\'{"error": {"type": 5, "message": [], "of": {}}}\')',
    "says an error": "say('{\"error\": 5}')",
    "says steps of an object": "say('{\"steps\": {}}')",
    "says many steps": "say('{\"steps\": ' + str([{}] * 10**5) + '}')",
}
_ODD = ("None", "5", "True", "1.5", "'x'", "[]", "{}", "[5]", "[None]", "{'x': [{}]}")
_IN_HELLO = ("format", "version", "name", "release", "policy", "config", "abilities", "left_out")
_IN_RECORD = (
    *("kind", "scheduled", "outputs", "finished", "waiting", "running", "paused", "prefilling"),
    *("decoding", "before", "blocks", "tensors", "free_list"),
)


def _combined() -> Iterator[Misbehaving]:
    """Each at each moment, and each field with each odd value."""
    for moment, (name, does) in product(_MOMENTS, _DOES.items()):
        served = _SERVES.format(moment=moment, does=indent(does, " " * 8))
        yield Misbehaving(f"{moment}: {name}", served, (0, 1, 2, 3), "")
    for field, odd in product(_IN_HELLO, _ODD):
        does = f"say(json.dumps({{**answer, {field!r}: {odd}}}))"
        served = _SERVES.format(moment="hello", does=indent(does, " " * 8))
        yield Misbehaving(f"hello: {field} is {odd}", served, (0, 1, 2, 3), "")
    for field, odd in product(_IN_RECORD, _ODD):
        yield _record(f"{field} is {odd}", f"r[{field!r}] = {odd}", "", (0, 1, 2, 3))


COMBINED = tuple(_combined())
