"""Sessions of vLLM: it knows all turns of one by the id of the first, a script by ids of their own.

It needs nothing but the standard library and `lockstep_driver.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lockstep_driver import Json

_NAMED = ("cached", "planned")


class Sessions:
    """The sessions of an episode.

    `turns`: the ids of the turns of each session, by the id of its first one, which is that of the
    session. `session`: by turn. `begun`: how many turns have begun behind the first. `now`: the
    turn that was under way, or awaited, when the scheduler was last looked at.
    """

    def __init__(self, requests: dict[str, Json]) -> None:
        """`requests`: of the episode; of later turns only the new tokens are left in them."""
        following = {
            request_id: line["continued_by"]
            for request_id, line in requests.items()
            if "continued_by" in line
        }
        self.turns: dict[str, list[str]] = {}
        for first in following.keys() - {*following.values()}:
            turns = [first]
            while turns[-1] in following:
                turns.append(following[turns[-1]])
            self.turns[first] = turns
        for request_id, turn in [*following.items()][::-1]:
            line = requests[request_id]
            kept = len(line["prompt"]) + line["output_len"] - 1
            requests[turn] = requests[turn] | {"prompt": requests[turn]["prompt"][kept:]}
        self.session = {turn: first for first, turns in self.turns.items() for turn in turns}
        self.begun = dict.fromkeys(self.turns, 0)
        self.now = {first: first for first in self.turns}

    def send(self, turn: str, request: Any, add: Callable[[Any], None], close: Any) -> None:
        """Hand the request of a turn to the scheduler by `add`; behind the last one, `close`."""
        first = self.session[turn]
        request.request_id, request.resumable = first, True
        add(request)
        if turn == self.turns[first][-1]:
            close.request_id, close.resumable = first, False
            add(close)

    def latest(self, request_id: str) -> str:
        """The turn of a session that began last; of other requests their own id."""
        return self.turns.get(request_id, [request_id])[self.begun.get(request_id, 0)]

    def look(self, requests: dict[str, Any]) -> None:
        """Note which turns are under way, or awaited; `requests`: of the scheduler, by id."""
        for first, turns in self.turns.items():
            if first in requests:
                self.now[first] = turns[self.begun[first] + is_awaited(requests[first])]

    def named(self, record: Any) -> Any:
        """The record with the ids of turns in the places of the sessions' ids.

        The cache is known by turns already, and so is a state within the record.
        """
        if not self.now:
            return record
        if isinstance(record, dict):
            return {
                self.now.get(key, key): value if key in _NAMED else self.named(value)
                for key, value in record.items()
            }
        if isinstance(record, list):
            return [self.named(value) for value in record]
        return self.now.get(record, record) if isinstance(record, str) else record


def is_awaited(request: Any) -> bool:
    """True if a turn of the request has ended, and its client has not sent the next one."""
    return bool(request.status.name == "WAITING_FOR_STREAMING_REQ")
