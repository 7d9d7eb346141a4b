"""The base class of drivers, the line protocol of Lockstep, and the scripted tokens.

A driver is a class with a `hello` and a few methods; `serve` does the rest:

    from lockstep_driver import Driver, serve

    class Mine(Driver):
        hello = {"name": "mine", "release": "mine 1.2"}
        ...

    serve(Mine)

`template.py` is a complete example. This file needs only the standard library of Python 3.9 or
later, because it runs in the environments of released schedulers. `lockstep` puts its directory on
the `PYTHONPATH` of every driver that it starts. The chapter on drivers describes each line and
field.
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

END_OF_SEQUENCE = 2**31 - 2  # sampled to end a request; never part of a record
PROTOCOL: Json = {"format": "lockstep-driver", "version": 1}


class Driver:
    """A scheduler under test that takes steps, one episode after the other.

    `serve` makes one driver per process. `step` calls `arrive`, `abort`, `state` and `run` in this
    order; a driver may override `step` and needs none of them then.

    `hello`: the first line, without format and version. `requests`: those of the episode, by id.
    `tensors`: records must have the tensors of the device. `not_configured`: configuration keys
    that may be left to the scheduler, which must choose the same values. `action`: the
    environment's action in this step. `under_test`: classes and module names of the scheduler; an
    error raised in them is the scheduler's, any other error the driver's.
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
        """Take one step of the scheduler and of the stand-in for the model.

        Returns the step's fields, which replace fields of the state with the same name.
        """
        raise NotImplementedError

    def state(self) -> Json:
        """The state of the scheduler between two steps: queues, requests and blocks."""
        raise NotImplementedError

    def change(self) -> bool:
        """Apply arrivals, then aborts, between two steps; true if there were any."""
        arriving, leaving = self.action.get("arrive", ()), self.action.get("abort", ())
        for request_id in arriving:
            self.arrive(request_id)
        for request_id in leaving:
            self.abort(request_id)
        return bool(arriving or leaving)

    def step(self, action: Json) -> Json:
        """Apply arrivals and aborts, take one step, and return its record."""
        self.action = action
        before = {"before": self.state()} if self.change() else {}
        done = self.run()
        return self.state() | before | done

    def token(self, request_id: str, index: int) -> int:
        """The output token `index` (from 0) that the request samples, or END_OF_SEQUENCE."""
        request = self.requests[request_id]
        by_length = index + 1 == request["output_len"] < request["max_tokens"]
        is_end = request_id in self.action["ends"] if "ends" in self.action else by_length
        return END_OF_SEQUENCE if is_end else self.scripted_token(request_id, index)

    def scripted_token(self, request_id: str, index: int) -> int:
        """The output token `index` in the script; 0 after the last one.

        A scheduler may continue a request after its last token.
        """
        output = self.requests[request_id]["output"]
        return int(output[index]) if index < len(output) else 0


def ids(requests: Iterable[Any]) -> list[str]:
    """The `request_id` of each request."""
    return [request.request_id for request in requests]


@cache
def protected_output() -> TextIO:
    """The stream for answers; from the first call on, printed text goes to standard error.

    `serve` calls it; a driver whose imports print text calls it before them.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return answers


def serve(make: Callable[[], Driver]) -> None:
    """Make a driver, write its hello, then answer line by line, until `stop` or the end."""
    answers = protected_output()
    driver = make()
    gc.freeze()  # loaded modules stay
    gc.disable()  # an episode leaves little garbage, which is collected before the next one
    print(json.dumps(PROTOCOL | driver.hello), file=answers)
    for line in iter(sys.stdin.readline, ""):
        message = json.loads(line)
        if message["do"] == "stop":
            return
        if message["do"] == "start":
            gc.collect()  # the garbage of the previous episode
        print(json.dumps(answer(driver, message), separators=(",", ":")), file=answers)


def answer(driver: Driver, message: Json) -> Json:
    """The driver's answer to a line of the protocol."""
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
    except Exception as error:  # a refusal of the scheduler is an observation
        return {"error": _error(driver, error)}
    return {"started": True}


