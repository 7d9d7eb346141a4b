"""A complete driver to start from: a toy scheduler, first come first served, whole prompts.

Copy this file, put your scheduler in the place of `Toy`, and tell what it knows. It runs by itself,
wherever your scheduler runs. The chapter on drivers describes each line and field.
"""

import json
import os
import sys
from typing import Any

ANSWERS = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # whatever a library prints goes to standard error, not between the answers

HELLO = {
    "format": "lockstep-driver",
    "version": 1,
    "name": "template",
    "release": "toy 1.0",
    # The values of configuration keys that it can do; of a key that is not named, all.
    "config": {
        **{"policy": ["spyre"], "block_size": [16], "chunk_size": [256], "max_model_len": [256]},
        **{"queue": ["fcfs"], "admission": ["exact"], "max_batch_tkv_limit": [1_000_000]},
        **{"interleave": [False], "prefix_caching": [False], "pausing": [False]},
        **{"num_blocks": [None]},
    },
    "abilities": ["abort"],  # where it can, also "abort_running" and "ends"
    # What it does not tell; a rule that asks for it is not judged.
    "left_out": ["before", "tkv", "batch", "blocks", "computed", "left_padding", "reserved"],
}


class Toy:
    """One episode: a prompt is computed in one step, then everybody decodes together."""

    def __init__(self, config: dict[str, Any], requests: list[dict[str, Any]]) -> None:
        self.config = config
        self.requests = {request["id"]: request for request in requests}
        self.waiting: list[str] = []
        self.decoding: dict[str, int] = {}  # with the tokens that each has generated

    def step(self, action: dict[str, Any]) -> dict[str, Any]:
        """Arrivals and aborts, then one step; the record of it."""
        self.waiting += action.get("arrive", [])
        for gone in action.get("abort", []):
            self.waiting = [one for one in self.waiting if one != gone]
            self.decoding.pop(gone, None)
        done: dict[str, Any] = {"kind": "idle", "scheduled": {}, "prefilling": None}
        if self.waiting and len(self.decoding) < self.config["max_num_seqs"]:
            newcomer = self.waiting.pop(0)
            self.decoding = {newcomer: 0, **self.decoding}
            chunk = self.chunk(newcomer)
            done = {"kind": "prefill", "scheduled": {newcomer: chunk["end"]}, "prefilling": chunk}
        elif self.decoding:
            done |= {"kind": "decode", "scheduled": dict.fromkeys(self.decoding, 1)}
        done["outputs"] = {one: [self.sample(one)] for one in done["scheduled"]}
        done["finished"] = [
            one
            for one in done["scheduled"]
            if self.decoding[one] == self.requests[one]["output_len"]
        ]
        for one in done["finished"]:
            del self.decoding[one]
        rows = [{"id": one, "generated": count} for one, count in self.decoding.items()]
        queues = {"waiting": list(self.waiting), "running": list(self.decoding), "paused": []}
        return {**done, **queues, "decoding": rows}

    def chunk(self, request_id: str) -> dict[str, Any]:
        """The whole prompt, as the device wants it: whole blocks, at the right end of the chunk."""
        length = len(self.requests[request_id]["prompt"])
        right = -length % self.config["block_size"]
        left = self.config["chunk_size"] - length - right
        place = {"id": request_id, "chunk": 0, "chunks": 1, "start": 0, "end": length}
        cached = {"cached_tokens": 0, "inner_padding": 0}
        return {**place, "left_padding": left, "right_padding": right, **cached}

    def sample(self, request_id: str) -> int:
        """The next token, as the script prescribes it."""
        self.decoding[request_id] += 1
        return int(self.requests[request_id]["output"][self.decoding[request_id] - 1])


def main() -> None:
    """Say hello, then answer each line with one line."""
    print(json.dumps(HELLO), file=ANSWERS)
    for line in sys.stdin:
        message = json.loads(line)
        if message["do"] == "start":
            live = Toy(message["config"], message["requests"])
            answer: dict[str, Any] = {"started": True}
        elif message["do"] == "play":
            answer = {"steps": [live.step(action) for action in message["steps"]]}
        else:
            return
        print(json.dumps(answer), file=ANSWERS)


main()
