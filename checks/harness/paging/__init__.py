"""The paged device beside a scheduler: it computes each step and checks the sampled tokens.

A step says which tokens of each request were computed and in which blocks they are. From it the
tensors of a model runner are built, the paged device computes them, and every sampled token is
compared with the token of the request served alone.
"""

from checks.harness.paging.rows import Load, PagedWork
from checks.harness.paging.watch import PagedWatch, WrongToken
from engine.paged.rows import Row, paged_input

__all__ = [
    "Load",
    "PagedWatch",
    "PagedWork",
    "Row",
    "WrongToken",
    "paged_input",
]
