"""What is explored: a few requests under a configuration, and what may happen to them."""

from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

from attrs import field, frozen

from spec.core.configuration import PolicyConfig
from spec.core.requests import Request

ConfigT = TypeVar("ConfigT", bound=PolicyConfig)


@frozen(kw_only=True)
class Instance(Generic[ConfigT]):
    """A bounded question: these requests under this configuration, and what may happen to them.

    `aborts`: requests whose client may go away, in any phase. `early_ends`: requests that may
    sample the end of sequence with any token. Arrivals are free in order and time.

    Where a policy has a connector: `external` tokens of each request that it has, `failing`: whose
    load may fail. Where it has drafts: any number of them may be accepted. `leavers`: whose clients
    may leave while a step runs, where the machine has such a transition.
    """

    name: str
    about: str
    config: ConfigT
    requests: tuple[Request, ...]
    aborts: frozenset[str] = frozenset()
    early_ends: frozenset[str] = frozenset()
    external: Mapping[str, int] = field(factory=dict)
    failing: frozenset[str] = frozenset()
    leavers: frozenset[str] = frozenset()

    def what_may_happen_to(self, request_id: str) -> Hashable:
        """Equal for two requests to which the environment may do the same."""
        allowed = (self.aborts, self.early_ends, self.failing, self.leavers)
        return self.external.get(request_id), *(request_id in one for one in allowed)
