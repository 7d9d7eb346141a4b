"""Runs a driver class of a module: `lockstep conform MODULE:CLASS`.

The module is imported from the working directory; the class is passed to `lockstep_driver.serve`.
"""

import sys
from importlib import import_module
from pathlib import Path

from lockstep_driver import protected_output, serve

if __name__ == "__main__":
    protected_output()  # text that the module prints on import must not reach the protocol
    module, _, name = sys.argv[1].partition(":")
    sys.path.insert(0, str(Path.cwd()))
    serve(getattr(import_module(module), name))
