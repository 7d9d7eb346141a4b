"""What a mutant is tried with: instances to explore, random cases to serve, obligations to prove.

Each is tried without a mutant first. That shows what it says of the right program, how long it
takes, and which functions it runs.
"""

from collections.abc import Callable, Iterator
from cProfile import Profile
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any, Protocol, TypeAlias

from attrs import frozen

from checks.evidence import EXPLORED, recorded
from checks.explore.bounds import Bounds
from checks.explore.examine import DEADLOCK, MACHINE_ERROR
from checks.explore.search import explore
from checks.harness.campaign import Plan, own_system
from checks.harness.comparison import Terms, compare
from checks.harness.system import ENGINE, REFERENCE, Own
from checks.mutants.rooms import ROOT
from checks.policies import policy_named, title_of

MEANS = ("explore", "fuzz", "prove")
EPISODES = 100  # random cases of each policy
_SLOWEST_PROOF_SECONDS = 5.0  # without a mutant; slower ones are not tried
_STATES_MORE = 2  # a wrong machine is searched as far as so many times the right one's states
_NO_STATES = 200  # and a few more


class Trial(Protocol):
    """One piece of evidence, tried with the program as it is."""

    @property
    def name(self) -> str:
        """Of the instance, of the cases or of the obligation."""

    @property
    def means(self) -> str:
        """Which command does this, one of `MEANS`."""

    def verdict(self) -> Any:
        """What it says of the right program, to be compared with later; None: nothing of use."""

    def killed_by(self, verdict: Any) -> str | None:
        """What says that the program is wrong, given what is said of the right one."""


@frozen
class Tried:
    """A trial of the right program: its `verdict`, how long it took, the functions that it ran.

    A function is named as mutants name theirs, by path and qualified name.
    """

    trial: Trial
    verdict: Any
    seconds: float
    functions: frozenset[str]


# --- exploring ------------------------------------------------------------------------------------


@frozen
class Explored:
    """What exploring an instance says: its states, the rules refuted, the witnesses seen."""

    states: int
    refuted: frozenset[str]
    witnessed: frozenset[str]


@frozen
class Exploring:
    """All reachable states of one of the policy's instances, every rule in each."""

    policy: str
    name: str
    means = "explore"

    def _explore(self, **how: Any) -> Any:
        policy = policy_named(self.policy)
        instance = next(one for one in policy.instances if title_of(one) == self.name)
        model = policy.model(instance)
        properties = policy.properties_of(model)
        refuted = how.pop("refuted", frozenset())
        only = how.pop("only", None)
        asked = [one for one in properties.all if one.rule not in refuted]
        if only is not None:
            asked = [one for one in properties.all if one.rule in only]
        return explore(model, asked, properties.witnesses, **how)

    def verdict(self) -> Explored:
        """Rules and witnesses of a complete search."""
        result = self._explore(keep_going=True)
        return Explored(result.states, _rules(result), _seen(result))

    def killed_by(self, verdict: Explored) -> str | None:
        """A rule that falls, that falls no more, or that applies nowhere any more."""
        bounds = Bounds(max_states=_STATES_MORE * verdict.states + _NO_STATES)
        first = self._explore(refuted=verdict.refuted, bounds=bounds)
        for violation in first.violations:
            if violation.rule == MACHINE_ERROR:
                return _stops(violation.found)
            return str(violation.rule)
        if first.stopped_by is None:
            for rule in sorted(verdict.witnessed - _seen(first)):
                return f"{rule} is not witnessed"
        if first.stopped_by is None and verdict.refuted:
            again = self._explore(only=verdict.refuted, bounds=bounds, keep_going=True)
            for rule in sorted(verdict.refuted - _rules(again) - {MACHINE_ERROR, DEADLOCK}):
                return f"{rule} is not refuted"
        return None


def _rules(result: Any) -> frozenset[str]:
    return frozenset(one.rule for one in result.violations)


def _seen(result: Any) -> frozenset[str]:
    return frozenset(rule for rule, seen in result.witnesses.items() if seen.edges)


def _stops(found: str) -> str:
    """The machine stopped: at a guard that names a rule, or with any other error."""
    _, is_guard, rule = found.partition("not allowed here: ")
    return f"guard {rule}" if is_guard else "error"


# --- random cases ---------------------------------------------------------------------------------


