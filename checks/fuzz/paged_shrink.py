"""Smaller cases of vLLM V1 and nano-vLLM, see `checks.fuzz.shrink`."""

from collections.abc import Iterator
from typing import Any

from attrs import evolve

from checks.fuzz.cases import Case
from checks.fuzz.shrink import less, with_simpler_requests
from spec.core.configuration import PolicyConfig
from spec.core.errors import InputError
from spec.vllm_v1.config import Scheduling

_PLAIN: dict[str, Any] = {
    "prefix_caching": False,
    "scheduling": Scheduling.FCFS,
    "chunked_prefill": True,
    "reserve_full_prompt": False,
    "num_blocks": None,
}
_LEAST = {
    "num_lookahead_tokens": 0,
    "num_speculative_tokens": 0,
    "long_prefill_token_threshold": 0,
    "max_num_seqs": 1,
    "max_num_batched_tokens": 1,
    "max_model_len": 2,
    "num_blocks": 1,
    "block_size": 1,
}


def simpler_paged_cases(case: Case) -> Iterator[Case]:
    """Cases with less in them, each by one choice, the boldest first."""
    yield from map(_with_loads_that_end, with_simpler_requests(case))
    for one in case.right_drafts:
        others = {name: right for name, right in case.right_drafts.items() if name != one}
        yield evolve(case, right_drafts=others, swarm=None)
    for one in case.external:
        left = {name: has for name, has in case.external.items() if name != one}
        yield evolve(case, external=left, swarm=None)
    for config in _plainer_configs(case.config):
        yield evolve(case, config=config, swarm=None)


def _with_loads_that_end(case: Case) -> Case:
    """A prompt of one token would be loaded for ever, see `checks.fuzz.paged_cases`."""
    long = {one.id for one in case.requests if one.prompt_len > 1}
    return evolve(case, external={one: has for one, has in case.external.items() if one in long})


def _plainer_configs(config: PolicyConfig) -> Iterator[PolicyConfig]:
    """One key at its plain value, then smaller sizes, of those that the policy has."""
    given = config.as_mapping()
    changes = [{key: plain} for key, plain in _PLAIN.items() if given.get(key, plain) != plain]
    changes += [
        {key: size}
        for key, least in _LEAST.items()
        if key in given
        for size in less(given[key], least)
    ]
    for change in changes:
        try:
            yield evolve(config, **change)
        except InputError:  # no configuration that can be had
            continue
