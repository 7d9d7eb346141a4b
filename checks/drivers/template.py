"""A complete driver to start from: a toy scheduler, first come first served, whole prompts.

Copy this file, replace `Scheduler` by yours, and report its state. `lockstep` puts
`lockstep_driver` on the driver's path; the chapter on drivers describes each field.
"""

from typing import Any

from lockstep_driver import Driver, serve

Json = dict[str, Any]

HELLO = {
    "name": "template",
    "release": "toy 1.0",
    # The supported values of configuration keys; for a key that is not named, all.
    "config": {
        **{"policy": ["spyre"], "block_size": [16], "chunk_size": [256]},
        **{"queue": ["fcfs"], "admission": ["exact"], "max_batch_tkv_limit": [1_000_000]},
        **{"interleave": [False], "prefix_caching": [False], "pausing": [False]},
        **{"max_model_len": [256], "num_blocks": [None]},
    },
    "abilities": ["abort"],  # also "abort_running" and "ends", if the scheduler supports them
    # Unreported fields; a rule that reads one is not judged.
    "left_out": ["tkv", "batch", "blocks", "computed", "left_padding", "reserved"],
}


class Scheduler:
    """A prompt is computed in one step, then all decode together."""

    def __init__(self, config: Json, requests: dict[str, Json]) -> None:
        """An empty one; `config` has every key, `requests` the prompts of all that may arrive."""
        self.config = config
        self.requests = requests
        self.waiting: list[str] = []
        self.decoding: dict[str, int] = {}  # with the tokens that each has generated

    def arrive(self, request_id: str) -> None:
        """A request joins the queue."""
        self.waiting.append(request_id)

    def abort(self, request_id: str) -> None:
        """A request's client leaves; the request may have ended already."""
        self.waiting = [waiting for waiting in self.waiting if waiting != request_id]
        self.decoding.pop(request_id, None)

    def run(self) -> Json:
        """One step: what was computed, sampled and finished in it."""
        done: Json = {"kind": "idle", "scheduled": {}}
        if self.waiting and len(self.decoding) < self.config["max_num_seqs"]:
            newcomer = self.waiting.pop(0)
            self.decoding = {newcomer: 0, **self.decoding}
            chunk = self.chunk(newcomer)
            done = {"kind": "prefill", "scheduled": {newcomer: chunk["end"]}, "prefilling": chunk}
        elif self.decoding:
            done = {"kind": "decode", "scheduled": dict.fromkeys(self.decoding, 1)}
        done["outputs"] = {name: [self.sample(name)] for name in done["scheduled"]}
        done["finished"] = [name for name in done["scheduled"] if self.has_ended(name)]
        for name in done["finished"]:
            del self.decoding[name]
        return done

    def chunk(self, request_id: str) -> Json:
        """The whole prompt, as the device wants it: whole blocks, at the right end of the chunk."""
        length = len(self.requests[request_id]["prompt"])
        right = -length % self.config["block_size"]
        left = self.config["chunk_size"] - length - right
        place = {"id": request_id, "chunk": 0, "chunks": 1, "start": 0, "end": length}
        cached = {"cached_tokens": 0, "inner_padding": 0}
        return {**place, "left_padding": left, "right_padding": right, **cached}

    def sample(self, request_id: str) -> int:
        """The next token, as the script gives it."""
        self.decoding[request_id] += 1
        return int(self.requests[request_id]["output"][self.decoding[request_id] - 1])

    def has_ended(self, request_id: str) -> bool:
        """True if the request has sampled all that it samples."""
        return bool(self.decoding[request_id] == self.requests[request_id]["output_len"])


class Toy(Driver):
    """Hands requests to the scheduler, lets it take steps and reports what it knows."""

    hello = HELLO
    under_test = (Scheduler,)  # its errors are findings; all others are the driver's

    def start(self, config: Json) -> None:
        """Begin an episode with an empty scheduler; `config` has every key."""
        self.scheduler = Scheduler(config, self.requests)

    def arrive(self, request_id: str) -> None:
        """A request joins the queue."""
        self.scheduler.arrive(request_id)

    def abort(self, request_id: str) -> None:
        """A request's client leaves; the request may have ended already."""
        self.scheduler.abort(request_id)

    def run(self) -> Json:
        """One step: what was computed, sampled and finished in it."""
        return self.scheduler.run()

    def state(self) -> Json:
        """The queues, and what is known of the requests in them."""
        decoding = self.scheduler.decoding
        rows = [{"id": name, "generated": count} for name, count in decoding.items()]
        queues = {
            "waiting": list(self.scheduler.waiting),
            "running": list(self.scheduler.decoding),
            "paused": [],
        }
        return {"prefilling": None, "decoding": rows, **queues}


if __name__ == "__main__":
    serve(Toy)
