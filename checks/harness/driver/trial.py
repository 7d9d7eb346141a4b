"""One small episode that any driver can do: to see that it works, not that it is right."""

from attrs import evolve

from checks.harness.campaign import Plan
from checks.harness.case import Case
from spec.core.configuration import PolicyConfig

_TRIES = 100
_FEW = 3  # requests


def trial_case(plan: Plan) -> Case:
    """A few requests of the first plain case that has so many, at once, none of them aborted.

    Raises:
        ConfigError: the driver can do no configuration.
    """
    cases = map(plan.case, range(_TRIES))
    case = next(one for one in cases if len(one.requests) >= _FEW and _is_plain(one.config))
    requests = tuple(evolve(one, arrival=0, abort_at=None) for one in case.requests[:_FEW])
    return evolve(case, requests=requests, swarm=None)


def _is_plain(config: PolicyConfig) -> bool:
    """A model length of whole blocks: with others, releases do what is known of them."""
    return config.max_model_len % config.block_size == 0