@frozen
class Fuzzing:
    """Random cases, always the same: engine and reference side by side, every rule judged.

    Of a policy without an engine the reference is judged alone.
    """

    policy: str
    means = "fuzz"

    @property
    def name(self) -> str:
        """How many cases."""
        return f"{EPISODES} random cases of {self.policy}"

    def verdict(self) -> str | None:
        """What is found in the right program, which is nothing.

        Raises:
            AssertionError: it is something.
        """
        found = self._found()
        assert found is None, f"{self.name}: {found} without a mutant"
        return "clean"

    def killed_by(self, _verdict: str) -> str | None:
        """The rule or the kind of difference that is found first."""
        try:
            return self._found()
        except Exception as error:  # in what draws and serves the case, which uses formulas too
            return f"error ({type(error).__name__})"

    def _found(self) -> str | None:
        has_engine = policy_named(self.policy).engine is not None
        plan = Plan(Own(self.policy, ENGINE if has_engine else REFERENCE), terms=Terms())
        for episode in range(EPISODES):
            case, terms = plan.case(episode), plan.terms_of(episode)
            finding = compare(own_system(plan.system), case, terms).finding
            if finding is not None:
                return finding.rule if finding.broken else str(finding.kind)
        return None


# --- proofs ---------------------------------------------------------------------------------------


@frozen
class Proving:
    """One obligation, for every length."""

    policy: str
    name: str
    means = "prove"

    def verdict(self) -> str | None:
        """Proven or refuted; None if that takes long."""
        began = process_time()
        verdict = self._verdict()
        return verdict if process_time() - began < _SLOWEST_PROOF_SECONDS else None

    def killed_by(self, verdict: str) -> str | None:
        """The obligation, if the solver says otherwise; that it gives up says nothing."""
        try:
            found = self._verdict()
        except Exception as error:  # the statement cannot be made of such formulas
            return f"{self.name} (error {type(error).__name__})"
        return self.name if found not in (verdict, "unknown") else None

    def _verdict(self) -> str:
        from checks.proofs.obligations import OBLIGATIONS
        from checks.proofs.prover import prove

        patience = 4 * _SLOWEST_PROOF_SECONDS
        return prove(OBLIGATIONS[self.name], patience).verdict.value


# --- all of them ----------------------------------------------------------------------------------


def explorations(policy: str, least: int, below: int | None) -> Iterator[Trial]:
    """The policy's instances with so many states on record; new ones count as small."""
    on_record = recorded(EXPLORED)
    for instance in policy_named(policy).instances:
        title = title_of(instance)
        states = on_record.get(title, {"states": 0})["states"]
        if states >= least and (below is None or states < below):
            yield Exploring(policy, title)


def campaigns(policy: str) -> Iterator[Trial]:
    """The policy's random cases."""
    yield Fuzzing(policy)


def proofs(policy: str) -> Iterator[Trial]:
    """The obligations that serve the policy's rules."""
    from checks.proofs.obligations import OBLIGATIONS

    rules = policy_named(policy).registry.rules
    for name, one in OBLIGATIONS.items():
        if any(rule in rules for rule in one.rules) and not one.thorough:
            yield Proving(policy, name)


Stage: TypeAlias = Callable[[str], Iterator[Trial]]

STAGES: tuple[Stage, ...] = (
    partial(explorations, least=0, below=150),
    partial(explorations, least=150, below=1_500),
    partial(explorations, least=1_500, below=5_000),
    campaigns,
    proofs,
)
"""Trials of a policy, the quick ones first: what survives a stage is tried in the next."""
LAST_STAGE: Stage = partial(explorations, least=5_000, below=None)  # on request: it takes long


def tried(trial: Trial) -> Tried:
    """The trial of the right program, and which functions of ours it ran."""
    profile = Profile()
    began = process_time()
    verdict = profile.runcall(trial.verdict)
    seconds = process_time() - began
    return Tried(trial, verdict, seconds, frozenset(_functions(profile)))


def _functions(profile: Profile) -> Iterator[str]:
    prefix = f"{ROOT}/"
    entries: Any = profile.getstats()
    for entry in entries:
        code = entry.code
        if not isinstance(code, str) and code.co_filename.startswith(prefix):
            path = Path(code.co_filename).relative_to(ROOT).as_posix()
            yield f"{path}:{code.co_qualname.partition('.<locals>')[0]}"
