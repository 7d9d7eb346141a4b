"""What a mutant is tried with: instances to explore, cases to serve and run, what to prove.

Each is tried without a mutant first. That shows what it says of the right program, how long it
takes, and which functions it runs.
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
FIRST_EPISODES = range(5)  # random cases of each policy, which notice most that any notice
EPISODES = range(5, 100)  # those for what these overlook
MORE_EPISODES = range(100, 400)  # and for what nothing has noticed so far
PINNED_EPISODES = range(60)  # with each value of each switch
CROWDS = range(12)
FAILING = range(150)  # cases with a device that fails
_SLOWEST_PROOF_SECONDS = 5.0  # without a mutant; slower ones are not tried
_STATES_MORE = 2  # a wrong machine is searched as far as so many times the right one's states
_NO_STATES = 200  # and a few more
_REFUSED_STATES = 1_000  # of an instance that the right machine refuses
_STOPS = frozenset({MACHINE_ERROR, DEADLOCK})


class Trial(Protocol):
    """One piece of evidence, tried with the program as it is. Equal ones have equal texts."""

    @property
    def policy(self) -> str:
        """Of which policy."""

    @property
    def name(self) -> str:
        """Of the instance, of the cases or of the obligation."""

    @property
    def means(self) -> str:
        """Which command does this, one of `MEANS`."""

    @property
    def rooms(self) -> Set[str]:
        """Of which rooms it can run functions."""

    def verdict(self) -> Any:
        """What it says of the right program, to be compared with later; None: nothing of use."""

    def prepare(self) -> None:
        """Do what is the same for every mutant, with the right program, once in a process."""

    def goes_as_before(self, room: str) -> bool:
        """True if with something of the room wrong all that is judged is as it was: cheaply seen.

        Then nothing is judged otherwise. False says nothing.
        """

    def killed_by(self, verdict: Any) -> str | None:
        """What says that the program is wrong, given what is said of the right one."""


@frozen
class Tried:
    """A trial of the right program: its `verdict`, what it cost, the `lines` that it ran.

    `calls` of functions are the same each time, `seconds` of the processor are not, and they are
    more than without the look at the lines.
    """

    trial: Trial
    verdict: Any
    seconds: float
    calls: int
    lines: Lines = field(repr=False)

    def runs(self, mutant: Mutant) -> bool:
        """True if it runs a line of the statement that the mutant changes."""
        return not mutant.lines.isdisjoint(self.lines.get(mutant.path, ()))


# --- exploring ------------------------------------------------------------------------------------


@frozen
class Explored:
    """What exploring an instance says: its states, the rules refuted, the witnesses seen.

    `stops`: the guards and errors at which the machine stops.
    """

    states: int
    refuted: frozenset[str]
    witnessed: frozenset[str]
    stops: frozenset[str] = frozenset()


@frozen
class Exploring(Judged):
    """All reachable states of one of the policy's instances, every rule in each."""

    policy: str
    name: str
    means = "explore"
    rooms = MACHINES

    @property
    def instance(self) -> Instance[Any]:
        """What is explored."""
        return instance_named(self.policy, self.name)

    def verdict(self) -> Explored:
        """Rules and witnesses of a complete search."""
        result = _search(self.instance, keep_going=True)
        return Explored(result.states, _rules(result), _seen(result), _stops(result))

    def killed_by(self, verdict: Explored) -> str | None:
        """A rule that falls, that falls no more, or that applies nowhere any more."""
        bounds = Bounds(max_states=_STATES_MORE * verdict.states + _NO_STATES)
        stops = bool(verdict.stops)  # the right machine does, too: look further
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
    """The search for violations of the rules that apply, of `only` some or `without` some.

    Raises:
        WorkloadError: a request of the instance could never be served.
    """
    model = machine_of(instance.config.policy).model(instance)
    properties = properties_of(model)
    asked = [
        one
        for one in properties.all
        if one.rule not in without and (only is None or one.rule in only)
    ]
    return explore(model, asked, properties.witnesses, bounds=bounds, keep_going=keep_going)


def _fallen(violation: Violation[Any]) -> str:
    """The rule; of a machine that stopped the guard, or that it was an error."""
    if violation.rule != MACHINE_ERROR:
        return violation.rule
    _, is_guard, rule = violation.found.partition("not allowed here: ")
    return f"guard {rule}" if is_guard else "error"


def _rules(result: Any) -> frozenset[str]:
    return frozenset(one.rule for one in result.violations) - _STOPS


