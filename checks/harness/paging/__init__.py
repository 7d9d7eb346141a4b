"""The paged device next to a scheduler: its steps as tensors, and the tokens that come of them.

A step says what was computed of each request, and where it lies. From that the tensors are built
that a model runner would build, the paged device does the step, and every token that it samples is
held against the request served alone.
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
