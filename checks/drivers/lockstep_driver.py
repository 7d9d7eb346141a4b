"""What drivers share: the line protocol of Lockstep, and what a request samples.

A driver is a class with a `hello` and a few methods, and `serve` does the rest:

    from lockstep_driver import Driver, serve

    class Mine(Driver):
        hello = {"name": "mine", "release": "mine 1.2"}
        ...

    serve(Mine)

`template.py` is a complete example. The standard library is all that is needed, of Python 3.9 or
later, for this file runs in the environments of released schedulers. `lockstep` has its directory
on the `PYTHONPATH` of every driver that it starts, wherever the driver's own file is. The chapter
on drivers describes each line and field.
"""

from __future__ import annotations

import gc
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

Json = dict[str, Any]

END_OF_SEQUENCE = 2**31 - 2  # sampled where a request is to end; never part of a record
PROTOCOL: Json = {"format": "lockstep-driver", "version": 1}


class Driver:
    """A scheduler that takes steps, one episode after the other.

    Made once in a process, by `serve`. `step` calls `arrive`, `abort`, `state` and `run` in their
    order; a driver may have its own `step` instead, and then none of them.

    `hello`: the first line, without format and version. `requests`: those of the episode, by id.
    `tensors`: whether its records shall have what the device was given. `not_configured`: keys of
    the configuration that may be left to the scheduler, which must come to the same values.
    `action`: what the environment does around this step. `under_test`: the scheduler, classes and
    names of modules: an error raised in them is the scheduler's, any other one the driver's.
    """

    hello: Json
    under_test: tuple[type | str, ...] = ()
    requests: dict[str, Json]
    tensors: bool
    not_configured: list[str]
    action: Json

    def start(self, config: Json) -> None:
        """Begin an episode with a fresh scheduler; none of its requests has arrived yet."""
        raise NotImplementedError

    def arrive(self, request_id: str) -> None:
        """Hand a request to the scheduler."""
        raise NotImplementedError

    def abort(self, request_id: str) -> None:
        """The client of a request leaves between two steps."""
        raise NotImplementedError

    def run(self) -> Json:
        """One step of the scheduler and of what stands for the model; the step's own fields.

        They replace fields of the state that have the same name.
        """
        raise NotImplementedError

    def state(self) -> Json:
        """The scheduler at rest: queues, requests and blocks, as a record has them."""
        raise NotImplementedError

    def change(self) -> bool:
        """What happens between two steps: arrivals, then aborts; true if there were any."""
        arriving, leaving = self.action.get("arrive", ()), self.action.get("abort", ())
        for request_id in arriving:
            self.arrive(request_id)
        for request_id in leaving:
            self.abort(request_id)
        return bool(arriving or leaving)

    def step(self, action: Json) -> Json:
        """Arrivals and aborts, then one step; its record."""
        self.action = action
        before = {"before": self.state()} if self.change() else {}
        done = self.run()
        return self.state() | before | done

    def token(self, request_id: str, index: int) -> int:
        """What the request samples as its token `index`, from 0; in the end END_OF_SEQUENCE."""
        request = self.requests[request_id]
        by_length = index + 1 == request["output_len"] < request["max_tokens"]
        is_end = request_id in self.action["ends"] if "ends" in self.action else by_length
        return END_OF_SEQUENCE if is_end else self.scripted_token(request_id, index)

    def scripted_token(self, request_id: str, index: int) -> int:
        """The token `index` that the request has, also where that ends it.

        Behind its last one, for a scheduler that lets it go on, it is 0.
        """
        output = self.requests[request_id]["output"]
        return int(output[index]) if index < len(output) else 0


def ids(requests: Iterable[Any]) -> list[str]:
    """The `request_id` of each, as many schedulers call it."""
    return [one.request_id for one in requests]