def _stops(result: Any) -> frozenset[str]:
    return frozenset(_fallen(one) for one in result.violations if one.rule in _STOPS)


def _seen(result: Any) -> frozenset[str]:
    return frozenset(rule for rule, seen in result.witnesses.items() if seen.edges)


# --- what is refused ------------------------------------------------------------------------------


@frozen
class Refusing(Judged):
    """An instance with a configuration so small that a request of it could just never be served.

    It is refused, with one more of `key` it is not. Where it is not refused any more, a rule has
    to say what comes of that.
    """

    policy: str
    title: str
    key: str
    means = "explore"
    rooms = MACHINES

    @property
    def name(self) -> str:
        """Of the instance, and of what there is too little."""
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
        """The largest value with which a request is refused; None if none is."""
        value = getattr(instance_named(self.policy, self.title).config, self.key)
        try:
            return next((one for one in range(value, 0, -1) if self._is_refused(one)), None)
        except ConfigError:  # so small a configuration does not exist
            return None

    def killed_by(self, verdict: int) -> str | None:
        """A rule that falls where nothing is refused, or that what can be served is refused."""
        if self._is_refused(verdict + 1):
            return "error (WorkloadError)"
        if self._is_refused(verdict):
            return None
        refuted = recorded(EXPLORED).get(self.title, {"violations": ()})["violations"]
        found = _search(self._with(verdict), Bounds(max_states=_REFUSED_STATES), without={*refuted})
        return _fallen(found.violations[0]) if found.violations else None


# --- proofs ---------------------------------------------------------------------------------------


@frozen
class Proving(Judged):
    """One obligation, for every length."""

    policy: str
    name: str
    means = "prove"
    rooms = MACHINES

    def verdict(self) -> str | None:
        """Proven or refuted; None if that takes long."""
        began = process_time()
        verdict = self._proof().verdict.value
        return verdict if process_time() - began < _SLOWEST_PROOF_SECONDS else None

    def killed_by(self, verdict: str) -> str | None:
        """The obligation, if the solver says otherwise; that it gives up says nothing.

        That the claim cannot be stated with such formulas says that they are wrong.
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
    """The policy's instances with so many states on record; new ones count as small."""
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
    """Random cases with each value of each of the policy's switches.

    Of one that is on or off it is what it is not by default. What only one of them leads to, and
    rarely, is met in some of these.
    """
    configs = [Fuzzing(policy, episode).config for episode in EPISODES]
    claims = claims_of(policy)
    default = claims.config.from_mapping({})
    for key in claims.keys:
        usual, drawn = getattr(default, key), {getattr(config, key) for config in configs}
        named = sorted(one.value for one in drawn if isinstance(one, Enum))
        other = [one for one in drawn if isinstance(one, bool) and one is not usual]
        for value in (named if len(named) > 1 else ()) or other:
            yield from (Fuzzing(policy, one, (key, value)) for one in PINNED_EPISODES)
    engine = evidence_of(policy).engine
    for key, values in (engine.config if engine is not None else {}).items():
        for value in [one.value for one in type(values[0]) if one not in values]:  # never drawn
            yield from (Fuzzing(policy, one, (key, value)) for one in PINNED_EPISODES)


def proofs(policy: str) -> Iterator[Trial]:
    """The obligations that serve the policy's rules, and those that serve none."""
    from checks.proofs.obligations import OBLIGATIONS

    rules = claims_of(policy).registry.rules
    for name, one in OBLIGATIONS.items():
        serves = not one.rules or any(rule in rules for rule in one.rules)
        if serves:
            yield Proving(policy, name)


Stage: TypeAlias = Callable[[str], Iterator[Trial]]


def refusals(policy: str) -> Iterator[Trial]:
    """The policy's instances with too little of each of the keys that are numbers."""
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
"""Trials of a policy, the quick ones first: what survives a stage is tried in the next."""
LAST_STAGE: Stage = partial(explorations, least=5_000, below=None)  # on request: it takes long


def tried(trial: Trial) -> Tried:
    """The trial of the right program, and which lines of ours it ran."""
    began = process_time()
    verdict, calls, lines = with_reach(trial.verdict)
    return Tried(trial, verdict, process_time() - began, calls, lines)


def tried_now(trials: Sequence[Trial]) -> Iterator[Tried]:
    """Each of the trials of the right program, on all cores."""
    return on_all_cores(tried, trials)
