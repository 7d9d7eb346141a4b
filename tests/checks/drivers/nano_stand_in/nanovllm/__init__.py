"""A stand-in for a checkout of nano-vLLM: the same interface, ours, as small as can be.

The real one cannot be had from the package index. Like the real one, this package loads what a
driver does not have.
"""

raise ImportError("the package loads the model: a driver must not import it")
