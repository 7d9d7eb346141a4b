"""The toy's scheduler as a serving stack would have it; it knows nothing of this project."""

from collections.abc import Callable
from typing import Any

Sample = Callable[[str, int], tuple[int, bool]]  # a token by its index, and whether it is the last


class Queue:
    """First come, first served: the first computes at most `limit` tokens a step."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.rows: list[dict[str, Any]] = []
        self.prompts: dict[str, int] = {}

    def add(self, name: str, prompt_len: int) -> None:
        self.prompts[name] = prompt_len
        self.rows.append({"id": name, "computed": 0, "generated": 0})

    def remove(self, name: str) -> None:
        self.rows = [row for row in self.rows if row["id"] != name]

    def state(self) -> dict[str, Any]:
        return {"waiting": [dict(row) for row in self.rows]}

    def step(self, sample: Sample) -> dict[str, Any]:
        done: dict[str, Any] = {"kind": "idle", "scheduled": {}, "outputs": {}, "finished": []}
        if self.rows:
            self._compute(self.rows[0], done, sample)
        return done

    def _compute(self, row: dict[str, Any], done: dict[str, Any], sample: Sample) -> None:
        name, prompt_len = row["id"], self.prompts[row["id"]]
        done["kind"] = "prefill" if row["computed"] < prompt_len else "decode"
        left = prompt_len + row["generated"] - row["computed"]
        done["scheduled"][name] = tokens = min(self.limit, left)
        row["computed"] += tokens
        if tokens == left:
            token, is_last = sample(name, row["generated"])
            done["outputs"][name] = [token]
            row["generated"] += 1
            done["finished"] += [self.rows.pop(0)["id"]] if is_last else []
