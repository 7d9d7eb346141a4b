"""What is explored: a few requests under a configuration, and what may happen to them."""

from collections.abc import Mapping
from typing import Generic, TypeVar

from attrs import field, frozen

from spec.core.configuration import PolicyConfig
from spec.core.requests import Prompt, Request

Conf = TypeVar("Conf", bound=PolicyConfig)


@frozen(kw_only=True)
class Instance(Generic[Conf]):
    """A bounded question: these requests under this configuration, and what may happen to them.

    `aborts`: requests whose client may go away, in any phase. `early_ends`: requests that may
    sample the end of sequence with any token. Arrivals are free in order and time.

    Where a policy has a connector: `external` tokens of each request that it has, `failing`: whose
    load may fail. Where it has drafts: any number of them may be accepted. Where its machine knows
    of it: `leavers`, whose clients may leave while a step runs.
    """

    name: str
    about: str
    config: Conf
    requests: tuple[Request, ...]
    aborts: frozenset[str] = frozenset()
    early_ends: frozenset[str] = frozenset()
    external: Mapping[str, int] = field(factory=dict)
    failing: frozenset[str] = frozenset()
    leavers: frozenset[str] = frozenset()

    @property
    def title(self) -> str:
        """The name, behind that of the policy unless it is Spyre: no two have the same."""
        policy = self.config.policy
        return self.name if policy == "spyre" else f"{policy}, {self.name}"


# --- requests as the default instances write them down -------------------------------------------


def unshared(*sizes: tuple[int, int]) -> tuple[Request, ...]:
    """Requests 0, 1, … with these prompt lengths and maximum outputs, no token shared."""
    return tuple(
        Request(id=str(index), prompt=Prompt.of_stream(f"own {index}", length), max_tokens=tokens)
        for index, (length, tokens) in enumerate(sizes)
    )


def sharing(*prompts: tuple[list[tuple[str, int]], int]) -> tuple[Request, ...]:
    """Requests 0, 1, … whose prompts are made of named streams, with these maximum outputs."""
    return tuple(
        Request(id=str(index), prompt=Prompt.of_parts(parts), max_tokens=tokens)
        for index, (parts, tokens) in enumerate(prompts)
    )


def ids(text: str) -> frozenset[str]:
    """The requests that a text names, separated by spaces."""
    return frozenset(text.split())
