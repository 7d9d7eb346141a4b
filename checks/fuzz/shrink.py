"""Smaller cases that show the same finding.

Delta debugging: requests are left out, then what is left is made simpler one choice at a time, as
long as the finding stays the same. Bounded by the steps that it runs, not by the clock, so that
the same finding always shrinks to the same case.
"""

from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any

from attrs import evolve

from checks.fuzz.cases import Case
from checks.fuzz.finding import Finding
from checks.fuzz.lockstep import Terms, run_case
from checks.fuzz.smallest import Shrunk as ShrunkCase
from checks.fuzz.smallest import smallest
from checks.fuzz.target import Subject
from engine.workloads.own import own_stream
from spec.core.errors import InputError
from spec.core.requests import Prompt, Request
from spec.spyre.config import Admission, Queue, SpyreConfig

MOST_STEPS = 40_000

Shrunk = ShrunkCase[Finding]


def shrink(
    subject: Subject,
    case: Case,
    finding: Finding,
    terms: Terms,
    pinned: Collection[str] = (),
    most_steps: int = MOST_STEPS,
) -> Shrunk:
    """The case made smaller until nothing smaller shows the finding, or the steps are used up.

    `pinned`: configuration keys that stay as they are.
    """
    attempt = partial(_run, subject, terms)
    return smallest(
        Shrunk(case, finding), attempt, partial(simpler_cases, pinned=pinned), most_steps
    )


def _run(subject: Subject, terms: Terms, case: Case) -> tuple[Finding | None, int] | None:
    if not subject.can_do(case.config):
        return None
    try:
        episode = run_case(subject, case, terms)
    except InputError:  # a request that this configuration could never serve
        return None
    return episode.finding, episode.steps


# --- simpler cases, the boldest first -----------------------------------------------------------


def simpler_cases(case: Case, pinned: Collection[str] = ()) -> Iterator[Case]:
    """Cases with less in them, each by one choice. `pinned`: configuration keys that stay."""
    yield from with_simpler_requests(case)
    if not {"block_size", "chunk_size", "max_model_len"} & set(pinned):
        yield from _scaled(case)
    yield from _plainer_configs(case, pinned)
    yield from _renamed(case)


def with_simpler_requests(case: Case) -> Iterator[Case]:
    """Cases with fewer requests, or plainer ones, under the same configuration."""
    for requests in (*_fewer(case.requests), *_plainer(case.requests)):
        yield evolve(case, requests=requests, swarm=None)


def _renamed(case: Case) -> Iterator[Case]:
    """The requests numbered from 0, if they are not."""
    names = {one.id: str(index) for index, one in enumerate(case.requests)}
    if any(old != new for old, new in names.items()):
        yield Case(case.config, tuple(_with_id(one, names[one.id]) for one in case.requests))


def _with_id(request: Request, id_: str) -> Request:
    own = Prompt.of_stream(own_stream(request.id), request.prompt_len)
    is_own = request.prompt == own
    prompt = Prompt.of_stream(own_stream(id_), request.prompt_len) if is_own else request.prompt
    return evolve(request, id=id_, prompt=prompt)


def _scaled(case: Case) -> Iterator[Case]:
    """Everything for smaller blocks: as many blocks as before, and no fuller."""
    config: SpyreConfig = case.config
    for size in less(config.block_size, 1):

        def scaled(tokens: int, size: int = size) -> int:
            blocks, rest = divmod(tokens, config.block_size)
            return blocks * size + min(rest, size)

        requests = tuple(_with_lengths(one, scaled) for one in case.requests)
        change: dict[str, Any] = {
            "block_size": size,
            "chunk_size": size * config.blocks_per_chunk,
            "max_model_len": scaled(config.max_model_len),
        }
        limit = config.max_batch_tkv_limit
        for tokens in sorted({limit, scaled(limit)}):
            plain = _changed(config, {**change, "max_batch_tkv_limit": tokens})
            if plain is not None:
                yield Case(plain, requests)


def _with_lengths(request: Request, scaled: Callable[[int], int]) -> Request:
    """The request with its prompt, and prompt and output together, of other lengths."""
    prompt = _cut(request.prompt, scaled(request.prompt_len))
    total = scaled(request.prompt_len + request.max_tokens)
    return evolve(_with_max_tokens(request, max(total - prompt.length, 1)), prompt=prompt)


def _fewer(requests: tuple[Request, ...]) -> Iterator[tuple[Request, ...]]:
    """Without a run of them: half, a quarter, down to one."""
    size = len(requests) // 2
    while size >= 1:
        for start in range(0, len(requests), size):
            yield requests[:start] + requests[start + size :]
        size //= 2


