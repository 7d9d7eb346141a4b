"""Pages for maintainers of releases: each defect with what its recording shows."""

import re
from collections.abc import Iterator
from pathlib import Path

import spec
from checks.harness.recording import Recording, read_recording
from checks.harness.system import Json
from checks.harness.viewing import document_of_file
from checks.registry import claims_of
from spec.core.requests import Request

_ROOT = Path(spec.__file__).parent
DEFECTS = _ROOT / "chapters" / "releases"
RECORDED = _ROOT.parent / "tests" / "recorded"
_PLACE = re.compile(
    r"<!-- recording: ([\w.-]+) -->\n(?:.*?<!-- end of recording -->\n)?", re.DOTALL
)
_NOT_OF_A_RELEASE = ("policy", "reading", "release", "prefill_time", "decode_time", "admission")
_MOST_STEPS = 12  # that are listed; the recording has all


def defect_pages() -> Iterator[tuple[Path, str]]:
    """Each page, and what it says once what it shows of recordings is made anew.

    Recordings are in a checkout only.
    """
    for path in sorted(DEFECTS.glob("*.md")) if RECORDED.is_dir() else ():
        yield path, with_recordings(path.read_text(encoding="utf-8"))


def with_recordings(page: str) -> str:
    """The page with what each recording shows behind the comment that names it."""
    return _PLACE.sub(lambda found: f"{_shown(found[1])}<!-- end of recording -->\n", page)


def recordings_of(page: str) -> list[str]:
    """The names of the recordings of a page."""
    return [found[1] for found in _PLACE.finditer(page)]


def broken_in(name: str) -> dict[int, list[str]]:
    """By step, the rules that the release breaks in a recording; where it raises, "crash"."""
    document = document_of_file(RECORDED / f"{name}.jsonl")
    broken = {int(step): list(rules) for step, rules in document["overview"]["broken"].items()}
    if document["violation"] is not None:
        broken[document["violation"]["frame"]] = [document["violation"]["rule"]]
    return broken


def _shown(name: str) -> str:
    recording, broken = read_recording(RECORDED / f"{name}.jsonl"), broken_in(name)
    parts = [
        f"<!-- recording: {name} -->",
        f"Seen in {recording.hello.release}, recorded in `tests/recorded/{name}.jsonl`.",
        "",
        "Configuration, as far as it is not the default: " + ", ".join(_settings(recording)) + ".",
        "",
        "| request | prompt, tokens | prompt | at most to generate |",
        "| --- | --- | --- | --- |",
        *(_request(one) for one in recording.case.requests),
        "",
        "| step | before it | what the release does |",
        "| --- | --- | --- |",
        *list(_steps(recording, broken))[:_MOST_STEPS],
        "",
        f"    lockstep conform {recording.hello.name} --case tests/recorded/{name}.jsonl",
        "",
    ]
    return "\n".join(parts)


def _settings(recording: Recording) -> Iterator[str]:
    config = recording.case.config
    usual = claims_of(config.policy).config().as_mapping()
    for key, value in config.as_mapping().items():
        if value != usual.get(key) and key not in _NOT_OF_A_RELEASE:
            yield f"`{key}` {str(value).lower() if isinstance(value, bool) else value}"


def _request(one: Request) -> str:
    parts = [f"{count} of `{name}`" for name, count in one.prompt.parts if isinstance(name, str)]
    return f"| {one.id} | {one.prompt_len} | {', '.join(parts) or '-'} | {one.max_tokens} |"


def _steps(recording: Recording, broken: dict[int, list[str]]) -> Iterator[str]:
    for index, action in enumerate(recording.actions):
        record = recording.records[index] if index < len(recording.records) else None
        does = "; ".join([_done(recording, record), *_breaks(broken.get(index, []))])
        yield f"| {index} | {', '.join(_happened(action)) or '-'} | {does} |"


def _happened(action: Json) -> Iterator[str]:
    verbs = {"arrive": "arrives", "abort": "aborted", "abort_running": "aborted while it runs"}
    verbs |= {"loaded": "has loaded", "lost": "loses its load"}
    for kind, verb in verbs.items():
        for one in action.get(kind, ()):
            yield f"{one} {verb}"


def _done(recording: Recording, record: Json | None) -> str:
    if record is None:
        failure = recording.failure
        return f"{failure.type} in `{failure.at}`" if failure is not None else "-"
    computed = ", ".join(f"{tokens} of {one}" for one, tokens in record["scheduled"].items())
    waiting = ", ".join(record.get("waiting", ()))
    kind = record.get("kind", "computes" if computed else "idle")
    parts = [f"{kind} {computed}".strip(), f"{waiting} waits" if waiting else ""]
    return ", ".join(part for part in parts if part)


def _breaks(rules: list[str]) -> Iterator[str]:
    named = [rule for rule in rules if rule != "crash"]
    if named:
        yield f"**{', '.join(named)}**"
