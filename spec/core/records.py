"""What the steps of every policy are recorded with: kinds, events, and what rules may look up."""

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from attrs import frozen

from spec.core.configuration import PolicyConfig
from spec.core.requests import BlockKeys, Request

PREFILL, DECODE, IDLE = "prefill", "decode", "idle"  # the kinds of a step

WRITTEN_AS = "written as"  # in the metadata of a field: its name in ITF traces, if another

ConfigT = TypeVar("ConfigT", bound=PolicyConfig)


@frozen
class Event:
    """One transition inside a step, with the id of the rule that allowed or caused it.

    `id`: the request; empty where the transition is of the whole batch. `before` and `after`: the
    values around it, where it changes one (tkv, blocks).
    """

    transition: str
    id: str
    rule: str
    before: Any = None
    after: Any = None


@frozen
class Context(Generic[ConfigT]):
    """What rules may look up: the configuration, the requests by id, the keys of their blocks."""

    config: ConfigT
    requests: Mapping[str, Request]
    keys: BlockKeys