def _plainer(requests: tuple[Request, ...]) -> Iterator[tuple[Request, ...]]:
    """One of them simpler, or all of them earlier."""
    least = min(one.arrival for one in requests)
    for first in less(least, 0):
        yield tuple(_earlier(one, least - first) for one in requests)
    for index, request in enumerate(requests):
        for plain in _plainer_requests(request):
            yield (*requests[:index], plain, *requests[index + 1 :])


def _earlier(request: Request, steps: int) -> Request:
    leaves = None if request.abort_at is None else request.abort_at - steps
    return evolve(request, arrival=request.arrival - steps, abort_at=leaves)


def _plainer_requests(request: Request) -> Iterator[Request]:
    if request.abort_at is not None:
        yield evolve(request, abort_at=None)
        for step in less(request.abort_at, request.arrival):
            yield evolve(request, abort_at=step)
    if request.output is not None:
        yield evolve(request, output=None, output_len=len(request.output))
    if request.output_len is not None:
        yield evolve(request, output_len=None)
    for tokens in less(request.max_tokens, 1):
        yield _with_max_tokens(request, tokens)
    for step in less(request.arrival, 0):
        yield evolve(request, arrival=step)
    yield from (evolve(request, prompt=prompt) for prompt in _plainer_prompts(request))


def _with_max_tokens(request: Request, tokens: int) -> Request:
    ends = None if request.output_len is None else min(request.output_len, tokens)
    output = None if request.output is None else request.output[:tokens]
    return evolve(request, max_tokens=tokens, output_len=ends, output=output)


def _plainer_prompts(request: Request) -> Iterator[Prompt]:
    """Tokens of its own instead of shared ones, then fewer tokens."""
    prompt = request.prompt
    own = Prompt.of_stream(own_stream(request.id), prompt.length)
    if prompt != own:
        yield own
    for length in less(prompt.length, 1):
        yield _cut(prompt, length)


def _cut(prompt: Prompt, length: int) -> Prompt:
    """The first `length` tokens."""
    parts: list[Any] = []
    for part in prompt.parts:
        match part:
            case (str(name), int(count)):
                parts.append((name, min(count, length)))
                length -= min(count, length)
            case _:
                return Prompt.of_tokens(prompt.tokens()[:length])
        if length == 0:
            break
    return Prompt.of_parts(parts)


def less(value: int, least: int) -> Iterator[int]:
    """Smaller values down to `least`: the least itself, then nearer and nearer."""
    gap = value - least
    while gap:
        yield value - gap
        gap //= 2


# --- simpler configurations -----------------------------------------------------------------------

_PLAIN: dict[str, Any] = {
    "pausing": False,
    "long_output_first": False,
    "prefix_caching": False,
    "interleave": True,
    "reservation": True,
    "queue": Queue.FCFS,
    "admission": Admission.EXACT,
    "num_blocks": None,
}
_SIZES = ("max_num_seqs", "max_model_len", "num_blocks")
_NO_LIMIT = SpyreConfig().max_batch_tkv_limit


def _plainer_configs(case: Case, pinned: Collection[str]) -> Iterator[Case]:
    """One key at its plain value, then smaller sizes."""
    config = case.config
    changes: list[dict[str, Any]] = [
        {key: value} for key, value in _PLAIN.items() if getattr(config, key) != value
    ]
    if config.max_batch_tkv_limit != _NO_LIMIT:
        limits = (_NO_LIMIT, *less(config.max_batch_tkv_limit, 1))
        changes += [{"max_batch_tkv_limit": limit} for limit in limits]
    changes += [
        {"chunk_size": size * config.block_size} for size in less(config.blocks_per_chunk, 1)
    ]
    changes += [
        {"block_size": size, "chunk_size": size * config.blocks_per_chunk}
        for size in less(config.block_size, 1)
    ]
    for key in _SIZES:
        if getattr(config, key) is not None:
            changes += [{key: size} for size in less(getattr(config, key), 1)]
    for change in changes:
        if not change.keys().isdisjoint(pinned):
            continue
        plain = _changed(config, change)
        if plain is not None and plain != config:
            yield Case(plain, case.requests)


def _changed(config: SpyreConfig, change: dict[str, Any]) -> SpyreConfig | None:
    """The configuration with the change, if it is one that can be had."""
    try:
        return evolve(config, **change)
    except InputError:
        return None
