"""Shared parts of the case generators: swarms, boundary lengths, prompts with common prefixes.

Each case first draws a `Swarm`, which switches off whole kinds of action and weights the others.
Lengths lie on boundaries of blocks and chunks or one token off. So some cases have only aborts in a
tight pool, others only nested prefixes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from itertools import count
from typing import Any, TypeAlias, TypeVar

from attrs import define, evolve, field, fields, frozen

from checks.harness.case import Case
from checks.harness.choices import Choices
from engine.workloads.own import own_stream
from spec.core.arithmetic import cdiv
from spec.core.configuration import PolicyConfig
from spec.core.requests import Prompt, Request

Generator: TypeAlias = Callable[[Choices, Mapping[str, Any]], Case]
"""Draws a case; the configuration keys in the mapping are pinned."""

ConfigT = TypeVar("ConfigT", bound=PolicyConfig)

_STREAMS = ("a", "b")  # few, so that prompts often begin alike
OFF_BY_ONE = (0, 0, 1, -1)
BLOCK_SIZES = (1, 2, 2, 3, 4, 4, 5, 8, 16)
SLOTS = (1, 2, 2, 3, 3, 4, 4, 5, 6)
_SHORT = 20  # tokens of a short answer


@frozen
class Swarm:
    """The share of each kind of action in a case; 0 switches it off.

    `boundaries`: lengths on a boundary or one token off. `shared`: prompts that begin with a common
    stream. `repeated`: prompts equal to an earlier one. `continued`: prompts that contain an
    earlier request's prompt and output. `prescribed`: outputs given token by token. `gap`: the most
    steps between two arrivals. `crowd`: many requests and slots. `short_answers`: short outputs, so
    that more steps are prefills.
    """

    crowd: bool
    short_answers: bool
    boundaries: float
    shared: float
    repeated: float
    continued: float
    prescribed: float
    early_ends: float
    aborts: float
    gap: int
    tight_pool: bool


def random_swarm(choices: Choices) -> Swarm:
    """A random swarm; the simplest switches everything off."""
    return Swarm(
        crowd=choices.chance(0.04),
        short_answers=choices.chance(0.5),
        boundaries=choices.one_of((0.0, 0.5, 0.8, 1.0)),
        shared=random_share(choices, 0.8),
        repeated=random_share(choices, 0.5),
        continued=random_share(choices, 0.5),
        prescribed=random_share(choices, 0.7),
        early_ends=random_share(choices, 0.8),
        aborts=random_share(choices, 0.8),
        gap=choices.one_of((0, 0, 0, 1, 1, 2, 4, 9)),
        tight_pool=choices.chance(0.5),
    )


def random_share(choices: Choices, most: float) -> float:
    """A random share: 0 in two of five draws, else up to `most`."""
    return choices.one_of((0.0, 0.0, 0.25, 0.5, 1.0)) * most


@frozen
class Limits:
    """The limits that a configuration sets for requests; lengths in tokens.

    `units`: lengths whose multiples are boundaries, the block size first. `most`: prompt and output
    together. `slots`: requests that run at once. `prefill_steps`: the steps that a prompt of this
    length takes. `priorities`: requests have a priority. `tail`: if above 0, a common prefix is at
    least one block long and is followed by at least `tail` tokens, if there is room.
    """

    units: tuple[int, ...]
    most: int
    slots: int
    prefill_steps: Callable[[int], int] = lambda _prompt_len: 1
    priorities: bool = False
    tail: int = 0


def random_requests(
    choices: Choices,
    swarm: Swarm,
    limits: Limits,
    also: Callable[[Choices, Request], None] = lambda _choices, _request: None,
) -> tuple[Request, ...]:
    """Random requests in order of arrival; `also` draws further inputs of each."""
    prompts = _Prompts(swarm, limits)
    free_steps = [0] * limits.slots  # about the step in which each slot is free again
    requests: list[Request] = []
    arrival = 0
    several = choices.several(15, 40) if swarm.crowd else choices.several(1, 12)
    for index, drawn in zip(count(), several):
        arrival += drawn.between(0, swarm.gap)
        request = _request(drawn, swarm, limits, prompts, str(index), arrival)
        prompts.known.append(request)
        slot = free_steps.index(min(free_steps))
        admitted = max(arrival, free_steps[slot])
        free_steps[slot] = admitted + limits.prefill_steps(request.prompt_len) + request.end
        also(drawn.part(), request)
        if drawn.chance(swarm.aborts):
            request = _aborted(drawn, limits, request, admitted)
        requests.append(request)
    return tuple(
        request if request.id in prompts.resembled else _private(request) for request in requests
    )


def _request(
    choices: Choices, swarm: Swarm, limits: Limits, prompts: "_Prompts", id_: str, arrival: int
) -> Request:
    most = limits.most - 1
    length = near(choices.part(), swarm, limits.units, most)
    prompt = prompts.draw(choices.part(), id_, length, most)
    max_tokens = _output_len(choices.part(), swarm, limits, prompt.length)
    end, answer = choices.part(), choices.part()
    ends = end.between(1, max_tokens) if end.chance(swarm.early_ends) else None
    output = None
    if answer.chance(swarm.prescribed):
        output = tuple(answer.between(0, 2) for _ in range(ends or max_tokens))
    return Request(
        id=id_,
        prompt=prompt,
        max_tokens=max_tokens,
        arrival=arrival,
        output_len=None if output else ends,
        output=output,
        priority=choices.between(0, 2) if limits.priorities else 0,
    )


def _aborted(choices: Choices, limits: Limits, request: Request, admitted: int) -> Request:
    """The request, aborted while it waits, is prefilled or decodes, or after its end.

    `admitted`: the estimated step of its admission.
    """
    joins = admitted + limits.prefill_steps(request.prompt_len)
    early = admitted + (limits.tail > 0)  # includes the step with the prefix hit
    leaves = joins + request.end
    first, last = choices.one_of(
        ((request.arrival, early), (admitted, joins), (joins, leaves), (joins, leaves + 5))
    )
    return evolve(request, abort_at=choices.between(first, last))


def near(choices: Choices, swarm: Swarm, units: Sequence[int], most: int) -> int:
    """A length from 1 to `most`, often a multiple of a unit or one off, sometimes `most`."""
    is_near, is_longest = choices.chance(swarm.boundaries), choices.chance(0.05)
    length = choices.between(1, choices.between(1, most))
    if is_near:
        unit = choices.one_of(units)
        whole = unit * choices.between(1, choices.between(1, max(1, most // unit)))
        return min(max(whole + choices.one_of(OFF_BY_ONE), 1), most)
    return most if is_longest else length


def _output_len(choices: Choices, swarm: Swarm, limits: Limits, prompt_len: int) -> int:
    """A `max_tokens`: often prompt and output end near a block boundary, sometimes at the limit."""
    most, block_size = limits.most - prompt_len, limits.units[0]
    most = min(most, _SHORT) if swarm.short_answers else most
    is_longest, is_near = choices.chance(0.2), choices.chance(swarm.boundaries)
    length = choices.between(1, most)
    if is_longest:
        return most
    if is_near:
        end = block_size * (int(cdiv(prompt_len, block_size)) + choices.between(0, 5))
        return min(max(end + choices.one_of(OFF_BY_ONE) - prompt_len, 1), most)
    return length


def generator_of(config: type[PolicyConfig]) -> Generator:
    """The generator of a policy that has only a configuration class.

    It draws block size, lengths and slots as for every policy, and any value of each switch and
    variant; other keys keep their defaults. It raises ConfigError if the draw is not allowed.
    """

    def generate(choices: Choices, pinned: Mapping[str, Any]) -> Case:
        swarm = random_swarm(choices)
        block = pinned.get("block_size") or choices.one_of(BLOCK_SIZES)
        keys: dict[str, Any] = {
            "block_size": block,
            "max_model_len": model_len(choices, block),
            "max_num_seqs": choices.one_of(SLOTS),
        }
        for key in fields(config):
            values = _all_values(key.type)
            if values:
                keys[key.name] = choices.one_of(values)
        made = config(**(keys | dict(pinned)))
        limits = Limits((made.block_size,), most_tokens(made), made.max_num_seqs)
        requests = random_requests(choices, swarm, limits)
        return Case(made, requests, swarm=swarm)

    return generate


def _all_values(type_: Any) -> tuple[Any, ...]:
    """All values of a switch or variant; empty for other keys."""
    if type_ is bool:
        return False, True
    return tuple(type_) if isinstance(type_, type) and issubclass(type_, Enum) else ()


def model_len(choices: Choices, block: int) -> int:
    """A model length of 2 to 9 blocks; in three of ten draws not a multiple of the block size."""
    is_odd = choices.chance(0.3)
    odd = choices.between(0, block - 1) if is_odd else 0
    return max(block * choices.between(2, 9) + odd, 2)


def most_tokens(config: PolicyConfig) -> int:
    """The most tokens, prompt and output, for which the model and the pool have room."""
    return min(config.max_model_len, config.pool_blocks * config.block_size)


def with_tight_pool(
    choices: Choices,
    swarm: Swarm,
    config: ConfigT,
    blocks: Iterable[int],
    pinned: Mapping[str, Any],
    held: int | None = None,
) -> ConfigT:
    """The configuration with a tight pool, if the swarm has one and `num_blocks` is not pinned.

    `blocks`: the blocks that each request needs. `held`: for how many requests there is room at
    most; None: for those that run at once.
    """
    if not swarm.tight_pool or "num_blocks" in pinned:
        return config
    size = tight_pool(choices, tuple(blocks), held or config.max_num_seqs)
    return evolve(config, num_blocks=size)


def tight_pool(choices: Choices, blocks: Sequence[int], slots: int) -> int:
    """A pool size near the sum of some requests' blocks, and large enough for each request alone.

    `blocks`: the blocks that each request needs. `slots`: requests that run at once.
    """
    together = sum(choices.one_of(blocks) for _ in range(choices.between(1, slots)))
    return max(together + choices.one_of(OFF_BY_ONE), *blocks)


@define
class _Prompts:
    """Draws prompts; a new prompt may resemble those of `known`, the requests drawn so far.

    `resembled`: ids of the requests that a later prompt resembles.
    """

    swarm: Swarm
    limits: Limits
    known: list[Request] = field(factory=list)
    resembled: set[str] = field(factory=set)

    def draw(self, choices: Choices, request_id: str, length: int, most: int) -> Prompt:
        """A prompt of about `length` tokens, at most `most`."""
        known, swarm = self.known, self.swarm
        # The first request draws as many numbers as the others, so that shrinking can remove it.
        if choices.chance(swarm.repeated if known else 0):
            return self._resembled(choices).prompt
        if choices.chance(swarm.continued if known else 0):
            return _continued(choices, self._resembled(choices), length, most)
        if choices.chance(swarm.shared):
            return _nested(choices, request_id, length, self.limits)
        return Prompt.of_stream(_own(request_id), length)

    def _resembled(self, choices: Choices) -> Request:
        other = self.known[choices.earlier(len(self.known))]
        self.resembled.add(other.id)
        return other


def _own(request_id: str) -> str:
    """The name of the stream of one request and of those that resemble it."""
    return f"r{request_id}"


def _private(request: Request) -> Request:
    """The request with its own stream of tokens, which workloads write as `prompt_len`."""
    own = Prompt.of_stream(_own(request.id), request.prompt_len)
    private = Prompt.of_stream(own_stream(request.id), request.prompt_len)
    return evolve(request, prompt=private) if request.prompt == own else request


def _continued(choices: Choices, other: Request, length: int, most: int) -> Prompt:
    """The next turn of a conversation: the other's prompt, output and possibly more tokens."""
    answered = choices.between(1, other.end)
    tokens = [*other.prompt.tokens(), *map(other.output_token, range(answered))]
    tokens += [choices.between(0, 2) for _ in range(length - len(tokens))]
    return Prompt.of_tokens(tokens[:most])


def _nested(choices: Choices, request_id: str, length: int, limits: Limits) -> Prompt:
    """A prompt that begins with a common stream and continues with another or its own."""
    first = choices.between(1, length)
    if limits.tail:
        first = max(first, limits.units[0])
        length = max(length, min(first + limits.tail, limits.most - 1))
    parts = [(choices.one_of(_STREAMS), first)]
    if first < length:
        own = choices.chance(0.5)
        name = _own(request_id) if own else choices.one_of(_STREAMS)
        parts.append((name, length - first))
    return Prompt.of_parts(parts)
