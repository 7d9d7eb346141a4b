"""Instances to explore: a few requests under a configuration, and the events allowed for them.

A TOML file has one table for each instance, by name. Its table `common` has configuration keys of
all instances; `config` has those of one instance, and `variant` names the function that makes the
configuration. `requests` have the ids 0, 1, …; each is a prompt and its maximum output, or a table
with these and other keys of requests. A prompt is a number of tokens that no other request shares,
a text with a token for each letter, a list of token ids, or a list of named streams, each with a
number of tokens. All other keys are fields of `Instance`; request ids are separated by spaces.
`also` makes a second instance with other values of configuration keys, named after them, and with
edges of its own.
"""

import tomllib
from collections.abc import Callable, Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from attrs import field, frozen

from checks.registry import DEFAULT
from spec.core.configuration import PolicyConfig
from spec.core.requests import Prompt, Request

ConfigT = TypeVar("ConfigT", bound=PolicyConfig)

FEWER_DRAFTS = "is proposed"  # in the label of an edge with fewer drafts than are configured
LEAVES = "leaves"  # in that of an edge in which a client leaves while the model runs


@frozen(kw_only=True)
class Instance(Generic[ConfigT]):
    """A bounded question: these requests under this configuration, and the events allowed for them.

    Requests arrive in any order at any time. `aborts`: requests that may be aborted, in any phase.
    `early_ends`: requests that may sample the end of sequence as any token. `returning`: requests
    that may arrive again after they left, any number of times.

    With a connector: `external`, the number of external tokens by request; `failing`, requests
    whose load may fail. With drafts any number of them may be accepted; `fewer_drafts`: requests
    for which fewer may be proposed than are configured, or none. `leavers`: requests that may be
    aborted while a step runs, if the machine has such a transition. `edges`: the number of edges of
    its graph, if a table pins it, else 0.
    """

    name: str
    about: str
    config: ConfigT
    requests: tuple[Request, ...]
    aborts: frozenset[str] = frozenset()
    early_ends: frozenset[str] = frozenset()
    returning: frozenset[str] = frozenset()
    external: Mapping[str, int] = field(factory=dict, hash=False)
    failing: frozenset[str] = frozenset()
    fewer_drafts: frozenset[str] = frozenset()
    leavers: frozenset[str] = frozenset()
    edges: int = 0

    def allowed_events(self, request_id: str) -> Hashable:
        """Equal for two requests for which the same events are allowed."""
        allowed = (
            *(self.aborts, self.early_ends, self.returning),
            *(self.failing, self.fewer_drafts, self.leavers),
        )
        return self.external.get(request_id), *(request_id in ids for ids in allowed)


def title_of(instance: Instance[Any]) -> str:
    """The unique name of an instance: after the policy's name, unless that is the default."""
    name = instance.config.policy
    return instance.name if name == DEFAULT else f"{name}, {instance.name}"


def read_instances(path: Path, **variants: Callable[..., ConfigT]) -> tuple[Instance[ConfigT], ...]:
    """The instances of a file, in its order.

    `variants` make configurations from keys; an instance that names none uses `plain`.

    Raises:
        InputError: a configuration or request is invalid.
    """
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    common = tables.pop("common")
    return tuple(
        _instance(full_name, variants, common, own_table)
        for name, table in tables.items()
        for full_name, own_table in _with_second(name, table)
    )


def _with_second(name: str, table: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The table of an instance without `also`, and the one that `also` makes of it."""
    also = table.pop("also", None)
    yield name, {**table}
    if also is not None:
        edges = also.pop("edges", 0)
        config = {**table.get("config", {}), **also}
        yield (
            ", ".join([name, *map(str, also.values())]),
            {
                **table,
                "config": config,
                "edges": edges,
            },
        )


def _instance(
    name: str,
    variants: Mapping[str, Callable[..., ConfigT]],
    common: dict[str, Any],
    table: dict[str, Any],
) -> Instance[ConfigT]:
    config = variants[table.pop("variant", "plain")](**common | table.pop("config", {}))
    rows, about = table.pop("requests"), table.pop("about")
    requests = tuple(_request(str(index), row) for index, row in enumerate(rows))
    own = {request.id: request.external for request in requests if request.external}
    return Instance(
        name=name,
        about=about,
        config=config,
        requests=requests,
        external=own | table.pop("external", {}),
        edges=table.pop("edges", 0),
        **{key: frozenset(ids.split()) for key, ids in table.items()},
    )


def _request(id_: str, row: Any) -> Request:
    keys = dict(zip(("prompt", "max_tokens"), row, strict=True)) if isinstance(row, list) else row
    own = {name: value for name, value in keys.items() if name != "encoder_spans"}
    own["prompt"] = _prompt(id_, keys["prompt"]).with_spans(keys.get("encoder_spans", ()))
    own["output"] = tuple(keys["output"]) if "output" in keys else None
    if "after" in keys:
        own["arrival_time"] = 0.0  # as soon as that one has ended, or at any time after
    return Request(**{**own, "id": id_})


def _prompt(id_: str, tokens: Any) -> Prompt:
    match tokens:
        case int():
            return Prompt.of_stream(f"own {id_}", tokens)
        case str():
            return Prompt.of_tokens([ord(letter) for letter in tokens])
        case [[str(), int()], *_]:
            return Prompt.of_parts([(name, count) for name, count in tokens])
    return Prompt.of_tokens(tokens)
