"""What a test takes of memory, not counting what the process held before it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PROCESS = Path("/proc/self")


@contextmanager
def takes_less_than(kilobytes: int) -> Iterator[None]:
    """Check that the process, which may have run other tests, grows by less than this."""
    (_PROCESS / "clear_refs").write_text("5")  # the peak counts from here
    before = _status("VmRSS")
    yield
    grown = peak_kb() - before
    assert grown < kilobytes, f"{grown} kB more"


def peak_kb() -> int:
    """The most resident memory of this process so far, in kB."""
    return _status("VmHWM")


def _status(key: str) -> int:
    lines = (_PROCESS / "status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))
