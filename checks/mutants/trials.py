"""The trials of mutants: instances to explore, cases to serve and run, obligations to prove.

Each trial first runs without a mutant, to learn its verdict on the right program, its time, and
the lines that it runs.
"""

from collections.abc import Callable, Iterator, Sequence, Set
from enum import Enum
from functools import partial
from time import process_time
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from attrs import evolve, field, frozen

from checks.cores import on_all_cores
from checks.evidence import EXPLORED, recorded
from checks.explore.bounds import Bounds
from checks.explore.examine import DEADLOCK, MACHINE_ERROR
from checks.explore.instance import Instance, title_of
from checks.explore.model import Violation
from checks.explore.policy import machine_of
from checks.explore.properties import properties_of
from checks.explore.result import Result
from checks.explore.search import explore
from checks.harness.policy import evidence_of
from checks.mutants.cases import Fuzzing
from checks.mutants.conforming import recorded_cases
from checks.mutants.reach import Lines, with_reach
from checks.mutants.serving import Crowd, Failing, Judged
from checks.mutants.sites import Mutant
from checks.registry import claims_of
from spec.core.errors import ConfigError, WorkloadError

if TYPE_CHECKING:
    from checks.proofs.registry import Proof

MACHINES = frozenset({"spec", "reference"})
MEANS = ("explore", "run", "fuzz", "prove", "conform")
FIRST_EPISODES = range(5)  # random cases of each policy; they find most mutants
EPISODES = range(5, 100)  # for the survivors of the first
MORE_EPISODES = range(100, 400)  # for mutants that survived everything so far
PINNED_EPISODES = range(60)  # for each value of each switch
CROWDS = range(12)
FAILING = range(150)  # cases with a device that fails
_SLOWEST_PROOF_SECONDS = 5.0  # without a mutant; slower ones are not tried
_STATES_MORE = 2  # a mutant is explored up to this multiple of the right machine's states
_NO_STATES = 200  # added to that limit
_REFUSED_STATES = 1_000  # limit for an instance that the right machine refuses
_STOPS = frozenset({MACHINE_ERROR, DEADLOCK})


class Trial(Protocol):
    """One piece of evidence, tried with the program as it is. Equal trials have equal texts."""

    @property
    def policy(self) -> str:
        """The policy of the trial."""

    @property
    def name(self) -> str:
        """The name of the instance, case or obligation."""

    @property
    def means(self) -> str:
        """The command that does this, one of `MEANS`."""

    @property
    def rooms(self) -> Set[str]:
        """The rooms whose functions it can run."""

    def verdict(self) -> Any:
        """The verdict on the right program, for later comparison; None if it is of no use."""

    def prepare(self) -> None:
        """Prepare the process, with the right program; called once for all mutants."""

    def is_unchanged(self, room: str) -> bool:
        """True if a cheap check shows that a mutant of the room changes nothing that is judged.

        False means only that the check did not show it.
        """

    def killer(self, verdict: Any) -> str | None:
        """The rule or difference that kills the mutant, given the right program's verdict."""


@frozen
class Tried:
    """A trial of the right program: its `verdict`, its cost, and the `lines` that it ran.

    `calls`: number of function calls, the same each time. `seconds`: processor time, which varies
    and includes the tracing of lines.
    """

    trial: Trial
    verdict: Any
    seconds: float
    calls: int
    lines: Lines = field(repr=False)

    def runs(self, mutant: Mutant) -> bool:
        """True if it runs a line of the mutated statement."""
        return not mutant.lines.isdisjoint(self.lines.get(mutant.path, ()))


# --- exploring ------------------------------------------------------------------------------------


@frozen
class Explored:
    """The verdict of exploring an instance: states, refuted rules, and witnesses seen.

    `stops`: the guards and errors at which the machine stops.
    """

    states: int
    refuted: frozenset[str]
    witnessed: frozenset[str]
    stops: frozenset[str] = frozenset()


