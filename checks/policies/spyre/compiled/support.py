"""The instances of Spyre that the compiled machine supports; importing this compiles nothing."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from checks.explore.compiled import IS_INSTALLED
from checks.explore.instance import Instance
from checks.policies.spyre.compiled import names
from checks.policies.spyre.model import spyre_model
from spec.core.errors import InputError
from spec.core.requests import Oversized
from spec.spyre.config import SpyreConfig

if TYPE_CHECKING:
    from checks.policies.spyre.compiled.model import SpyreCompiled


def compiled_maker(instance: Instance[SpyreConfig]) -> Callable[[int | None], "SpyreCompiled"]:
    """A function from the words of a state to the instance's machine; None: the fewest words.

    Raises:
        InputError: the instance is not supported, or numba is not installed.
    """
    reason = unsupported(instance)
    if not IS_INSTALLED:
        reason = "numba is not installed: pip install 'lockstep-schedulers[fast]'"
    if reason is not None:
        raise InputError("--using", "compiled", f"reference: {reason}")

    def with_words(words: int | None) -> "SpyreCompiled":
        from checks.policies.spyre.compiled.model import SpyreCompiled

        ctx = spyre_model(instance).ctx
        return SpyreCompiled(instance, ctx, *(() if words is None else (words,)))

    return with_words


def unsupported(instance: Instance[SpyreConfig]) -> str | None:
    """Why the compiled machine does not support an instance; None if it does."""
    if instance.config.queue.is_by_width:
        return f"queue = {instance.config.queue}, it has fcfs and overtaking"
    if instance.config.oversized is Oversized.QUEUED:
        return "oversized = queued, it has refused"
    if any(request.grammar or request.has_images for request in instance.requests):
        return "requests with a grammar or images, it has none"
    requests, slots = len(instance.requests), instance.config.max_num_seqs
    if requests > names.MOST_REQUESTS:
        return f"{requests} requests, it has up to {names.MOST_REQUESTS}"
    if min(requests, slots) > names.MOST_MEMBERS + 1:
        return f"{min(requests, slots)} requests at a time, it has up to {names.MOST_MEMBERS + 1}"
    return None
