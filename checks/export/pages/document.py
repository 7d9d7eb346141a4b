"""Documents for the pages: the situations of a run, its overview, rules and violation."""

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
MOST_INLINE = 256  # frames in a document without packing
CHUNK = 64  # frames that are packed together and unpacked when one of them is shown


@define
class _Overview:
    """The overview of all frames."""

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
        """Add the next frame; the charts above the scrubber show its first side."""
        index = len(self.kinds)
        sides = [side for side in frame if side is not None]
        first = sides[0]
        self.kinds.append(first["kind"][0])
        self.labels.append(first["label"])
        for meter in first["meters"]:
            measure = self.measures.setdefault(
                meter["name"], {"unit": meter["unit"], "limit": None, "values": []}
            )
            measure["values"] += [None] * (index - len(measure["values"])) + [meter["value"]]
            measure["limit"] = meter["limit"] if measure["limit"] is None else measure["limit"]
        if first["refused"] is not None:
            self.refused[index] = first["refused"]["rule"]
        broken = [rule for side in sides for rule, _ in side["broken"]]
        if broken:
            self.broken[index] = list(dict.fromkeys(broken))
        self.rules |= {*broken, *(event["rule"] for side in sides for event in side["events"])}
        self.rules |= {side["refused"]["rule"] for side in sides if side["refused"] is not None}
        self._note_event(index, first, bool(broken))

    def _note_event(self, index: int, first: Json, is_broken: bool) -> None:
        """Note the frame as an event if it has a change that the frame before has not."""
        transitions = frozenset(event["transition"] for event in first["events"])
        refusal = None if first["refused"] is None else first["refused"]["rule"]
        changes = first["arrived"] or first["aborted"] or first["finished"]
        is_new = refusal not in (None, self._refusal) or not transitions <= self._transitions
        if is_broken or changes or is_new:
            self.events.append(index)
        self._transitions, self._refusal = transitions, refusal

    def as_json(self, first: Sequence[str]) -> Json:
        """The overview as in the document; `first`: measures that come before the others."""
        count = len(self.kinds)
        measures = []
        leading = [name for name in first if name in self.measures]
        for name in dict.fromkeys([*leading, *self.measures]):
            measured = self.measures[name]
            rest = [None] * (count - len(measured["values"]))
            measures.append({"name": name, **measured, "values": measured["values"] + rest})
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

    `violation` and `divergence`: as described in `checks.export.pages`. Only the frames of one
    chunk are kept as objects.
    """
    drawn = (
        [None if step is None else situation_of(ctx, step) for step in frame] for frame in frames
    )
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
    """The document of frames that are situations already, see `document_of`."""
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
    chunks = (json.loads(decompress(b64decode(chunk))) for chunk in document["packed"]["chunks"])
    return [frame for chunk in chunks for frame in chunk]


def _setting(ctx: SomeContext) -> Json:
    requests = [
        {**request_as_json(request), "prompt_len": request.prompt_len}
        for request in ctx.requests.values()
    ]
    config = ctx.config
    setting = {"policy": config.policy, "config": config.as_mapping(), "requests": requests}
    owners = presentation_of(config.policy).codec.owners(ctx.requests)
    further = {name: owner for name, owner in owners.items() if name not in ctx.requests}
    return setting | ({"owners": further} if further else {})


def rule_as_json(rule: AnyRule) -> Json:
    """A rule as in a document."""
    return {"says": rule.sentence, "source": str(rule.source), "kind": rule.kind.value}


def _rules(ctx: SomeContext, named: set[str]) -> Json:
    registry = claims_of(ctx.config.policy).registry
    applicable = {rule.id for rule in registry.applicable(ctx.config)}
    return {
        rule.id: rule_as_json(rule)
        for rule in registry.rules.values()
        if rule.id in applicable or rule.id in named
    }
