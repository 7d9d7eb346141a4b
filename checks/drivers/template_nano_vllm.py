"""A complete driver to start from: a toy of nano-vLLM's scheduler, whose blocks never fill.

Replace `Scheduler` by yours, and report its state. `lockstep` puts `lockstep_driver` on the
driver's path; the chapter on drivers describes each field.
"""

from typing import Any

from lockstep_driver import Driver, serve

Json = dict[str, Any]

HELLO = {
    "name": "template-nano-vllm",
    "release": "toy 1.0",
    "policy": "nano-vllm",
    # The supported values of configuration keys; for a key that is not named, all.
    "config": {
        **{"block_size": [256], "num_blocks": [None], "max_model_len": [128]},
        **{"sequence_limit": ["running"]},
    },
    "abilities": ["abort"],  # also "abort_running" and "ends", if the scheduler supports them
    # Unreported fields; a rule that reads one is not judged. Remove the fields that you report.
    "left_out": ["batch", "blocks", "computed", "hit_blocks"],
}


class Scheduler:
    """Prefills as many waiting prompts as fit; if there are none, all running requests decode."""

    def __init__(self, config: Json, requests: dict[str, Json]) -> None:
        """An empty one; `config` has every key, `requests` the prompts of all that may arrive."""
        self.config = config
        self.requests = requests
        self.waiting: list[str] = []
        self.running: dict[str, int] = {}  # with the tokens that each has generated

    def arrive(self, request_id: str) -> None:
        """A request joins the queue; `self.requests[request_id]` has its prompt."""
        self.waiting.append(request_id)

    def abort(self, request_id: str) -> None:
        """A request's client leaves; the request may have ended already."""
        self.waiting = [waiting for waiting in self.waiting if waiting != request_id]
        self.running.pop(request_id, None)

    def run(self) -> Json:
        """One step: what was computed, sampled and finished in it."""
        scheduled = self.prefills()
        kind = "prefill" if scheduled else "decode" if self.running else "idle"
        scheduled = scheduled or dict.fromkeys(self.running, 1)
        outputs = {request_id: [self.sample(request_id)] for request_id in scheduled}
        finished = [request_id for request_id in scheduled if self.has_ended(request_id)]
        for request_id in finished:
            del self.running[request_id]
        return {"kind": kind, "scheduled": scheduled, "outputs": outputs, "finished": finished}

    def prefills(self) -> dict[str, int]:
        """The tokens of each prompt that is computed now, whole prompts in the order of arrival."""
        scheduled: dict[str, int] = {}
        budget = self.config["max_num_batched_tokens"]
        while self.waiting and len(self.running) < self.config["max_num_seqs"]:
            length = len(self.requests[self.waiting[0]]["prompt"])
            if length > budget:
                break
            budget -= length
            scheduled[self.waiting[0]] = length
            self.running[self.waiting.pop(0)] = 0
        return scheduled

    def sample(self, request_id: str) -> int:
        """The next token, as the script gives it."""
        self.running[request_id] += 1
        return int(self.requests[request_id]["output"][self.running[request_id] - 1])

    def has_ended(self, request_id: str) -> bool:
        """True if the request has sampled all that it samples."""
        return bool(self.running[request_id] == self.requests[request_id]["output_len"])


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
        """The queues in their order, and a row of each running request."""
        rows = [
            {"id": request_id, "generated": count}
            for request_id, count in self.scheduler.running.items()
        ]
        return {
            "waiting": list(self.scheduler.waiting),
            "running": list(self.scheduler.running),
            "decoding": rows,
        }


if __name__ == "__main__":
    serve(Toy)
