"""Steps, states and requests out of checked JSON values: the way back from `encoding`."""

from collections.abc import Mapping
from typing import Any, TypeVar

from checks.export.trace.encoding import SEQUENCE_DEFAULTS, Json
from checks.export.trace.shapes import within
from checks.policies import POLICIES
from engine.workloads.checked import NOTHING
from engine.workloads.own import request_of
from spec.core.blocks import BlockPool
from spec.core.configuration import PolicyConfig
from spec.core.errors import InputError, TraceError
from spec.core.records import PREFILL, Event
from spec.core.requests import Request
from spec.core.sharing import FrozenMap
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Chunk, Step
from spec.spyre.state import Sequence, State

Conf = TypeVar("Conf", bound=PolicyConfig)


def config_from_json(values: Json) -> SpyreConfig:
    """The configuration of a Spyre scheduler in a header, see `any_config_from_json`."""
    return _config(SpyreConfig, values)


def any_config_from_json(policy: str, values: Json) -> PolicyConfig:
    """The configuration of a header.

    Raises:
        TraceError: an unknown policy, or a configuration that is refused.
    """
    if policy not in POLICIES:
        raise TraceError("policy", policy, ", ".join(POLICIES))
    config: type[PolicyConfig] = POLICIES[policy].config
    return _config(config, values)


def _config(config: type[Conf], values: Json) -> Conf:
    try:
        return config.from_mapping(values)
    except InputError as error:
        raise within("config", error) from None


def step_from_json(line: Json, last: State | None, requests: Mapping[str, Request]) -> Step:
    """The step of a full line; `last` is the state that the step before left.

    Raises:
        TraceError: a state is missing, or has a request that `requests` does not name.
    """
    states = line["state"]
    before = state_from_json(states["before"], requests) if "before" in states else last
    if before is None:
        raise no_first_state()
    return Step(
        index=line["step"],
        time=line["time"],
        kind=line["kind"],
        before=before,
        after=state_from_json(states["after"], requests),
        scheduled=line["scheduled"],
        tkv=line["tkv"],
        volume=line["volume"],
        chunk=_chunk(line) if line["kind"] == PREFILL else None,
        batch=tuple(_sequence(row, requests) for row in states.get("batch", ())),
        outputs=line["outputs"],
        ended=tuple(states.get("ended", ())),
        finished=tuple(line["finished"]),
        aborted=tuple(line["aborted"]),
        refusal=line["refusal"],
        events=events_from_json(line["events"]),
    )


def no_first_state() -> TraceError:
    """The refusal of a first line without the state that its step started from."""
    return TraceError("state.before", NOTHING, "the state from which the first step starts")


def _chunk(line: Json) -> Chunk:
    fields, states = line["prefilling"], line["state"]
    if fields is None:
        raise TraceError("prefilling", None, "the chunk of this prefill step")
    for name in ("block_table", "writes"):
        if name not in states:
            raise TraceError(f"state.{name}", NOTHING, "the blocks of this prefill step's chunk")
    return Chunk(
        **{name: fields[name] for name in _CHUNK_FIELDS},
        block_table=tuple(states["block_table"]),
        writes=tuple(states["writes"]),
    )


_CHUNK_FIELDS = (
    "id",
    "chunk",
    "chunks",
    "start",
    "end",
    "left_padding",
    "right_padding",
    "cached_tokens",
    "inner_padding",
)


def events_from_json(lines: list[Json]) -> tuple[Event, ...]:
    """The transitions that made up a step."""
    return tuple(map(_event, lines))


def _event(fields: Json) -> Event:
    return Event(
        fields["transition"],
        fields["id"],
        fields["rule"],
        _tupled(fields.get("from")),
        _tupled(fields.get("to")),
    )


def _tupled(value: Any) -> Any:
    return tuple(_tupled(one) for one in value) if isinstance(value, list) else value


def state_from_json(fields: Json, requests: Mapping[str, Request]) -> State:
    """A whole state.

    Raises:
        TraceError: it has a request that `requests` does not name.
    """

    def sequences(name: str) -> tuple[Sequence, ...]:
        return tuple(_sequence(one, requests) for one in fields[name])

    slot = fields["prefilling"]
    return State(
        pool=pool_from_json(fields["pool"]),
        waiting=sequences("waiting"),
        prefilling=None if slot is None else _sequence(slot, requests),
        decoding=sequences("decoding"),
        paused=sequences("paused"),
        finished=frozenset(fields["finished"]),
        aborted=frozenset(fields["aborted"]),
        last_kind=fields["last_kind"],
        last_tkv=fields["last_tkv"],
    )


def _sequence(fields: Json, requests: Mapping[str, Request]) -> Sequence:
    if fields["id"] not in requests:
        raise TraceError("state", fields["id"], "requests that the header names")
    known = {name: fields[name] for name in SEQUENCE_DEFAULTS if name in fields}
    return Sequence(**known | {"blocks": tuple(fields.get("blocks", ()))})


def pool_from_json(fields: Json) -> BlockPool:
    """A whole block pool."""
    return BlockPool(
        size=fields["size"],
        free=tuple(fields["free"]),
        references=FrozenMap({int(block): count for block, count in fields["references"].items()}),
        keys=FrozenMap({int(block): bytes.fromhex(key) for block, key in fields["keys"].items()}),
        cached=FrozenMap(
            {bytes.fromhex(key): tuple(blocks) for key, blocks in fields["cached"].items()}
        ),
    )


def requests_from_json(entries: list[Json]) -> dict[str, Request]:
    """The workload of a header, by id.

    Raises:
        TraceError: a request is malformed, or an id comes twice.
    """
    requests: dict[str, Request] = {}
    for index, entry in enumerate(entries):
        try:
            request = request_of(entry)
        except InputError as error:
            raise within(f"requests[{index}]", error) from None
        if request.id in requests:
            raise TraceError(f"requests[{index}].id", request.id, "an id of its own")
        requests[request.id] = request
    return requests
