"""The rule that a trace breaks, as its last line says it."""

from typing import Any

from attrs import frozen

from spec.core.records import SomeState


@frozen
class Violation:
    """`rule`: its id; `says`: its sentence; `found`: what was there instead, any JSON value.

    `loop`: of a violation that is a cycle, the step with which the repeating part begins; the
    number of steps, if the last state lasts for ever.
    `state`: where it was found, if requests came or clients left after the last step.
    """

    rule: str
    says: str
    found: Any
    loop: int | None = None
    state: SomeState | None = None
