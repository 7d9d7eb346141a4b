"""`python -m tests.checks.outside.peak FILE ARGUMENT…`: `lockstep ARGUMENT…`, its peak in a file.

The peak of resident memory in kB is that of this program alone. What the operating system says of
a child counts what its parent held when it was started.
"""

import runpy
import sys
from pathlib import Path

from tests.checks.outside.memory import peak_kb


def main() -> None:
    """Run the command, and note its peak however it ends."""
    noted = Path(sys.argv.pop(1))
    try:
        runpy.run_module("lockstep", run_name="__main__", alter_sys=True)
    finally:
        noted.write_text(str(peak_kb()), encoding="utf-8")


if __name__ == "__main__":
    main()
