"""A target whose exceptions are told from ours."""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

from checks.fuzz.target import Subject, Target
from spec.core.requests import Request
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Step


class TargetRaisedError(Exception):
    """The target raised, whatever it was; `str` says what and by whom, the cause is chained."""

    def __init__(self, name: str, error: Exception) -> None:
        """`name`: of the target."""
        super().__init__(f"{name} raises {type(error).__name__}: {error}")
        self.type_name = type(error).__name__


class Guarded(Target):
    """Implements `Target` with one that the subject makes.

    Raises:
        TargetRaisedError: when it is made and in every call, for all that the target raises.
    """

    def __init__(self, subject: Subject, config: SpyreConfig, requests: Iterable[Request]) -> None:
        self._name = subject.name
        with self._guard():
            self._target = subject.make(config, requests)

    def arrive(self, request_id: str) -> None:
        """The request is handed in between two steps."""
        with self._guard():
            self._target.arrive(request_id)

    def abort(self, request_id: str) -> None:
        """The client goes away between two steps."""
        with self._guard():
            self._target.abort(request_id)

    def step(self, index: int, time: float, ends: Collection[str] | None = None) -> Step:
        """One scheduler step."""
        with self._guard():
            return self._target.step(index, time, ends)

    @contextmanager
    def _guard(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # a target may raise anything; it becomes a finding
            raise TargetRaisedError(self._name, error) from error
