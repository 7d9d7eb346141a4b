"""A complete driver to start from: a toy of vLLM V1's scheduler, with chunks and enough blocks.

Replace `Scheduler` by yours, and report its state. `lockstep` puts `lockstep_driver` on the
driver's path; the chapter on drivers describes each field.
"""

from typing import Any

from lockstep_driver import Driver, serve

Json = dict[str, Any]

HELLO = {
    "name": "template-vllm-v1",
    "release": "toy 1.0",
    "policy": "vllm-v1",
    # The supported values of configuration keys; for a key that is not named, all.
    "config": {
        **{"num_blocks": [None], "prefix_caching": [False], "chunked_prefill": [True]},
        **{"scheduling": ["fcfs"], "connector": ["none"], "long_prefill_token_threshold": [0]},
        **{"num_speculative_tokens": [0], "num_lookahead_tokens": [0]},
    },
    "abilities": ["abort"],  # also "abort_running" and "ends", if the scheduler supports them
    # Unreported fields; a rule that reads one is not judged. Remove the fields that you report.
    "left_out": ["planned", "budget_left", "blocks", "prefilling", "reported", "statistics"],
}


class Scheduler:
    """Schedules running requests, then waiting ones, within the token budget of the step."""

    def __init__(self, config: Json, requests: dict[str, Json]) -> None:
        """An empty one; `config` has every key, `requests` the prompts of all that may arrive."""
        self.config = config
        self.requests = requests
        self.waiting: list[str] = []
        self.running: list[str] = []
        self.computed: dict[str, int] = {}
        self.generated: dict[str, int] = {}

    def arrive(self, request_id: str) -> None:
        """A request joins the queue; `self.requests[request_id]` has its prompt."""
        self.waiting.append(request_id)
        self.computed[request_id] = self.generated[request_id] = 0

    def abort(self, request_id: str) -> None:
        """A request's client leaves; the request may have ended already."""
        for queue in (self.waiting, self.running):
            if request_id in queue:
                queue.remove(request_id)

    def run(self) -> Json:
        """One step: what was computed, sampled and finished in it."""
        scheduled: dict[str, int] = {}
        admitted: list[str] = []
        budget = self.config["max_num_batched_tokens"]
        for request_id in self.running:
            if budget:
                budget -= self.compute(request_id, budget, scheduled)
        while self.waiting and budget and len(self.running) < self.config["max_num_seqs"]:
            newcomer = self.waiting.pop(0)
            self.running.append(newcomer)
            admitted.append(newcomer)
            budget -= self.compute(newcomer, budget, scheduled)
        outputs = {
            request_id: [self.sample(request_id)]
            for request_id in scheduled
            if self.left(request_id) == 0
        }
        finished = [request_id for request_id in outputs if self.has_ended(request_id)]
        self.running = [request_id for request_id in self.running if request_id not in finished]
        return {
            **{"scheduled": scheduled, "admitted": admitted},
            **{"outputs": outputs, "finished": finished},
        }

    def compute(self, request_id: str, budget: int, scheduled: dict[str, int]) -> int:
        """Compute as many tokens of the request as the budget allows; returns their number."""
        scheduled[request_id] = tokens = min(self.left(request_id), budget)
        self.computed[request_id] += tokens
        return tokens

    def left(self, request_id: str) -> int:
        """Tokens of prompt and output that are not computed yet."""
        tokens = len(self.requests[request_id]["prompt"]) + self.generated[request_id]
        return tokens - self.computed[request_id]

    def sample(self, request_id: str) -> int:
        """The next token, as the script gives it."""
        self.generated[request_id] += 1
        return int(self.requests[request_id]["output"][self.generated[request_id] - 1])

    def has_ended(self, request_id: str) -> bool:
        """True if the request has sampled all that it samples."""
        return bool(self.generated[request_id] == self.requests[request_id]["output_len"])


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
        """The queues in their order, and a row of each request in them."""
        present = [*self.scheduler.waiting, *self.scheduler.running]
        rows = [
            {
                "id": request_id,
                "computed": self.scheduler.computed[request_id],
                "generated": self.scheduler.generated[request_id],
            }
            for request_id in present
        ]
        return {
            "waiting": list(self.scheduler.waiting),
            "running": list(self.scheduler.running),
            "rows": rows,
        }


if __name__ == "__main__":
    serve(Toy)
