"""The format `lockstep`: one JSON object a request, with every freedom that a request has."""

from collections.abc import Iterator, Mapping
from typing import Any

from attrs import evolve

from engine.workloads.checked import (
    MOST_LORA,
    MOST_PRIORITY,
    MOST_SEQUENCES,
    MOST_STEPS,
    MOST_TOKENS,
    NOTHING,
    brief,
    only_known_keys,
    seconds,
    text,
    token_ids,
    truth,
    whole,
)
from spec.core.errors import WorkloadError
from spec.core.requests import Prompt, Request

NAME, VERSION = "lockstep-workload", 1
PROMPT_KEYS = ("prompt_len", "prompt", "prompt_parts")
KEYS = (
    "id",
    "arrival",
    "arrival_s",
    *PROMPT_KEYS,
    "encoder_spans",
    "max_tokens",
    "output_len",
    "output",
    "abort_at",
    "priority",
    "n",
    "lora",
    "encoder_len",
    "external",
    "external_if_lost",
    "right_drafts",
    "grammar",
    "has_images",
    "reads_cache",
    "continued_by",
    "after",
)

_OWN = "own:"  # begins the names of streams that one request alone may use


def own_stream(request_id: str) -> str:
    """Name of the token stream that no other request shares."""
    return _OWN + request_id


def own(rows: Iterator[Any], _reading: object) -> Iterator[Request]:
    """Lockstep's own format: a request a line, after a first line that may name the format."""
    for number, entry in enumerate(rows):
        if number == 0 and "format" in entry:
            _check_header(entry)
        else:
            yield request_of(entry)


def _check_header(header: Mapping[str, Any]) -> None:
    only_known_keys(header, ("format", "version"))
    if header["format"] != NAME:
        raise WorkloadError("format", brief(header["format"]), NAME)
    whole("version", header.get("version", NOTHING), VERSION, VERSION)


def request_of(entry: Mapping[str, Any]) -> Request:
    """The request that a line's keys and values describe.

    Raises:
        WorkloadError: an unknown key, a missing one, two that exclude each other, a value of
            the wrong type or outside its range.
    """
    only_known_keys(entry, KEYS)
    request_id = text("id", entry.get("id", NOTHING))
    arrival, arrival_time = _arrival(entry)
    max_tokens = whole("max_tokens", entry.get("max_tokens", NOTHING), 1, MOST_TOKENS, "tokens")
    output_len, output = _output(entry, max_tokens)
    prompt = _prompt(entry, request_id)
    external = _external(entry, prompt.length)
    return Request(
        id=request_id,
        prompt=prompt,
        max_tokens=max_tokens,
        arrival=arrival,
        arrival_time=arrival_time,
        output_len=output_len,
        output=output,
        abort_at=_abort_step(entry, arrival),
        priority=whole("priority", entry.get("priority", 0), -MOST_PRIORITY, MOST_PRIORITY),
        n=whole("n", entry.get("n", 1), 1, MOST_SEQUENCES, "sequences"),
        lora=whole("lora", entry.get("lora", 0), 0, MOST_LORA),
        encoder_len=whole("encoder_len", entry.get("encoder_len", 0), 0, MOST_TOKENS, "tokens"),
        external=external,
        external_if_lost=whole(
            "external_if_lost", entry.get("external_if_lost", 0), 0, external, "tokens, as external"
        ),
        right_drafts=_right_drafts(entry),
        grammar=truth("grammar", entry.get("grammar", False)),
        has_images=truth("has_images", entry.get("has_images", False)),
        reads_cache=truth("reads_cache", entry.get("reads_cache", True)),
        continued_by=_id_in(entry, "continued_by"),
        after=_id_in(entry, "after"),
    )


def behind(earlier: Request, turn: Request) -> Request:
    """The next turn of a session, of which a length counts all tokens, those before included."""
    if turn.prompt.spans or turn.prompt.parts != ((own_stream(turn.id), turn.prompt_len),):
        return turn
    if turn.prompt_len <= earlier.kept_len:
        allowed = f"more than the {earlier.kept_len} tokens that are kept of {earlier.id!r}"
        raise WorkloadError("prompt_len", turn.prompt_len, allowed)
    kept = earlier.first_tokens(earlier.kept_len)
    own_tokens = turn.prompt.first_tokens(turn.prompt_len - len(kept))
    return evolve(turn, prompt=Prompt.of_tokens([*kept, *own_tokens]))


def _id_in(entry: Mapping[str, Any], key: str) -> str | None:
    return text(key, entry[key]) if key in entry else None


def _external(entry: Mapping[str, Any], prompt_len: int) -> int:
    """Tokens that a connector has: of a prompt of one token nothing, which is computed anyway."""
    most = prompt_len if prompt_len > 1 else 0
    return whole("external", entry.get("external", 0), 0, most, "tokens of the prompt")


