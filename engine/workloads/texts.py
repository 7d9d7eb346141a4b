"""Files of prompts as texts: their lengths are estimated, for no tokenizer is asked."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from engine.workloads.checked import NOTHING, brief, milliseconds, text
from engine.workloads.own import own_stream
from engine.workloads.recorded import Conversation, Reading, member, objects, recorded
from spec.core.errors import WorkloadError
from spec.core.requests import Request


def sharegpt(rows: Iterator[Any], reading: Reading) -> Iterator[Request | None]:
    """ShareGPT conversations: the first message is the prompt, the second the answer.

    So do the benchmarks of vLLM and sglang; what follows in a conversation is left out.
    """
    for number, entry in enumerate(rows):
        said = objects(entry, "conversations" if "conversations" in entry else "conversation")
        texts = [
            member(message, "content" if "content" in message else "value", str)
            for message in said[:2]
        ]
        prompt_len, output_len = map(reading.tokens, texts) if len(texts) == 2 else (0, 0)
        yield recorded(str(number), prompt_len, output_len, 0.0)


def custom(rows: Iterator[Any], reading: Reading) -> Iterator[Request | None]:
    """Prompts of `vllm bench serve --dataset-name custom`, or of guidellm."""
    for number, entry in enumerate(rows):
        prompt_len = reading.tokens(member(entry, "prompt", str))
        name = "output_tokens" if "output_tokens" in entry else "output_tokens_count"
        output_len = reading.output(name, entry.get(name))
        yield recorded(str(number), prompt_len, output_len, 0.0)


def aiperf_inputs(rows: Iterator[Any], reading: Reading) -> Iterator[Request | None]:
    """Inputs of AIPerf and genai-perf: lines of a turn or of several, or the file `inputs.json`.

    A conversation's next turn comes at its timestamp, else its delay after the turn before ended.
    """
    conversations: defaultdict[str, Conversation] = defaultdict(Conversation)
    turns = (turn for number, entry in enumerate(rows) for turn in _turns(entry, number))
    for number, (session, turn) in enumerate(turns):
        prompt_len = reading.tokens(body_text(turn))
        name = next((name for name in _OUTPUT_LENGTHS if name in turn), "output_length")
        output_len = reading.output(name, turn.get(name))
        moment = milliseconds("timestamp", turn.get("timestamp"))
        if session is None:
            yield recorded(str(number), prompt_len, output_len, moment or 0.0)
            continue
        conversation = conversations[text("session_id", session)]
        delay = milliseconds("delay", turn.get("delay")) or 0.0
        yield conversation.turn(
            str(number), [(own_stream(str(number)), prompt_len)], output_len, moment, delay
        )


_OUTPUT_LENGTHS = ("output_length", "max_completion_tokens", "max_tokens")


def _turns(entry: Mapping[str, Any], number: int) -> Iterator[tuple[object, Mapping[str, Any]]]:
    """The turns of a line or file, each with the conversation that it belongs to, or None."""
    if "turns" in entry:
        session = entry.get("session_id") or f"line {number}"
        yield from ((session, turn) for turn in objects(entry, "turns"))
    elif "data" in entry:
        for item in objects(entry, "data"):
            bodies = objects(item, "payloads" if "payloads" in item else "payload")
            said = {name: _only(item[name]) for name in ("timestamp", "delay") if name in item}
            yield from ((_only(item.get("session_id")), {**body, **said}) for body in bodies)
    else:
        yield entry.get("session_id"), entry


def _only(value: object) -> object:
    """genai-perf writes single values as lists of one."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def body_text(body: object) -> str:
    """All text of a turn, or of the body of a request: messages, a prompt, or plain texts.

    Images, audio and the names of roles are left out.

    Raises:
        WorkloadError: it has none of these.
    """
    for key in ("messages", "prompt", "text", "texts", "text_input"):
        if isinstance(body, dict) and key in body:
            return "".join(_texts(body[key]))
    raise WorkloadError("text", NOTHING, "messages, prompt, text, texts or text_input")


def _texts(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list():
            for part in value:
                yield from _texts(part)
        case {"content": part} | {"contents": part} | {"text": part}:
            yield from _texts(part)
        case None | {}:
            return
        case _:
            raise WorkloadError("text", brief(value), "texts")
