"""Small configurations and requests, and a run of the engine to its end."""

from collections.abc import Iterable, Iterator
from copy import deepcopy
from typing import Any, TypeVar

from checks.policies.spyre.engine import sampled_alone
from engine.core import scheduler
from engine.spyre.scheduler import Outcome, Plan, Scheduler
from spec.core.requests import Prompt, Request
from spec.spyre.config import SpyreConfig

SchedulerT = TypeVar("SchedulerT", bound=scheduler.Scheduler[Any, Any, Any])


def config(**overrides: Any) -> SpyreConfig:
    """Blocks of 4, chunks of 8, room for everything else."""
    small = {"block_size": 4, "chunk_size": 8, "max_model_len": 64, "max_num_seqs": 4}
    return SpyreConfig(**(small | {"max_batch_tkv_limit": 256, "num_blocks": 40} | overrides))


def sharing(name: str, shared: int, own: int, max_tokens: int) -> Request:
    """A request whose prompt begins with tokens that others have, too."""
    parts = [part for part in (("shared", shared), (name, own)) if part[1]]
    return Request(id=name, prompt=Prompt.of_parts(parts), max_tokens=max_tokens)


def step(scheduler: Scheduler) -> tuple[Plan, Outcome]:
    """Take one step."""
    plan = scheduler.schedule()
    return plan, scheduler.update(plan, sampled_alone(plan))


def steps(scheduler: Scheduler) -> Iterator[tuple[Plan, Outcome]]:
    """Take steps until all requests have left."""
    while scheduler.has_requests:
        yield step(scheduler)


def scheduler_with(config: SpyreConfig, requests: Iterable[Request]) -> Scheduler:
    """A scheduler with these arrived requests."""
    scheduler = Scheduler(config)
    for request in requests:
        scheduler.add(request)
    return scheduler


def copied(scheduler: SchedulerT) -> SchedulerT:
    """A scheduler of its own in the same state; a plan that was made is not part of it."""
    state = scheduler.state
    shared = [state.config, *(member.request for member in (*state.queue, *state.admitted))]
    copy = type(scheduler)(state.config)
    copy.state = deepcopy(state, {id(part): part for part in shared})
    return copy