def _right_drafts(entry: Mapping[str, Any]) -> str | None:
    if "right_drafts" not in entry:
        return None
    foresight = text("right_drafts", entry["right_drafts"])
    if not {*foresight} <= {*"01-"}:
        raise WorkloadError("right_drafts", foresight, "ones, zeros, and - for no draft")
    return foresight


def _arrival(entry: Mapping[str, Any]) -> tuple[int, float | None]:
    """The step before which it arrives, and the moment where that counts instead."""
    if "after" in entry and "arrival" in entry:
        raise WorkloadError("arrival", ["arrival", "after"], "arrival_s, counted from that end")
    if "after" in entry:
        return 0, seconds("arrival_s", entry.get("arrival_s", 0))
    if "arrival_s" not in entry:
        return whole("arrival", entry.get("arrival", 0), 0, MOST_STEPS, "steps"), None
    if "arrival" in entry:
        raise WorkloadError("arrival", ["arrival", "arrival_s"], "one of the two")
    return 0, seconds("arrival_s", entry["arrival_s"])


def _abort_step(entry: Mapping[str, Any], arrival: int) -> int | None:
    if "abort_at" not in entry:
        return None
    step = whole("abort_at", entry["abort_at"], 0, MOST_STEPS, "steps")
    if step < arrival:
        raise WorkloadError("abort_at", step, f"arrival ({arrival}) or later")
    return step


def _prompt(entry: Mapping[str, Any], request_id: str) -> Prompt:
    """The prompt with the contents that stand in it."""
    spans = entry.get("encoder_spans", [])
    if not isinstance(spans, list):
        raise WorkloadError("encoder_spans", brief(spans), "a list of [offset, tokens, name]")
    fields = (_span(f"encoder_spans[{index}]", span) for index, span in enumerate(spans))
    return _text(entry, request_id).with_spans(fields)


def _text(entry: Mapping[str, Any], request_id: str) -> Prompt:
    given = [key for key in PROMPT_KEYS if key in entry]
    if len(given) != 1:
        found: object = given or NOTHING
        raise WorkloadError("prompt", found, f"exactly one of {', '.join(PROMPT_KEYS)}")
    value = entry[given[0]]
    match given[0]:
        case "prompt_len":
            length = whole("prompt_len", value, 1, MOST_TOKENS, "tokens")
            return Prompt.of_stream(own_stream(request_id), length)
        case "prompt":
            return Prompt.of_tokens(token_ids("prompt", value))
    return _prompt_of_parts(value, request_id)


def _prompt_of_parts(value: object, request_id: str) -> Prompt:
    """A part may name the request's own stream; then the tokens are those of `prompt_len`."""
    if not isinstance(value, list) or not value:
        raise WorkloadError("prompt_parts", brief(value), "a list of [name, tokens]")
    parts = [_part(f"prompt_parts[{index}]", part) for index, part in enumerate(value)]
    for index, (name, _) in enumerate(parts):
        if name.startswith(_OWN) and name != own_stream(request_id):
            allowed = f"a name that does not begin with {_OWN!r}: prompt_len uses those"
            raise WorkloadError(f"prompt_parts[{index}]", name, allowed)
    prompt = Prompt.of_parts(parts)
    if prompt.length > MOST_TOKENS:
        raise WorkloadError("prompt_parts", prompt.length, f"at most {MOST_TOKENS} tokens in all")
    return prompt


def _span(field: str, span: object) -> tuple[int, int, str]:
    if not isinstance(span, list) or len(span) != 3:
        raise WorkloadError(field, brief(span), "[offset, tokens, name]")
    offset, tokens, name = span
    return (
        whole(field, offset, 0, MOST_TOKENS, "tokens"),
        whole(field, tokens, 1, MOST_TOKENS, "tokens"),
        text(field, name),
    )


def _part(field: str, part: object) -> tuple[str, int]:
    if not isinstance(part, list) or len(part) != 2:
        raise WorkloadError(field, brief(part), "[name, tokens]")
    name, tokens = part
    return text(field, name), whole(field, tokens, 1, MOST_TOKENS, "tokens")


def _output(entry: Mapping[str, Any], max_tokens: int) -> tuple[int | None, tuple[int, ...] | None]:
    """Length and tokens of the output, as far as the line gives them; they must agree."""
    output_len, output = None, None
    if "output_len" in entry:
        output_len = whole("output_len", entry["output_len"], 1, MOST_TOKENS, "tokens")
        _at_most_max_tokens("output_len", output_len, max_tokens)
    if "output" in entry:
        output = token_ids("output", entry["output"])
        _at_most_max_tokens("output", len(output), max_tokens)
    if output_len is not None and output is not None and output_len != len(output):
        allowed = f"the number of tokens in output ({len(output)})"
        raise WorkloadError("output_len", output_len, allowed)
    return output_len, output


def _at_most_max_tokens(field: str, tokens: int, max_tokens: int) -> None:
    if tokens > max_tokens:
        allowed = f"at most max_tokens ({max_tokens}) tokens"
        raise WorkloadError(field, tokens, allowed)
