"""Requests in the header of a trace, written as entries of a workload file and read back."""

from collections.abc import Iterable

from checks.export.trace.records import Json, joined, listed
from engine.workloads.own import own_stream, request_of
from spec.core.errors import InputError, TraceError
from spec.core.requests import Request

_OPTIONS = ("output_len", "output", "abort_at", "right_drafts", "continued_by", "after")
_USUAL = {
    "priority": 0,
    "n": 1,
    "lora": 0,
    "encoder_len": 0,
    "external": 0,
    "external_if_lost": 0,
    "grammar": False,
    "has_images": False,
    "reads_cache": True,
}


def request_as_json(request: Request) -> Json:
    """The request as a line of a workload file."""
    line: Json = {"id": request.id}
    if request.arrival_time is None:
        line["arrival"] = request.arrival
    else:
        line["arrival_s"] = request.arrival_time
    line |= _prompt(request)
    if spans := request.encoder_spans:
        line["encoder_spans"] = [span.as_written for span in spans]
    line["max_tokens"] = request.max_tokens
    for name in _OPTIONS:
        if getattr(request, name) is not None:
            line[name] = listed(getattr(request, name))
    for name, usual in _USUAL.items():
        if getattr(request, name) != usual:
            line[name] = getattr(request, name)
    return line


def _prompt(request: Request) -> Json:
    parts = request.prompt.parts
    if parts == ((own_stream(request.id), request.prompt_len),):
        return {"prompt_len": request.prompt_len}
    if all(part and isinstance(part[0], str) for part in parts):
        return {"prompt_parts": listed(parts)}
    return {"prompt": list(request.prompt.with_spans(()).tokens())}


def requests_from_json(entries: Iterable[Json]) -> dict[str, Request]:
    """The workload of a header, by id.

    Raises:
        TraceError: a request is malformed, or two have the same id.
    """
    requests: dict[str, Request] = {}
    for index, entry in enumerate(entries):
        path = f"requests[{index}]"
        try:
            request = request_of(entry)
        except InputError as error:
            raise TraceError(joined(path, error.field), error.found, error.allowed) from None
        if request.id in requests:
            raise TraceError(f"{path}.id", request.id, "an id of its own")
        requests[request.id] = request
    return requests