def _play(driver: Driver, actions: list[Json]) -> Json:
    """The records of the steps, up to the first that raises."""
    records: list[Json] = []
    try:
        for action in actions:
            records.append(driver.step(action))
    except Exception as error:  # a crash of the scheduler is an observation
        return {"steps": records, "error": _error(driver, error)}
    return {"steps": records}


def _error(driver: Driver, error: Exception) -> Json:
    """Type, message, place (file, line, function) and origin of an error, see `at_fault`.

    The place is empty if the error was not raised.
    """
    places = traceback.extract_tb(error.__traceback__)[-1:]
    at = "".join(f"{Path(place.filename).name}:{place.lineno} {place.name}" for place in places)
    said = {"type": type(error).__name__, "message": str(error), "at": at}
    return {**said, "of": at_fault(driver, error)}


# --- the origin of an error -----------------------------------------------------------------------

SCHEDULER, DRIVER = "scheduler", "driver"
_CALLED = re.compile(r"^(\w+)[\w.<>]*\(\) (?:missing|takes|got) ")  # a TypeError of a call
_LACKS = re.compile(r"^'(\w+)' object has no attribute ")


def at_fault(driver: Driver, error: Exception) -> str:
    """The origin of an error, "scheduler" or "driver"; empty if the driver does not declare it.

    An error is the driver's if one of its objects lacks an attribute or a parameter that the
    scheduler uses. Otherwise the innermost frame of scheduler or driver decides.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][::-1]
    if not driver.under_test:
        is_ours = bool(frames) and frames[0].f_globals.get("__name__") == Driver.__module__
        return DRIVER if is_ours else ""
    if _is_own_class(driver, _class_at_fault(driver, error)):
        return DRIVER
    return next(filter(None, (_side(driver, frame) for frame in frames)), DRIVER)


def _side(driver: Driver, frame: FrameType) -> str:
    """The owner of a frame, or empty; a comprehension has none, since its function comes next."""
    if frame.f_code.co_name.startswith("<"):
        return ""
    owner = frame.f_locals.get("self", frame.f_locals.get("cls"))
    kind = owner if isinstance(owner, type) else type(owner)
    module = frame.f_globals.get("__name__", "")
    if _is_under_test(driver, kind, module):
        return SCHEDULER
    return DRIVER if module in _modules(driver) else ""


def _is_under_test(driver: Driver, kind: type, module: str) -> bool:
    names = [part for part in driver.under_test if isinstance(part, str)]
    classes = tuple(part for part in driver.under_test if isinstance(part, type))
    is_named = any(module == name or module.startswith(f"{name}.") for name in names)
    return is_named or issubclass(kind, classes)


def _modules(driver: Driver) -> set[str]:
    """The modules of a driver: its own, those of its base classes, and this one."""
    return {base.__module__ for base in type(driver).__mro__ if base is not object}


def _class_at_fault(driver: Driver, error: Exception) -> type | None:
    """The class of the object that lacks an attribute, or whose method was called wrongly."""
    lacking = getattr(error, "obj", None)  # from Python 3.10 on
    if lacking is not None:
        return lacking if isinstance(lacking, type) else type(lacking)
    kind = _CALLED if isinstance(error, TypeError) else _LACKS
    match = kind.match(str(error))
    if match is None:
        return None
    candidates = (
        vars(sys.modules[module]).get(match[1])
        for module in _modules(driver)
        if module in sys.modules
    )
    return next((candidate for candidate in candidates if isinstance(candidate, type)), None)


def _is_own_class(driver: Driver, kind: type | None) -> bool:
    return (
        kind is not None
        and kind.__module__ in _modules(driver)
        and not _is_under_test(driver, kind, kind.__module__)
    )
