"""What pages draw from: the situations of a run, with all that is said of the run as a whole."""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from gzip import compress, decompress
from typing import Any

from attrs import define, field

from checks.export.files import as_line
from checks.export.pages.situation import Json, Moment, situation_of
from checks.export.policy import presentation_of
from checks.export.trace.requests import request_as_json
from checks.registry import claims_of
from spec.core.records import SomeContext
from spec.core.rule import AnyRule

FORMAT = "lockstep-steps"
VERSION = 1
MOST_INLINE = 256  # frames that stand in a document as they are
CHUNK = 64  # frames that are packed together: they are unpacked when one of them is shown


@define
class _Overview:
    """What is known of every frame at once."""

    kinds: list[str] = field(factory=list)
    labels: list[str] = field(factory=list)
    measures: dict[str, Json] = field(factory=dict)
    refused: dict[int, str] = field(factory=dict)
    broken: dict[int, list[str]] = field(factory=dict)
    events: list[int] = field(factory=list)
    rules: set[str] = field(factory=set)
    _transitions: frozenset[str] = frozenset()
    _refusal: str | None = None

    def add(self, frame: Sequence[Json | None]) -> None:
        """The next frame; what is drawn above the scrubber is of the first side that has it."""
        index = len(self.kinds)
        sides = [one for one in frame if one is not None]
        first = sides[0]
        self.kinds.append(first["kind"][0])
        self.labels.append(first["label"])
        for meter in first["meters"]:
            known = self.measures.setdefault(
                meter["name"], {"unit": meter["unit"], "limit": None, "values": []}
            )
            known["values"] += [None] * (index - len(known["values"])) + [meter["value"]]
            known["limit"] = meter["limit"] if known["limit"] is None else known["limit"]
        if first["refused"] is not None:
            self.refused[index] = first["refused"]["rule"]
        found = [rule for one in sides for rule, _ in one["broken"]]
        if found:
            self.broken[index] = list(dict.fromkeys(found))
        self.rules |= {*found, *(event["rule"] for one in sides for event in one["events"])}
        self.rules |= {one["refused"]["rule"] for one in sides if one["refused"] is not None}
        self._note_event(index, first, bool(found))

    def _note_event(self, index: int, first: Json, is_broken: bool) -> None:
        """A frame is an event if something in it was not so in the one before."""
        transitions = frozenset(event["transition"] for event in first["events"])
        refusal = None if first["refused"] is None else first["refused"]["rule"]
        changes = first["arrived"] or first["aborted"] or first["finished"]
        is_new = refusal not in (None, self._refusal) or not transitions <= self._transitions
        if is_broken or changes or is_new:
            self.events.append(index)
        self._transitions, self._refusal = transitions, refusal

    def as_json(self, first: Sequence[str]) -> Json:
        """As the document has it; `first`: the measures that come before the others."""
        count = len(self.kinds)
        measures = []
        known = [name for name in first if name in self.measures]
        for name in dict.fromkeys([*known, *self.measures]):
            one = self.measures[name]
            rest = [None] * (count - len(one["values"]))
            measures.append({"name": name, **one, "values": one["values"] + rest})
        usual = all(label == f"step {index}" for index, label in enumerate(self.labels))
        return {
            "count": count,
            **({} if usual else {"labels": self.labels}),
            "kinds": "".join(self.kinds),
            "measures": measures,
            "refused": self.refused,
            "broken": self.broken,
            "events": self.events,
        }


def document_of(
    ctx: SomeContext,
    frames: Iterable[Sequence[Moment | None]],
    *,
    title: str,
    about: str = "",
    sides: Sequence[str] = ("reference",),
    violation: Mapping[str, Any] | None = None,
    divergence: Mapping[str, Any] | None = None,
) -> Json:
    """The document of a run; each frame has a moment, or None, for each of the `sides`.

    `violation` and `divergence`: as `checks.export.pages` says. No more frames are kept as objects
    than are packed together.
    """
    drawn = ([None if one is None else situation_of(ctx, one) for one in frame] for frame in frames)
    said = {"violation": violation, "divergence": divergence}
    return document_of_situations(ctx, drawn, title=title, about=about, sides=sides, **said)


def document_of_situations(
    ctx: SomeContext,
    frames: Iterable[Sequence[Json | None]],
    *,
    title: str,
    about: str = "",
    sides: Sequence[str] = ("reference",),
    violation: Mapping[str, Any] | None = None,
    divergence: Mapping[str, Any] | None = None,
) -> Json:
    """The same of situations that are drawn already."""
    overview, inline, chunks = _Overview(), list[Sequence[Json | None]](), list[str]()
    for shown in frames:
        overview.add(shown)
        inline.append(shown)
        if len(inline) >= (CHUNK if chunks else MOST_INLINE):
            chunks += [_packed(inline[at : at + CHUNK]) for at in range(0, len(inline), CHUNK)]
            inline = []
    if chunks and inline:
        chunks.append(_packed(inline))
    return {
        "format": FORMAT,
        "version": VERSION,
        "title": title,
        "about": about,
        **_setting(ctx),
        "rules": _rules(ctx, overview.rules | ({violation["rule"]} if violation else set())),
        "sides": list(sides),
        "overview": overview.as_json(presentation_of(ctx.config.policy).picture.charts),
        "violation": violation,
        "divergence": divergence,
        **({"packed": {"size": CHUNK, "chunks": chunks}} if chunks else {"frames": inline}),
    }


def _packed(frames: Sequence[Any]) -> str:
    return b64encode(compress(as_line(frames).encode(), 6, mtime=0)).decode()


def unpacked(document: Json) -> list[list[Any]]:
    """The frames of a document, packed or not."""
    if "frames" in document:
        frames: list[list[Any]] = document["frames"]
        return frames
    chunks = (json.loads(decompress(b64decode(one))) for one in document["packed"]["chunks"])
    return [frame for chunk in chunks for frame in chunk]


def _setting(ctx: SomeContext) -> Json:
    requests = [
        {**request_as_json(one), "prompt_len": one.prompt_len} for one in ctx.requests.values()
    ]
    config = ctx.config
    setting = {"policy": config.policy, "config": config.as_mapping(), "requests": requests}
    owners = presentation_of(config.policy).codec.owners(ctx.requests)
    further = {name: owner for name, owner in owners.items() if name not in ctx.requests}
    return setting | ({"owners": further} if further else {})


def rule_as_json(rule: AnyRule) -> Json:
    """What a document says of a rule."""
    return {"says": rule.sentence, "source": str(rule.source), "kind": rule.kind.value}


def _rules(ctx: SomeContext, named: set[str]) -> Json:
    registry = claims_of(ctx.config.policy).registry
    applicable = {rule.id for rule in registry.applicable(ctx.config)}
    return {
        rule.id: rule_as_json(rule)
        for rule in registry.rules.values()
        if rule.id in applicable or rule.id in named
    }
