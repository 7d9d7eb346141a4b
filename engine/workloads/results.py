"""Results of benchmarks: requests come when they were sent, with the lengths that they had.

A turn of a conversation comes as long after the end of the turn before as it did.
"""

from collections.abc import Iterator
from typing import Any

from attrs import define, field

from engine.workloads.checked import MOST_TOKENS, NOTHING, json_object, number, whole
from engine.workloads.recorded import Reading, member, objects, recorded
from engine.workloads.texts import body_text
from spec.core.errors import WorkloadError
from spec.core.requests import Request

_NANOSECONDS = 10**9


@define
class _Replay:
    """The requests of a benchmark so far. Times count from the first of them, in seconds.

    `turns`: of each conversation, the id of its last turn and when that ended.
    """

    first: float | None = None
    count: int = 0
    turns: dict[str, tuple[str, float]] = field(factory=dict)

    def request(
        self, session: object, prompt_len: int, output_len: int, start: float, end: float
    ) -> Request | None:
        """The next request; `session`: its conversation, or None."""
        request_id, self.count = str(self.count), self.count + 1
        self.first = start if self.first is None else self.first
        last, ended = self.turns.get(str(session), (None, self.first))
        moment = start - ended if last is None else max(0.0, start - ended)
        request = recorded(request_id, prompt_len, output_len, moment, after=last)
        if request is not None and session is not None:
            self.turns[str(session)] = request_id, end
        return request


def bench_serve(rows: Iterator[Any], reading: Reading) -> Iterator[Request | None]:
    """A result of `vllm bench serve --save-detailed`, or of sglang's benchmark with details.

    Without `start_times`, which sglang does not write, all requests arrive at once.
    """
    replay = _Replay()
    for count, result in enumerate(rows):
        if count:
            allowed = "one in a file, since the clocks of two need not be the same"
            raise WorkloadError("result", "one more", allowed)
        prompts = member(result, "input_lens", list)
        names = {"output_lens": NOTHING, "start_times": [0.0] * len(prompts)}
        names["errors"] = [None] * len(prompts)
        columns = {name: member(result, name, list, other) for name, other in names.items()}
        for name, values in columns.items():
            if len(values) != len(prompts):
                allowed = f"{len(prompts)}, as many as input_lens"
                raise WorkloadError(f"values of {name}", len(values), allowed)
        for index, (prompt, output, start, error) in enumerate(
            zip(prompts, *columns.values(), strict=True)
        ):
            prompt_len = whole(f"input_lens[{index}]", prompt, 0, MOST_TOKENS, "tokens")
            output_len = whole(f"output_lens[{index}]", output, 0, MOST_TOKENS, "tokens")
            moment = number(f"start_times[{index}]", start, "seconds")
            if error:
                reading.failed += 1
            else:
                yield replay.request(None, prompt_len, output_len, moment, moment)


def aiperf(rows: Iterator[Any], reading: Reading) -> Iterator[Request | None]:
    """AIPerf's `profile_export.jsonl`: a record of each request, in the order of their ends."""
    replay, first = _Replay(), None
    for record in rows:
        metadata = member(record, "metadata", dict)
        times = [_nanoseconds(metadata, name) for name in ("request_start_ns", "request_end_ns")]
        first = times[0] if first is None else first
        if record.get("error") is not None:
            reading.failed += 1
            continue
        prompt_len, output_len = (
            _length(f"metrics.{name}.value", member(record, f"metrics.{name}", dict).get("value"))
            for name in ("input_sequence_length", "output_sequence_length")
        )
        start, end = ((time - first) / _NANOSECONDS for time in times)
        yield replay.request(metadata.get("x_correlation_id"), prompt_len, output_len, start, end)


def genai_perf(rows: Iterator[Any], reading: Reading) -> Iterator[Request | None]:
    """The `profile_export.json` of genai-perf and perf_analyzer: texts and times.

    An answer has the tokens that the server counted, else one for each response with content.
    """
    replay, first = _Replay(), None
    requests = (
        request
        for document in rows
        for experiment in objects(document, "experiments")
        for request in objects(experiment, "requests")
    )
    for request in requests:
        started = _nanoseconds(request, "timestamp")
        first = started if first is None else first
        responses = member(request, "response_timestamps", list)
        if not responses:
            reading.failed += 1
            continue
        ended = _nanoseconds({"response_timestamps": responses[-1]}, "response_timestamps")
        inputs = member(request, "request_inputs", dict)
        payload = inputs.get("payload", NOTHING)
        body = json_object(payload) if isinstance(payload, str) else payload
        prompt_len = reading.tokens(body_text(body))
        output_len = _answered(objects(request, "response_outputs"))
        start, end = ((time - first) / _NANOSECONDS for time in (started, ended))
        yield replay.request(inputs.get("session_id"), prompt_len, output_len, start, end)


def _answered(outputs: list[dict[str, Any]]) -> int:
    """Tokens of an answer: chunks of JSON, after `data:` where they were streamed."""
    tokens = 0
    for output in outputs:
        for line in member(output, "response", str).splitlines():
            said = line.removeprefix("data:").strip()
            if not said.startswith("{"):
                continue  # the end of the stream
            chunk = json_object(said)
            counted = member(chunk, "usage.completion_tokens", int, None)
            if counted is not None:
                return _length("usage.completion_tokens", counted)
            parts = objects(chunk, "choices") if "choices" in chunk else [chunk]
            said_parts = [part.get("delta") or part.get("message") or part for part in parts]
            tokens += any(part.get("content") or part.get("text") for part in said_parts)
    return tokens


def guidellm(rows: Iterator[Any], reading: Reading) -> Iterator[Request | None]:
    """Benchmarks of guidellm (`benchmarks.json`) one after the other, as they were run."""
    replay = _Replay()
    for report in rows:
        for benchmark in objects(report, "benchmarks"):
            for group in ("errored", "incomplete"):
                reading.failed += len(member(benchmark, f"requests.{group}", list, []))
            for request in objects(benchmark, "requests.successful"):
                prompt_len, output_len = (
                    _length(name, request.get(name)) for name in ("prompt_tokens", "output_tokens")
                )
                start, end = (
                    number(name, request.get(name, request.get(older, NOTHING)), "seconds")
                    for name, older in (
                        ("request_start_time", "start_time"),
                        ("request_end_time", "end_time"),
                    )
                )
                session = member(request, "info.conversation_id", object, None)
                yield replay.request(session, prompt_len, output_len, start, end)


def _length(name: str, value: object) -> int:
    """A number of tokens, which some tools write with a decimal point."""
    value = int(value) if isinstance(value, float) and value.is_integer() else value
    return whole(name, NOTHING if value is None else value, 0, MOST_TOKENS, "tokens")


def _nanoseconds(entry: dict[str, Any], name: str) -> int:
    return whole(name, entry.get(name, NOTHING), 0, 2**63 - 1, "nanoseconds")