@cache
def protected_output() -> TextIO:
    """Standard output, for answers alone: from the first call on all that is printed is an error's.

    `serve` calls it; a driver whose imports print something calls it before them.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return answers


def serve(make: Callable[[], Driver]) -> None:
    """Make a driver, say hello, then answer each line with one line, until `stop` or the end."""
    answers = protected_output()
    driver = make()
    gc.freeze()  # what is loaded stays
    gc.disable()  # an episode leaves little: it is collected between two of them
    print(json.dumps(PROTOCOL | driver.hello), file=answers)
    for line in iter(sys.stdin.readline, ""):
        message = json.loads(line)
        if message["do"] == "stop":
            return
        if message["do"] == "start":
            gc.collect()  # what the episode before left
        print(json.dumps(answer(driver, message), separators=(",", ":")), file=answers)


def answer(driver: Driver, message: Json) -> Json:
    """What a driver answers to a line of the protocol."""
    if message.get("do") == "start":
        return _start(driver, message)
    if message.get("do") == "play":
        return _play(driver, message["steps"])
    return {"error": _error(driver, ValueError(f"{message.get('do')!r} is not due"))}


def _start(driver: Driver, message: Json) -> Json:
    driver.tensors = message.get("tensors", False)
    driver.not_configured = message.get("not_configured", [])
    driver.requests = {request["id"]: request for request in message["requests"]}
    try:
        driver.start(message["config"])
    except Exception as error:  # what the scheduler refuses is an observation
        return {"error": _error(driver, error)}
    return {"started": True}


def _play(driver: Driver, actions: list[Json]) -> Json:
    """The record of each step, up to the first that raises."""
    records: list[Json] = []
    try:
        for action in actions:
            records.append(driver.step(action))
    except Exception as error:  # what the engine would die of is an observation
        return {"steps": records, "error": _error(driver, error)}
    return {"steps": records}


def _error(driver: Driver, error: Exception) -> Json:
    """Type, text and place (file, line, function) of an error, and whose it is, see `at_fault`.

    No place if it was not raised.
    """
    places = traceback.extract_tb(error.__traceback__)[-1:]
    at = "".join(f"{Path(one.filename).name}:{one.lineno} {one.name}" for one in places)
    said = {"type": type(error).__name__, "message": str(error), "at": at}
    return {**said, "of": at_fault(driver, error)}


# --- whose error it is ----------------------------------------------------------------------------

SCHEDULER, DRIVER = "scheduler", "driver"
_CALLED = re.compile(r"^(\w+)[\w.<>]*\(\) (?:missing|takes|got) ")  # a TypeError of a call
_LACKS = re.compile(r"^'(\w+)' object has no attribute ")


def at_fault(driver: Driver, error: Exception) -> str:
    """Whether an error is the scheduler's or the driver's; nothing if the driver does not say.

    It is the driver's if an object of the driver lacks what the scheduler asks of it. Else that
    frame counts in which it was raised or, where it is of neither, the nearest that called it.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][::-1]
    if not driver.under_test:
        is_ours = bool(frames) and frames[0].f_globals.get("__name__") == Driver.__module__
        return DRIVER if is_ours else ""
    if _is_own_class(driver, _class_at_fault(driver, error)):
        return DRIVER
    return next(filter(None, (_side(driver, frame) for frame in frames)), DRIVER)


def _side(driver: Driver, frame: FrameType) -> str:
    """To whom a frame belongs; a comprehension's to neither, for its function comes next."""
    if frame.f_code.co_name.startswith("<"):
        return ""
    owner = frame.f_locals.get("self", frame.f_locals.get("cls"))
    kind = owner if isinstance(owner, type) else type(owner)
    module = frame.f_globals.get("__name__", "")
    if _is_under_test(driver, kind, module):
        return SCHEDULER
    return DRIVER if module in _modules(driver) else ""


def _is_under_test(driver: Driver, kind: type, module: str) -> bool:
    names = [one for one in driver.under_test if isinstance(one, str)]
    classes = tuple(one for one in driver.under_test if isinstance(one, type))
    is_named = any(module == one or module.startswith(f"{one}.") for one in names)
    return is_named or issubclass(kind, classes)


def _modules(driver: Driver) -> set[str]:
    """The modules of a driver: its own, those of its base classes, and this one."""
    return {one.__module__ for one in type(driver).__mro__ if one is not object}


def _class_at_fault(driver: Driver, error: Exception) -> type | None:
    """The class of the object that lacks an attribute, or whose method was called wrongly."""
    lacking = getattr(error, "obj", None)  # from Python 3.10 on
    if lacking is not None:
        return lacking if isinstance(lacking, type) else type(lacking)
    kind = _CALLED if isinstance(error, TypeError) else _LACKS
    found = kind.match(str(error))
    if found is None:
        return None
    known = (vars(sys.modules[one]).get(found[1]) for one in _modules(driver) if one in sys.modules)
    return next((one for one in known if isinstance(one, type)), None)


def _is_own_class(driver: Driver, kind: type | None) -> bool:
    return (
        kind is not None
        and kind.__module__ in _modules(driver)
        and not _is_under_test(driver, kind, kind.__module__)
    )