@frozen
class Exploring(Judged):
    """All reachable states of one of the policy's instances, with every rule judged in each."""

    policy: str
    name: str
    means = "explore"
    rooms = MACHINES

    @property
    def instance(self) -> Instance[Any]:
        """The explored instance."""
        return instance_named(self.policy, self.name)

    def verdict(self) -> Explored:
        """The verdict of a complete search."""
        result = _search(self.instance, keep_going=True)
        return Explored(result.states, _rules(result), _seen(result), _stops(result))

    def killer(self, verdict: Explored) -> str | None:
        """A rule that is newly broken, no longer refuted, or no longer witnessed; else None."""
        bounds = Bounds(max_states=_STATES_MORE * verdict.states + _NO_STATES)
        stops = bool(verdict.stops)  # the right machine stops, too: go on
        first = _search(self.instance, bounds, without=verdict.refuted, keep_going=stops)
        for fallen in map(_fallen, first.violations):
            if fallen not in verdict.stops:
                return fallen
        if first.stopped_by is not None:
            return None
        for rule in sorted(verdict.witnessed - _seen(first)):
            return f"{rule} is not witnessed"
        for stop in sorted(verdict.stops - _stops(first)):
            return f"{stop} is not met"
        return self._refuted_no_more(verdict.refuted, bounds)

    def _refuted_no_more(self, refuted: Set[str], bounds: Bounds) -> str | None:
        if not refuted:
            return None
        again = _search(self.instance, bounds, only=refuted, keep_going=True)
        lost = sorted(refuted - _rules(again))
        return f"{lost[0]} is not refuted" if lost and again.stopped_by is None else None


def instance_named(policy: str, title: str) -> Instance[Any]:
    """The policy's instance of this title."""
    return next(
        instance for instance in machine_of(policy).instances if title_of(instance) == title
    )


def _search(
    instance: Instance[Any],
    bounds: Bounds | None = None,
    *,
    without: Set[str] = frozenset(),
    only: Set[str] | None = None,
    keep_going: bool = False,
) -> Result[Any]:
    """Search for violations of the applicable rules: `only` these, or all `without` these.

    Raises:
        WorkloadError: a request of the instance could never be served.
    """
    model = machine_of(instance.config.policy).model(instance)
    properties = properties_of(model)
    asked = [
        prop
        for prop in properties.all
        if prop.rule not in without and (only is None or prop.rule in only)
    ]
    return explore(model, asked, properties.witnesses, bounds=bounds, keep_going=keep_going)


def _fallen(violation: Violation[Any]) -> str:
    """The id of the broken rule; "guard" and an id if a transition was not allowed; or "error"."""
    if violation.rule != MACHINE_ERROR:
        return violation.rule
    _, is_guard, rule = violation.found.partition("not allowed here: ")
    return f"guard {rule}" if is_guard else "error"


def _rules(result: Any) -> frozenset[str]:
    return frozenset(violation.rule for violation in result.violations) - _STOPS


def _stops(result: Any) -> frozenset[str]:
    stops = (violation for violation in result.violations if violation.rule in _STOPS)
    return frozenset(map(_fallen, stops))


def _seen(result: Any) -> frozenset[str]:
    return frozenset(rule for rule, seen in result.witnesses.items() if seen.edges)


# --- refusals -------------------------------------------------------------------------------------


@frozen
class Refusing(Judged):
    """An instance whose `key` is one too small to serve one of its requests.

    The right machine refuses it, and accepts it with `key` one larger. If a mutant accepts it, a
    rule must be broken in the run.
    """

    policy: str
    title: str
    key: str
    means = "explore"
    rooms = MACHINES

    @property
    def name(self) -> str:
        """The title of the instance and the key."""
        return f"{self.title}, too small a {self.key}"

    def _with(self, value: int) -> Instance[Any]:
        instance = instance_named(self.policy, self.title)
        return evolve(instance, config=evolve(instance.config, **{self.key: value}))

    def _is_refused(self, value: int) -> bool:
        try:
            instance = self._with(value)
            machine_of(instance.config.policy).model(instance)
        except WorkloadError:
            return True
        return False

    def verdict(self) -> int | None:
        """The largest value with which a request is refused; None if there is none."""
        value = getattr(instance_named(self.policy, self.title).config, self.key)
        try:
            return next(filter(self._is_refused, range(value, 0, -1)), None)
        except ConfigError:  # no configuration has so small a value
            return None

    def killer(self, verdict: int) -> str | None:
        """A rule that breaks if the mutant accepts the instance, or an error if it refuses more."""
        if self._is_refused(verdict + 1):
            return "error (WorkloadError)"
        if self._is_refused(verdict):
            return None
        refuted = recorded(EXPLORED).get(self.title, {"violations": ()})["violations"]
        result = _search(
            self._with(verdict), Bounds(max_states=_REFUSED_STATES), without={*refuted}
        )
        return _fallen(result.violations[0]) if result.violations else None


# --- proofs ---------------------------------------------------------------------------------------


