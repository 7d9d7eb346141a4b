"""Workload files as the tests write them, and what reading them says."""

import json
from pathlib import Path
from typing import Any

from engine.workloads import Workload, fit_for, read_workload
from spec.core.errors import InputError, WorkloadError
from spec.core.requests import Request
from spec.spyre.config import SpyreConfig, refuse_unservable
from tests.refusals import refusal as refused

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"


def read_lines(file: Path, *lines: str, **options: Any) -> Workload:
    file.write_text("\n".join(lines), encoding="utf-8")
    return read_workload(file, **options)


def entry(**changes: object) -> str:
    """A line of our own format: the simplest request, with `changes`."""
    plain = {"id": "0", "prompt_len": 60, "max_tokens": 10}
    return json.dumps({key: value for key, value in (plain | changes).items() if value != "-"})


def refusal(file: Path, *lines: str, **options: Any) -> str:
    return refused(WorkloadError, read_lines, file, *lines, **options)


def only_request(file: Path, line: str) -> Request:
    (request,) = read_lines(file, line).requests
    return request


def fit(workload: Workload, config: SpyreConfig) -> tuple[list[Request], list[InputError]]:
    """The requests that Spyre can serve, and why it never can serve the others."""
    return fit_for(workload, lambda request: refuse_unservable(request, config))


def azure(*rows: str) -> tuple[str, ...]:
    return (HEADER, *rows)


def mooncake(prompt_len: int, *hash_ids: object, **changes: object) -> str:
    plain = {"timestamp": 0, "input_length": prompt_len, "output_length": 9}
    return json.dumps(plain | {"hash_ids": hash_ids} | changes)


def outcome(path: Path, name: str | None) -> Workload | InputError:
    try:
        return read_workload(path, format=name)
    except WorkloadError as error:
        return error


def check_read_or_refused(path: Path, content: bytes, name: str | None = None) -> None:
    path.write_bytes(content)

    read = outcome(path, name)

    if isinstance(read, Workload):
        assert read.requests
    else:
        assert read.place is not None
        str(read).encode()  # a message that can be printed
