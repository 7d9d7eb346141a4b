"""Errors of a driver itself: no finding, and no verdict on its scheduler."""

from collections.abc import Iterable, Iterator

from checks.harness.case import Case
from checks.harness.driver.protocol import DriverError
from checks.harness.system import Action, Failure, System, Taken

_ADVICE = (
    "No verdict: mend the driver. Where the scheduler's interface has changed, the release is too"
    " new or too old for this driver."
)
_CANNOT_BEGIN = (
    "No verdict: mend the driver. Values of the configuration that it cannot do do not belong into"
    " `config` of its hello."
)


class DriverFaultError(DriverError):
    """An error of the driver itself, or an episode that it cannot begin."""

    def __str__(self) -> str:
        return f"{self.field}: {self.found}\n{self.allowed}"


def play(system: System, case: Case, actions: Iterable[Action]) -> Iterator[Taken | Failure]:
    """Have the system take the actions; yields each step, and at the end a failure if it raised.

    Unlike `System.play` it raises what is the driver's fault and not the scheduler's.

    Raises:
        DriverFaultError: a failure is the driver's, not the scheduler's.
        DriverError: a driver breaks the protocol.
    """
    is_driver, name = "events" not in system.hello.abilities, system.hello.name
    begun = list[bool]()
    for step, taken in enumerate(system.play(case, _noting(actions, begun))):
        if is_driver and isinstance(taken, Failure):
            if not begun:
                raise DriverFaultError(
                    f"the driver {name} cannot begin an episode", str(taken), _CANNOT_BEGIN
                )
            if taken.of == "driver":
                what = f"an error of the driver {name}, not of its scheduler, in step {step}"
                raise DriverFaultError(what, str(taken), _ADVICE)
        yield taken


def _noting(actions: Iterable[Action], begun: list[bool]) -> Iterator[Action]:
    for action in actions:
        begun[:] = [True]
        yield action
