"""How a transition says that it was asked for where its guard does not hold."""

from attrs import define


@define(slots=False)
class GuardError(Exception):
    """A transition was taken although its guard does not hold; `rule` names the guard."""

    transition: str
    rule: str

    def __str__(self) -> str:
        return f"{self.transition} is not allowed here: {self.rule}"


def require(condition: bool, transition: str, rule: str) -> None:
    """Raise unless the guard holds.

    Raises:
        GuardError: the condition is false.
    """
    if not condition:
        raise GuardError(transition, rule)
