"""The formats of workload files, and how a file is known to be of one."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from attrs import frozen

from engine.workloads import own, results, texts, traces
from engine.workloads.checked import brief
from engine.workloads.recorded import Reader
from spec.core.errors import InputError, WorkloadError
from spec.core.requests import Request

LOCKSTEP = "lockstep"
GROUP = "lockstep.workloads"
"""The group of entry points by which other packages add formats, see `Plugin`."""

Plugin = Callable[[Path], Iterable[Mapping[str, Any]] | None]
"""A reader of another package: the requests of a file with the keys of a Lockstep line, or None
if the file is of another format. The name of its entry point is that of the format."""


@frozen
class FileFormat:
    """A format: its reader, and what a file of it has.

    `columns`: all of these, in the first line of a CSV file. `keys`: one of these, in the first
    object of a JSON file.
    """

    reader: Reader
    columns: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()

    def __str__(self) -> str:
        return (
            f"CSV with {', '.join(self.columns)}"
            if self.columns
            else (f"JSON with {' or '.join(self.keys)}")
        )

    def fits(self, head: list[str] | Mapping[str, Any]) -> bool:
        """True if a file that begins with these columns, or this object, looks like it."""
        if isinstance(head, list):
            return bool(self.columns) and {*self.columns} <= {*head}
        return any(key in head for key in self.keys)


FORMATS: dict[str, FileFormat] = {  # the first that fits a file is taken
    "azure": FileFormat(traces.azure, columns=traces.AZURE_COLUMNS),
    "burstgpt": FileFormat(traces.burstgpt, columns=traces.BURSTGPT_COLUMNS),
    "servegen": FileFormat(traces.servegen, columns=traces.SERVEGEN_COLUMNS),
    "bailian": FileFormat(traces.bailian, keys=("chat_id",)),
    "mooncake": FileFormat(traces.mooncake, keys=("input_length", "hash_ids", "text_input")),
    "sharegpt": FileFormat(texts.sharegpt, keys=("conversations", "conversation")),
    "bench-serve": FileFormat(results.bench_serve, keys=("input_lens", "request_throughput")),
    "aiperf": FileFormat(results.aiperf, keys=("metrics",)),
    "genai-perf": FileFormat(results.genai_perf, keys=("experiments",)),
    "guidellm": FileFormat(results.guidellm, keys=("benchmarks",)),
    "aiperf-inputs": FileFormat(texts.aiperf_inputs, keys=("turns", "text", "texts", "data")),
    LOCKSTEP: FileFormat(
        own.own, keys=("id", "max_tokens", "prompt_len", "prompt_parts", "format")
    ),
    "custom": FileFormat(texts.custom, keys=("prompt",)),
}


def detected_format(head: list[str] | Mapping[str, Any]) -> str | None:
    """The name of the first format that a file with this beginning fits, or None."""
    return next((name for name, known in FORMATS.items() if known.fits(head)), None)


def unknown_format(head: list[str] | Mapping[str, Any]) -> WorkloadError:
    """The error for a file that begins like this and fits no format."""
    found = ",".join(head) if isinstance(head, list) else f"keys {', '.join(head) or '(none)'}"
    allowed = "; ".join(f"{name} ({known})" for name, known in FORMATS.items())
    return WorkloadError("format", brief(found), allowed + _nearest(head))


def _nearest(head: list[str] | Mapping[str, Any]) -> str:
    """The CSV format with the most of these columns, and those that it lacks."""
    columns = {*head} if isinstance(head, list) else set()
    shared = {name: columns & {*known.columns} for name, known in FORMATS.items()}
    name = max(shared, key=lambda name: len(shared[name]))
    lacks = [column for column in FORMATS[name].columns if column not in columns]
    return f"; nearest: {name}, but without {', '.join(lacks)}" if shared[name] else ""


# --- formats of other packages --------------------------------------------------------------------


def names() -> list[str]:
    """The formats that can be named: these, and those of installed packages."""
    return [*FORMATS, *(point.name for point in entry_points(group=GROUP))]


def requests_of_plugin(path: str, name: str | None) -> tuple[str, Iterator[Request]] | None:
    """The format and requests of a file that a reader of another package takes; None if none does.

    `name`: of the only reader to be asked.

    Raises:
        WorkloadError: there is no format of this name, or the reader failed or does not take it.
    """
    points = [point for point in entry_points(group=GROUP) if name in (None, point.name)]
    if name is not None and not points:
        raise WorkloadError("format", brief(name), ", ".join(names()))
    for point in points:
        entries = _asked(point, path)
        if entries is not None:
            return point.name, _requests(entries)
    if name is not None:
        raise WorkloadError("format", brief(name), "a file that its reader takes").at(path)
    return None


def _asked(point: EntryPoint, path: str) -> list[Mapping[str, Any]] | None:
    try:
        entries = point.load()(Path(path))
        return None if entries is None else list(entries)
    except InputError:
        raise
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
        allowed = f"no error of {point.value}, which reads {point.name}"
        raise WorkloadError("format", brief(found), allowed).at(path) from error


def _requests(entries: list[Mapping[str, Any]]) -> Iterator[Request]:
    for number, entry in enumerate(entries):
        try:
            yield own.request_of(entry)
        except WorkloadError as error:
            raise WorkloadError(f"[{number}].{error.field}", error.found, error.allowed) from None