@frozen
class Proving(Judged):
    """One obligation."""

    policy: str
    name: str
    means = "prove"
    rooms = MACHINES

    def verdict(self) -> str | None:
        """The prover's verdict; None if the proof takes too long."""
        began = process_time()
        verdict = self._proof().verdict.value
        return verdict if process_time() - began < _SLOWEST_PROOF_SECONDS else None

    def killer(self, verdict: str) -> str | None:
        """The obligation, if the solver's verdict differs; "unknown" kills nothing.

        Formulas with which the claim cannot be stated are wrong, and kill, too.
        """
        try:
            proof = self._proof()
        except Exception as error:
            return f"{self.name} (error {type(error).__name__})"
        if proof.is_unstated:
            return f"{self.name} ({proof.reason})"
        return self.name if proof.verdict.value not in (verdict, "unknown") else None

    def prepare(self) -> None:
        """Import the solver and all obligations."""
        from checks.proofs import obligations, prover  # noqa: F401

    def _proof(self) -> "Proof":
        from checks.proofs.obligations import OBLIGATIONS
        from checks.proofs.prover import prove

        return prove(OBLIGATIONS[self.name], 4 * _SLOWEST_PROOF_SECONDS)


# --- all of them ----------------------------------------------------------------------------------


def explorations(policy: str, least: int, below: int | None) -> Iterator[Trial]:
    """The policy's instances with `least` to below `below` recorded states; new ones count as 0."""
    on_record = recorded(EXPLORED)
    for instance in machine_of(policy).instances:
        title = title_of(instance)
        states = on_record.get(title, {"states": 0})["states"]
        if states >= least and (below is None or states < below):
            yield Exploring(policy, title)


def campaigns(policy: str, episodes: range) -> Iterator[Trial]:
    """The policy's random cases."""
    return (Fuzzing(policy, episode) for episode in episodes)


def runs(policy: str) -> Iterator[Trial]:
    """Runs of the policy's engine, if it has one: crowds, and devices that fail."""
    if evidence_of(policy).engine is not None:
        yield from (Failing(policy, episode) for episode in FAILING)
        yield from (Crowd(policy, episode) for episode in CROWDS)


def switched(policy: str) -> Iterator[Trial]:
    """Random cases with each value of each of the policy's switches pinned.

    A boolean switch is pinned to the opposite of its default. These cases reach code that only one
    value reaches, and rarely.
    """
    configs = [Fuzzing(policy, episode).config for episode in EPISODES]
    claims = claims_of(policy)
    default = claims.config.from_mapping({})
    for key in claims.keys:
        usual, drawn = getattr(default, key), {getattr(config, key) for config in configs}
        named = sorted(value.value for value in drawn if isinstance(value, Enum))
        other = [value for value in drawn if isinstance(value, bool) and value is not usual]
        for value in (named if len(named) > 1 else ()) or other:
            yield from (Fuzzing(policy, episode, (key, value)) for episode in PINNED_EPISODES)
    engine = evidence_of(policy).engine
    for key, values in (engine.config if engine is not None else {}).items():
        options = type(values[0]) if isinstance(values[0], Enum) else ()
        for value in [new.value for new in options if new not in values]:  # never drawn
            yield from (Fuzzing(policy, episode, (key, value)) for episode in PINNED_EPISODES)


def proofs(policy: str) -> Iterator[Trial]:
    """The obligations that serve the policy's rules, and those that serve none."""
    from checks.proofs.obligations import OBLIGATIONS

    rules = claims_of(policy).registry.rules
    for name, obligation in OBLIGATIONS.items():
        if not obligation.rules or any(rule in rules for rule in obligation.rules):
            yield Proving(policy, name)


Stage: TypeAlias = Callable[[str], Iterator[Trial]]


def refusals(policy: str) -> Iterator[Trial]:
    """The policy's instances, with each integer key too small."""
    for instance in machine_of(policy).instances:
        for key in claims_of(policy).keys:
            if type(getattr(instance.config, key)) is int:
                yield Refusing(policy, title_of(instance), key)


def quick(policy: str) -> Iterator[Trial]:
    """The policy's smallest instances and its first random cases."""
    yield from explorations(policy, least=0, below=150)
    yield from campaigns(policy, FIRST_EPISODES)


STAGES: tuple[Stage, ...] = (
    quick,
    refusals,
    partial(campaigns, episodes=EPISODES),
    recorded_cases,
    runs,
    partial(explorations, least=150, below=1_500),
    partial(explorations, least=1_500, below=5_000),
    partial(campaigns, episodes=MORE_EPISODES),
    switched,
    proofs,
)
"""Trials of a policy, the quick ones first: the survivors of a stage are tried in the next."""
LAST_STAGE: Stage = partial(explorations, least=5_000, below=None)  # only on request: slow


def tried(trial: Trial) -> Tried:
    """Run the trial with the right program and trace the lines that it runs."""
    began = process_time()
    verdict, calls, lines = with_reach(trial.verdict)
    return Tried(trial, verdict, process_time() - began, calls, lines)


def tried_now(trials: Sequence[Trial]) -> Iterator[Tried]:
    """Run each trial with the right program, on all cores."""
    return on_all_cores(tried, trials)
