"""What an episode can find, and what it is called."""

from attrs import field, frozen

from checks.fuzz.compare import Difference
from checks.fuzz.finding import Kind
from spec.spyre.records import Step


@frozen
class Finding:
    """What is wrong, in which step.

    `cause`: the first differing field, the rule, the place where the driver raised. `says`: one
    sentence. `rules`: ids with what each has to do with it. `steps`: the reference's, up to the
    one in question.
    """

    kind: Kind
    step: int
    cause: str
    says: str
    differences: tuple[Difference, ...] = ()
    rules: tuple[tuple[str, str], ...] = ()
    steps: tuple[Step, ...] = field(default=(), repr=False, eq=False)

    @property
    def signature(self) -> tuple[str, str]:
        """Two findings with the same one count as the same; shrinking keeps it."""
        return str(self.kind), self.cause
