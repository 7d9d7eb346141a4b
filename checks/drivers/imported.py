"""A driver that is a class of a module: `lockstep conform MODULE:CLASS`.

The module is imported as from the working directory; the class is one for `lockstep_driver.serve`.
"""

import sys
from importlib import import_module
from pathlib import Path

from lockstep_driver import protected_output, serve

if __name__ == "__main__":
    protected_output()  # what the module prints when it is imported is no answer
    module, _, name = sys.argv[1].partition(":")
    sys.path.insert(0, str(Path.cwd()))
    serve(getattr(import_module(module), name))
