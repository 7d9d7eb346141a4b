"""The lines of a file, whatever the file turns out to be."""

from collections.abc import Iterator
from itertools import count

from engine.workloads.checked import MOST_LINE_BYTES
from spec.core.errors import WorkloadError


def numbered_lines(path: str) -> Iterator[tuple[int, str]]:
    """Every line that is not blank, without the white space around it, with its number from 1.

    Raises:
        WorkloadError: a file that cannot be read, a line that is too long or not UTF-8, with
            file and line.
    """
    try:
        with open(path, "rb") as stream:
            for number in count(1):
                raw = stream.readline(MOST_LINE_BYTES + 1)
                if not raw:
                    return
                try:
                    line = _decoded(raw)
                except WorkloadError as error:
                    raise error.at(path, number) from None
                if line:
                    yield number, line
    except OSError as error:
        raise WorkloadError("file", error.strerror, "a file that can be read").at(path) from None
    except ValueError:  # a path with a zero byte
        raise WorkloadError("file", path, "the path of a file") from None


def _decoded(raw: bytes) -> str:
    if len(raw) > MOST_LINE_BYTES:
        raise WorkloadError("line", f"over {MOST_LINE_BYTES} bytes", "a shorter line")
    try:
        return raw.decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        found = f"byte {raw[error.start]:#04x} at column {error.start + 1}"
        raise WorkloadError("line", found, "UTF-8 text") from None
