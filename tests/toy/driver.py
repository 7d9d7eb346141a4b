"""A driver of the toy's scheduler."""

from typing import Any

from lockstep_driver import Driver, serve

from scheduler import Queue  # type: ignore[import-not-found]  # next to this file

HELLO = {"name": "toy", "release": "toy 1.0", "policy": "toy", "abilities": ["abort"]}


class ToyDriver(Driver):
    hello = HELLO

    def start(self, config: dict[str, Any]) -> None:
        self.queue: Any = Queue(config["limit"])

    def arrive(self, request_id: str) -> None:
        self.queue.add(request_id, len(self.requests[request_id]["prompt"]))

    def abort(self, request_id: str) -> None:
        self.queue.remove(request_id)

    def run(self) -> Any:
        return self.queue.step(self.sample)

    def state(self) -> Any:
        return self.queue.state()

    def sample(self, name: str, index: int) -> tuple[int, bool]:
        request = self.requests[name]
        return request["output"][index], index + 1 == request["output_len"]


if __name__ == "__main__":
    serve(ToyDriver)
