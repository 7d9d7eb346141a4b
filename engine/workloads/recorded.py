"""Requests of files that other tools wrote: what their readers have in common."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import ceil
from typing import Any

from attrs import define, field

from engine.workloads.checked import MOST_TOKENS, NOTHING, brief, seconds, whole
from engine.workloads.own import own_stream
from spec.core.errors import WorkloadError
from spec.core.requests import Prompt, Request, stream_tokens

CHARS_PER_TOKEN = 4.0  # of English text, roughly
OUTPUT_LEN = 256  # of a request that does not say it; what `vllm bench serve` asks for then


@define
class Reading:
    """Assumptions of one reading, and how often each was needed.

    `chars_per_token`: length of a text that is not tokenized. `output_len`: of requests that do not
    say how many tokens they ask for. `failed`: requests of a benchmark that failed.
    """

    chars_per_token: float = CHARS_PER_TOKEN
    output_len: int = OUTPUT_LEN
    failed: int = field(default=0, init=False)
    _texts: int = field(default=0, init=False)
    _outputs: int = field(default=0, init=False)

    def tokens(self, text: str) -> int:
        """The estimated length of a text; 0 if it is empty."""
        self._texts += 1
        return ceil(len(text) / self.chars_per_token)

    def output(self, name: str, value: object) -> int:
        """The output length in field `name`; the assumed one if `value` is None."""
        if value is None:
            self._outputs += 1
            return self.output_len
        return whole(name, value, 0, MOST_TOKENS, "tokens")

    def notes(self) -> Iterator[str]:
        """The assumptions that were needed, a clause each."""
        if self._texts:
            estimate = f"{self.chars_per_token:g} characters a token"
            yield f"texts: {self._texts:,} (lengths estimated at {estimate})"
        if self._outputs:
            assumed = f"{self.output_len:,} tokens assumed"
            yield f"requests without an output length: {self._outputs:,} ({assumed})"
        if self.failed:
            yield f"failed requests, left out: {self.failed:,}"


Reader = Callable[[Iterator[Any], Reading], Iterator[Request | None]]
"""Reads the rows of a file: of CSV mappings from column to cell, else JSON values.

Yields a request for each, or None for a row that is none: it has no prompt, or generated nothing.
Moments may count from anywhere; those before 0 make the earliest the new 0.
"""


def recorded(
    request_id: str,
    prompt_len: int,
    output_len: int,
    moment: float,
    *,
    prompt: Prompt | None = None,
    after: str | None = None,
) -> Request | None:
    """A request that generates exactly `output_len` tokens; None if it has none, or no prompt.

    `prompt`: by default one that no other request shares.
    """
    if prompt_len == 0 or output_len == 0:
        return None
    return Request(
        id=request_id,
        prompt=prompt or Prompt.of_stream(own_stream(request_id), prompt_len),
        max_tokens=output_len,
        arrival_time=moment,
        after=after,
    )


@define
class Conversation:
    """A conversation so far: a turn sends all prompts and answers before it, then its own prompt.

    `history`: their token streams. `last`: the id of the turn before. `wait`: the delay of that
    turn, if delays are waited after their turns; None: before.
    """

    history: tuple[tuple[str, int], ...] = ()
    last: str | None = None
    wait: float | None = None

    def turn(
        self,
        request_id: str,
        parts: Iterable[tuple[str, int]],
        output_len: int,
        moment: float | None = None,
        delay: float = 0.0,
    ) -> Request | None:
        """The next turn: at `moment`, or some time after the turn before has ended.

        A `delay` of the first turn means that delays are waited after their turns.
        """
        own, prompt = own_stream(request_id), f"turn {request_id}"
        parts = [(prompt if name == own else name, tokens) for name, tokens in parts]
        if not parts or output_len == 0:
            return None
        waits_after = self.wait is not None or (self.last is None and delay > 0)
        before = self.wait if self.wait is not None else 0.0 if waits_after else delay
        if self.last is None and moment is None:
            moment = 0.0
        answer = f"answer {request_id}", output_len
        request = Request(
            id=request_id,
            prompt=Prompt.of_parts([*self.history, *parts]),
            max_tokens=output_len,
            output=tuple(stream_tokens(*answer)),
            arrival_time=before if moment is None else moment,
            after=self.last if moment is None else None,
        )
        self.history, self.last = (*self.history, *parts, answer), request_id
        self.wait = delay if waits_after else None
        return request


def cell(row: Mapping[str, str], column: str) -> int:
    """The whole number of tokens in a cell of a CSV row."""
    text = row[column]
    # Longer numbers are refused anyway, and the longest cannot even be converted.
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(MOST_TOKENS))
    return whole(column, int(text) if is_number else text, 0, MOST_TOKENS, "tokens")


def cell_seconds(row: Mapping[str, str], column: str) -> float:
    """The number of seconds in a cell of a CSV row."""
    try:
        value: object = float(row[column])
    except ValueError:
        value = row[column]
    return seconds(column, value)


def member(entry: object, path: str, kind: type, default: object = NOTHING) -> Any:
    """The value at a path of keys in nested JSON objects, of this type.

    Raises:
        WorkloadError: a key is missing and there is no default, or the value has another type.
    """
    value = entry
    for key in path.split("."):
        value = value.get(key, NOTHING) if isinstance(value, dict) else NOTHING
    if value is NOTHING and default is not NOTHING:
        return default
    if not isinstance(value, kind):
        raise WorkloadError(path, brief(value), f"a JSON {_JSON[kind]}")
    return value


def objects(entry: object, path: str) -> list[dict[str, Any]]:
    """The JSON objects of the array at a path, see `member`."""
    values: list[Any] = member(entry, path, list)
    for index, value in enumerate(values):
        if not isinstance(value, dict):
            raise WorkloadError(f"{path}[{index}]", brief(value), "a JSON object")
    return values


_JSON: dict[type, str] = {dict: "object", list: "array", str: "string"}
