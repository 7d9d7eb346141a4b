"""What vLLM V1's releases do differently where the text is silent: a row for each release.

A row names what changed since the release before it. The chapter on vLLM V1 has the same table with
the rules that judge each line.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from attrs import evolve, frozen


class Release(StrEnum):
    """The release to follow where releases differ and the text is silent.

    `0.33.0`: a request that is alone may exceed the threshold, one that preempts itself does not
    end the step, and the blocks of accepted drafts can be found at once. `0.28.0` puts freed blocks
    without content in front of the free list, stops at a prompt that must not be cut, and fills a
    fresh one-token request up with drafts. `0.11.2` puts all freed blocks at the end, steps over
    such a prompt, and fills nothing up.
    """

    V0_33_0 = "0.33.0"
    V0_28_0 = "0.28.0"
    V0_11_2 = "0.11.2"


@frozen(kw_only=True)
class Behaviour:
    """The choices of a release.

    - `steps_over_uncut`: a prompt that must not be cut is stepped over; else admissions end.
    - `empty_blocks_first`: freed blocks without content go to the front of the free list.
    - `pads`: beside decoding requests, a fresh one with one token to compute is filled up with
      drafts, so that all rows of the step have one length.
    - `pads_alone`: so is one with cached tokens where no other request is scheduled.
    - `padding_needs_length`: one whose padding ends beyond the model length waits; else it is
      padded only where the sampled token has a position, too.
    - `threshold_binds_alone`: the threshold also cuts the tokens of the only request.
    - `own_preemption_ends_turns`: behind a running request that preempts itself none gets a token.
    - `holders_first`: by priority, too, requests with loaded blocks are visited before all others,
      and one without blocks that is passed over keeps its place.
    - `caches_accepted`: with drafts, lookups find the blocks that a step has computed at its end,
      those of accepted drafts among them; else when the next step of the request is planned.
    - `trims_at_end`: accepted drafts behind the end of a request do not count as computed.
    - `spares_in_flight`: a request whose blocks would be free only later is not preempted, and
      behind the one that lacks blocks none gets a token.
    - `pools_last_position`: the last position of the model length may be computed where the model
      pools and samples nothing for it.
    - `loads_unread`: a connector also brings tokens to a request that reads no cache.
    - `keeps_state_for_same_prompt`: of a prompt that ends with a block the state one block before
      is kept, too, which a request with the same prompt finds.
    - `retires_over_gaps`: all states are given back that are read no more; else only those between
      the last of them and a place without one, and the one before the newest.
    - `loads_reserve_drafts`: an asynchronous load also leaves slots for the next step with drafts,
      of prompts in progress and of its own.
    - `keeps_repeated`: a content that a request has more than once is kept until it has passed all
      of its spans that a step has come to; else until it has passed the first of them.
    - `keeps_whole`: where spans are not to be split, a step also stops in front of one that is
      cached, and of one at which it begins.
    - `encodes_for_drafter`: a drafter that reads ahead comes only to tokens whose encodings are
      there, which are kept until it has read the token behind their last one; else it reads what
      is there, and they are kept until their tokens are computed.
    - `passes_over_unencoded`: a waiting request none of whose tokens can be computed before an
      encoding is there keeps its place, and those behind it are looked at; else admissions end.
    """

    steps_over_uncut: bool
    empty_blocks_first: bool
    pads: bool
    pads_alone: bool
    padding_needs_length: bool
    threshold_binds_alone: bool
    own_preemption_ends_turns: bool
    holders_first: bool
    caches_accepted: bool
    trims_at_end: bool
    loads_reserve_drafts: bool
    spares_in_flight: bool
    pools_last_position: bool
    loads_unread: bool
    keeps_repeated: bool
    keeps_whole: bool
    encodes_for_drafter: bool
    passes_over_unencoded: bool
    keeps_state_for_same_prompt: bool
    retires_over_gaps: bool


_V0_11_2 = Behaviour(
    steps_over_uncut=True,
    empty_blocks_first=False,
    pads=False,
    pads_alone=False,
    padding_needs_length=True,
    threshold_binds_alone=True,
    own_preemption_ends_turns=True,
    holders_first=False,
    caches_accepted=False,
    trims_at_end=False,
    loads_reserve_drafts=False,
    spares_in_flight=False,
    pools_last_position=False,
    loads_unread=True,
    keeps_repeated=False,
    keeps_whole=False,
    encodes_for_drafter=True,
    passes_over_unencoded=False,
    keeps_state_for_same_prompt=False,
    retires_over_gaps=False,
)
_V0_28_0 = evolve(_V0_11_2, steps_over_uncut=False, empty_blocks_first=True, pads=True)
_V0_33_0 = evolve(
    _V0_28_0,
    pads_alone=True,
    padding_needs_length=False,
    threshold_binds_alone=False,
    own_preemption_ends_turns=False,
    holders_first=True,
    caches_accepted=True,
    trims_at_end=True,
    loads_reserve_drafts=True,
    spares_in_flight=True,
    pools_last_position=True,
    loads_unread=False,
    keeps_repeated=True,
    keeps_whole=True,
    encodes_for_drafter=False,
    passes_over_unencoded=True,
    keeps_state_for_same_prompt=True,
    retires_over_gaps=True,
)

BEHAVIOURS: Mapping[Release, Behaviour] = MappingProxyType(
    {Release.V0_33_0: _V0_33_0, Release.V0_28_0: _V0_28_0, Release.V0_11_2: _V0_11_2}
)
"""The choices of each release."""
