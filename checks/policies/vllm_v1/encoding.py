"""Random images and audio in prompts, and what the encoder may do in a step and keep."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from attrs import evolve

from checks.harness.choices import Choices
from spec.core.requests import Request
from spec.vllm_v1.config import VllmV1Config
from spec.vllm_v1.modelled import Feature, is_modelled_beside

Spans: TypeAlias = tuple[tuple[int, int, str], ...]  # of each its offset, tokens and content's name

_NAMES = ("cat", "dog", "owl")
_MOST_SPANS = 4  # of a request
_APART = 2  # tokens between two spans, so that a drafter that reads ahead reads one at a time


def with_encoder_spans(
    choices: Choices,
    config: VllmV1Config,
    requests: tuple[Request, ...],
    pinned: Mapping[str, Any],
) -> tuple[VllmV1Config, tuple[Request, ...]]:
    """Configuration and requests of which some have images or audio in their prompts."""
    share, reads_ahead = choices.one_of((0.0, 0.0, 0.0, 0.5, 1.0)), choices.chance(0.5)
    if not (share and is_modelled_beside(Feature.SPANS, config)):
        return config, requests
    plain, config = config, _with_drafter(config, pinned) if reads_ahead else config
    most = min([config.block_size + 2, 6, *_limits(config, pinned)])
    contents = [(choices.between(1, most), name) for name in _NAMES]
    drawn: list[Spans] = []
    for request in requests:
        is_chosen = choices.chance(share)
        apart = _APART if config.drafter_reads_ahead else 0
        drawn.append(_spans(choices, request, contents, drawn, apart) if is_chosen else ())
    longest = max((tokens for spans in drawn for _, tokens, _ in spans), default=0)
    if not longest:
        return plain, requests
    spanned = (
        evolve(request, prompt=request.prompt.with_spans(spans))
        for request, spans in zip(requests, drawn, strict=True)
    )
    return _with_encoder(choices, config, longest, pinned), tuple(spanned)


def _with_drafter(config: VllmV1Config, pinned: Mapping[str, Any]) -> VllmV1Config:
    """The configuration with a drafter that reads ahead, if that is modelled beside it."""
    keys: dict[str, Any] = {"prefix_caching": False, "drafter_reads_ahead": True}
    free = {name: value for name, value in keys.items() if name not in pinned}
    uncached = evolve(config, prefix_caching=free.get("prefix_caching", config.prefix_caching))
    is_modelled = is_modelled_beside(Feature.READING_AHEAD, uncached)
    return evolve(uncached, **free) if config.num_speculative_tokens and is_modelled else config


def _limits(config: VllmV1Config, pinned: Mapping[str, Any]) -> Iterator[int]:
    """The most tokens that a content may have where a key that limits them is not drawn."""
    if pinned.get("disable_chunked_mm_input"):
        yield max(config.token_budget - config.tokens_read_ahead, 1)
    if "max_num_encoder_input_tokens" in pinned:
        yield config.encoder_budget
    if "encoder_cache_size" in pinned:
        yield config.encoder_capacity


def _with_encoder(
    choices: Choices, config: VllmV1Config, longest: int, pinned: Mapping[str, Any]
) -> VllmV1Config:
    """The configuration with budget and capacity of the encoder, near the `longest` content."""
    whole, often = longest + config.tokens_read_ahead, 0.6 if config.drafter_reads_ahead else 0.3
    drawn: dict[str, Any] = {
        "max_num_encoder_input_tokens": longest + choices.between(0, 2 * longest),
        "encoder_cache_size": longest + choices.between(0, 2 * longest),
        "disable_chunked_mm_input": choices.chance(often) and whole <= config.token_budget,
    }
    return evolve(config, **{key: value for key, value in drawn.items() if key not in pinned})


def _spans(
    choices: Choices,
    request: Request,
    contents: Sequence[tuple[int, str]],
    earlier: Sequence[Spans],
    apart: int,
) -> Spans:
    """The spans of a request: as many of an earlier request's as fit, or own ones.

    `apart`: the fewest tokens between two of them.
    """
    repeats = choices.chance(0.4)
    if repeats and earlier:
        spans = earlier[choices.earlier(len(earlier))]
        return tuple(span for span in spans if span[0] + span[1] <= request.prompt_len)
    own: list[tuple[int, int, str]] = []
    end = 0
    for _ in range(choices.between(1, _MOST_SPANS)):
        tokens, name = choices.one_of(contents)
        offset = end + choices.between(0, 3)
        if own:
            offset += apart
        if offset + tokens <= request.prompt_len:
            own.append((offset, tokens, name))
            end = offset + tokens
    return tuple(own)
