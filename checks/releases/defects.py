"""Pages for maintainers of releases: each defect with the steps of its recording."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import spec
from checks.harness.campaigns.recording import Recording, read_recording
from checks.harness.system import Json
from checks.harness.views.viewing import document_of_file
from checks.registry import claims_of
from checks.releases.markdown import table
from spec.core.requests import Request

_ROOT = Path(spec.__file__).parent
DEFECTS = _ROOT / "chapters" / "releases"
RECORDED = _ROOT.parent / "tests" / "recorded"
_PLACE = re.compile(
    r"<!-- recording: ([\w.-]+) -->\n(?:.*?<!-- end of recording -->\n)?", re.DOTALL
)
_NOT_OF_A_RELEASE = ("policy", "reading", "release", "prefill_time", "decode_time", "admission")
_MOST_STEPS = 12  # listed steps; the recording has all


def defect_pages() -> Iterator[tuple[Path, str]]:
    """The path of each page, and its text with the recordings inserted again.

    Empty outside a checkout, which has the recordings.
    """
    for path in sorted(DEFECTS.glob("*.md")) if RECORDED.is_dir() else ():
        yield path, with_recordings(path.read_text(encoding="utf-8"))


def with_recordings(page: str) -> str:
    """The page with the steps of each recording after the comment that names it."""
    return _PLACE.sub(lambda match: f"{_shown(match[1])}<!-- end of recording -->\n", page)


def recording_names(page: str) -> list[str]:
    """The names of the recordings of a page."""
    return [match[1] for match in _PLACE.finditer(page)]


def recording_breaches(name: str) -> dict[int, list[str]]:
    """By step, the rules that the release breaks in a recording; "crash" if it raises."""
    document = document_of_file(RECORDED / f"{name}.jsonl")
    broken = {int(step): list(rules) for step, rules in document["overview"]["broken"].items()}
    if document["violation"] is not None:
        broken[document["violation"]["frame"]] = [document["violation"]["rule"]]
    return broken


def _shown(name: str) -> str:
    recording, broken = read_recording(RECORDED / f"{name}.jsonl"), recording_breaches(name)
    driver, version = recording.hello.name, recording.hello.release.split()[1]
    parts = [
        f"<!-- recording: {name} -->",
        f"Seen in {recording.hello.release}, recorded in `tests/recorded/{name}.jsonl`.",
        "",
        "Configuration, as far as it is not the default: " + ", ".join(_settings(recording)) + ".",
        "",
        *_requests(recording.case.requests),
        "",
        "| step | before it | what the release does |",
        "| --- | --- | --- |",
        *list(_steps(recording, broken))[:_MOST_STEPS],
        "",
        f"    lockstep conform {driver}=={version} --case tests/recorded/{name}.jsonl",
        "",
    ]
    return "\n".join(parts)


def _settings(recording: Recording) -> Iterator[str]:
    config = recording.case.config
    usual = claims_of(config.policy).config().as_mapping()
    for key, value in config.as_mapping().items():
        if value != usual.get(key) and key not in _NOT_OF_A_RELEASE:
            yield f"`{key}` {str(value).lower() if isinstance(value, bool) else value}"


def _requests(requests: Sequence[Request]) -> Iterator[str]:
    """The table of the requests; with a column for the earlier turn where there are sessions."""
    earlier = {request.continued_by: request.id for request in requests if request.continued_by}
    columns = ["request", "prompt, tokens", "prompt", "at most to generate"]
    rows = [_request(request) for request in requests]
    if earlier:
        columns.append("continues")
        rows = [[*row, earlier.get(row[0], "-")] for row in rows]
    yield from table(columns, rows)


def _request(request: Request) -> list[str]:
    parts = [
        f"{count} of `{name}`" for name, count in request.prompt.parts if isinstance(name, str)
    ]
    prompt = ", ".join(parts) or "-"
    return [request.id, str(request.prompt_len), prompt, str(request.max_tokens)]


def _steps(recording: Recording, broken: dict[int, list[str]]) -> Iterator[str]:
    for index, action in enumerate(recording.actions):
        record = recording.records[index] if index < len(recording.records) else None
        does = "; ".join([_done(recording, record), *_breaks(broken.get(index, []))])
        yield f"| {index} | {', '.join(_happened(action)) or '-'} | {does} |"


def _happened(action: Json) -> Iterator[str]:
    verbs = {"arrive": "arrives", "abort": "aborted", "abort_running": "aborted while it runs"}
    verbs |= {"loaded": "has loaded", "lost": "loses its load", "sent": "is sent"}
    verbs |= {"answered": "is answered by the connector", "compiled": "has its grammar"}
    verbs |= {"encoded": "has its images encoded", "unencodable": "has images that fail"}
    for kind, verb in verbs.items():
        for request_id in action.get(kind, ()):
            yield f"{request_id} {verb}"


def _done(recording: Recording, record: Json | None) -> str:
    if record is None:
        failure = recording.failure
        return f"{failure.type} in `{failure.at}`" if failure is not None else "-"
    computed = ", ".join(
        f"{tokens} of {request_id}" for request_id, tokens in record["scheduled"].items()
    )
    waiting = ", ".join(record.get("waiting", ()))
    kind = record.get("kind", "computes" if computed else "idle")
    parts = [f"{kind} {computed}".strip(), f"{waiting} waits" if waiting else ""]
    return ", ".join(part for part in parts if part)


def _breaks(rules: list[str]) -> Iterator[str]:
    named = [rule for rule in rules if rule != "crash"]
    if named:
        yield f"**{', '.join(named)}**"
