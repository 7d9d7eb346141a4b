"""Mutants of a toy scheduler with one rule: the rule kills some, the report lists the rest."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from attrs import evolve

from checks.mutants import killing, running, testing
from checks.mutants.cases import Fuzzing
from checks.mutants.keeping import KeptOutcomes
from checks.mutants.killing import SAME, Evidence, Outcome, in_process, outcomes
from checks.mutants.planting import plant
from checks.mutants.record import Recorded, digest, outcomes_on_record, renewed
from checks.mutants.report import Findings
from checks.mutants.rooms import ROOT, Module
from checks.mutants.sites import Mutant, find_mutants
from checks.mutants.trials import Exploring, Refusing, Trial, switched, tried, tried_now
from checks.registry import register, unregister
from reference.vllm_v1 import machine
from spec.core.rule import Registry
from spec.spyre import admission
from tests.toy.policy import CLAIMS, PARTS

PATH = "tests/toy/policy.py"
TWO = Exploring("toy", "toy, two")
CASES = [Fuzzing("toy", episode) for episode in range(20)]


def mutant(change: str) -> Mutant:
    (matching,) = (
        candidate
        for candidate in find_mutants((ROOT / PATH).read_text(encoding="utf-8"), PATH)
        if candidate.function == "ToyMachine._computed" and candidate.change == change
    )
    return matching


def becomes(evidence: Evidence, mutant: Mutant) -> Outcome:
    (outcome,) = outcomes(evidence, [mutant])
    return outcome


UNSEEN = "row.computed < request.prompt_len -> row.computed <= request.prompt_len"
NO_LIMIT = "min(self.ctx.config.limit, left) -> max(self.ctx.config.limit, left)"


def test_the_reference_is_judged_alone_where_the_engine_cannot_do_what_is_pinned() -> None:
    trials: Iterable[Any] = switched("spyre")
    pinned = {trial.pin for trial in trials if trial.alone}
    assert pinned == {("reading", "released")}
    assert not Fuzzing("spyre", 0, ("reading", "text")).alone
    assert Fuzzing("vllm-v0", 0).alone


@pytest.mark.parametrize(
    ("policy", "pin"),
    [("spyre", ("reading", "released")), ("nano-vllm", ("full_hit", "last_decoded"))],
)
def test_what_the_engine_cannot_do_breaks_no_rule_unexpectedly(
    policy: str, pin: tuple[str, str]
) -> None:
    cases = [Fuzzing(policy, episode, pin) for episode in range(8)]
    assert {case.verdict() for case in cases} == {"clean"}
    assert {getattr(case.config, pin[0]) for case in cases} == {pin[1]}


@pytest.fixture
def registered() -> Iterator[Callable[..., None]]:
    yield partial(register, "toy")
    unregister("toy")


@pytest.fixture
def evidence(registered: Callable[..., None]) -> Evidence:
    registered(**PARTS)
    return Evidence.of(tried_now([TWO]))


def test_a_mutant_that_breaks_the_rule_is_killed_by_it(evidence: Evidence) -> None:
    found = becomes(evidence, mutant(NO_LIMIT))

    assert (found.by, found.means, found.trial) == ("TOY-1", "explore", "toy, two")


def test_without_the_rule_the_same_mutant_is_told_to_be_alive(
    registered: Callable[..., None],
) -> None:
    registered(**PARTS | {"claims": evolve(CLAIMS, registry=Registry())})

    found = becomes(Evidence.of(tried_now([TWO])), mutant(NO_LIMIT))

    assert found.is_alive
    assert found.reached == 1


def test_what_the_rule_does_not_speak_of_is_alive_until_random_cases_are_compared(
    evidence: Evidence,
) -> None:
    assert becomes(evidence, mutant(UNSEEN)).is_alive
    assert becomes(Evidence.of(tried_now(CASES)), mutant(UNSEEN)).by == "divergence"


def test_a_mutant_in_code_that_nothing_runs_is_alive_and_reached_by_nothing(
    evidence: Evidence,
) -> None:
    source = (ROOT / PATH).read_text(encoding="utf-8")
    engine = next(
        mutant for mutant in find_mutants(source, PATH) if mutant.function.startswith("ToyEngine.")
    )

    assert becomes(evidence, engine).reached == 0


def test_first_comes_what_killed_another_of_the_function(
    registered: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    registered(**PARTS)
    monkeypatch.setattr(killing, "_FURTHER", 0)
    cases = CASES[0]
    cheap, dear = Evidence.of(tried_now([TWO, cases])).trials
    both = Evidence((evolve(cheap, calls=10), evolve(dear, calls=20)))

    alone = outcomes(both, [mutant(NO_LIMIT)])
    after_it = outcomes(both, [mutant(UNSEEN), mutant(NO_LIMIT)])

    assert [outcome.trial for outcome in alone] == [TWO.name]
    assert [outcome.trial for outcome in after_it] == [cases.name, cases.name]


def test_where_a_difference_kills_first_a_few_more_trials_are_asked_for_a_rule(
    registered: Callable[..., None],
) -> None:
    registered(**PARTS)
    two, *cases = Evidence.of(tried_now([TWO, *CASES[:12]])).trials
    late = Evidence((*(evolve(case, calls=10) for case in cases), evolve(two, calls=20)))
    sooner = Evidence((*(evolve(case, calls=10) for case in cases[:10]), evolve(two, calls=20)))

    assert [becomes(evidence, mutant(NO_LIMIT)).by for evidence in (late, sooner)] == [
        "divergence",
        "TOY-1",
    ]
    assert becomes(sooner, mutant(UNSEEN)).by == "divergence"


def test_a_trial_that_does_not_run_the_line_is_not_tried(evidence: Evidence) -> None:
    (two,) = evidence.trials
    some = mutant(NO_LIMIT)
    others = evolve(two, lines={PATH: two.lines[PATH] - some.lines})

    assert becomes(evidence, some).reached == 1
    assert becomes(Evidence((others,)), some).is_alive
    assert becomes(Evidence((others,)), some).reached == 0


def test_what_a_trial_costs_is_the_same_each_time(
    registered: Callable[..., None],
) -> None:
    registered(**PARTS)
    tried(TWO)  # what is made once in a process

    assert tried(TWO).calls == tried(TWO).calls != 0


def test_work_that_ends_early_has_judged_what_the_quick_trials_kill(
    registered: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    registered(**PARTS)
    chosen = [(Module("spec", "toy", ROOT / PATH), mutant(change)) for change in (UNSEEN, NO_LIMIT)]

    def quick(_policy: str) -> Iterator[Trial]:
        yield TWO

    def long(_policy: str) -> Iterator[Trial]:
        monkeypatch.setattr(killing, "monotonic", lambda: inf)  # meanwhile the time is over
        yield from CASES[:5]

    monkeypatch.setattr(running, "STAGES", (quick, long))
    monkeypatch.setattr(running, "POLICIES", ("toy",))

    found = [
        outcome
        for _, outcome in running.judged(chosen, lambda _done, _note: None, until=monotonic() + 600)
    ]

    assert [(outcome.mutant, outcome.by) for outcome in found] == [(mutant(NO_LIMIT), "TOY-1")]


def stages_that_tell(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace all trials by two stages; return the list of stages that are used."""
    asked: list[str] = []

    def stage(name: str) -> Callable[[str], Iterator[Trial]]:
        def trials(_policy: str) -> Iterator[Trial]:
            asked.append(name)
            yield TWO

        return trials

    monkeypatch.setattr(running, "STAGES", (stage("first"), stage("second")))
    monkeypatch.setattr(running, "POLICIES", ("toy",))
    return asked


def test_where_all_are_killed_the_trials_that_would_come_next_are_not_tried(
    registered: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    registered(**PARTS)
    asked = stages_that_tell(monkeypatch)
    chosen = [(Module("spec", "toy", ROOT / PATH), mutant(NO_LIMIT))]

    (killed,) = (outcome for _, outcome in running.judged(chosen, lambda _done, _note: None))

    assert killed.by is not None
    assert asked == ["first"]


def test_what_is_noted_of_a_mutant_in_a_stage_is_not_tried_again(
    registered: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    registered(**PARTS)
    asked = stages_that_tell(monkeypatch)
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path))
    chosen = [(Module("spec", "toy", ROOT / PATH), mutant(change)) for change in (NO_LIMIT, UNSEEN)]

    def run() -> list[Outcome]:
        judged = running.judged(chosen, lambda _done, _note: None, notes=KeptOutcomes())
        return [outcome for _, outcome in judged]

    first = run()
    (file,) = tmp_path.rglob("outcomes.jsonl")
    *lines, last = file.read_text(encoding="utf-8").splitlines()
    assert [outcome.is_alive for outcome in first] == [False, True]
    assert asked == ["first", "second"]

    assert run() == first
    assert asked == ["first", "second"]  # of neither anything is left to try

    file.write_text("\n".join([*lines, last[:-9]]), encoding="utf-8")  # the survivor's last
    assert run() == first
    assert asked == ["first", "second", "second"]


def test_what_the_tests_said_of_a_survivor_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path))
    module = Module("spec", "toy", ROOT / PATH)
    found = [(module, Outcome(mutant(NO_LIMIT), "TOY-1")), (module, Outcome(mutant(UNSEEN), None))]
    asked: list[str] = []

    def failing(mutant: Mutant) -> str:
        asked.append(mutant.id)
        return "tests/toy.py::test_of_it"

    monkeypatch.setattr(testing, "failing_test", failing)

    def run(until: float = inf) -> list[str | None]:
        notes = KeptOutcomes("tests/toy")
        said = running.noticed_by_tests(
            found, {}, lambda _done, _note: None, until=until, notes=notes
        )
        return [outcome.by for _, outcome in said]

    assert run(until=0.0) == ["TOY-1", None]  # no time is left
    assert run() == run() == ["TOY-1", "tests/toy.py::test_of_it"]
    assert asked == [mutant(UNSEEN).id]


def test_the_right_program_is_as_it_was_after_its_mutants(evidence: Evidence) -> None:
    becomes(evidence, mutant(NO_LIMIT))

    assert TWO.killer(TWO.verdict()) is None


def test_a_lost_witness_kills(evidence: Evidence) -> None:
    (two,) = evidence.trials
    seen = evolve(two.verdict, witnessed=two.verdict.witnessed | {"TOY-2"})

    assert TWO.killer(seen) == "TOY-2 is not witnessed"


def test_a_refutation_that_is_lost_kills(evidence: Evidence) -> None:
    (two,) = evidence.trials
    refuted = evolve(two.verdict, refuted=frozenset({"TOY-1"}))

    assert TWO.killer(refuted) == "TOY-1 is not refuted"


def test_where_the_right_machine_stops_at_a_guard_stopping_there_does_not_kill() -> None:
    documented = Exploring("nano-vllm", "nano-vllm, documented")
    verdict = documented.verdict()

    assert verdict.stops == {"guard NANO-SLT-1"}
    assert documented.killer(verdict) is None
    assert documented.killer(evolve(verdict, stops=frozenset())) == "guard NANO-SLT-1"
    assert (
        documented.killer(evolve(verdict, stops=verdict.stops | {"guard NANO-ADM-2"}))
        == "guard NANO-ADM-2 is not met"
    )


def test_the_opposite_of_a_function_is_there_where_the_module_does_not_import_it() -> None:
    path = "spec/spyre/admission.py"
    source = (ROOT / path).read_text(encoding="utf-8")
    some = next(mutant for mutant in find_mutants(source, path) if "-> some(" in mutant.change)
    assert not hasattr(admission, "some")

    def work(say: Callable[[object], None]) -> None:
        plant(some)
        say(hasattr(admission, "some"))

    assert in_process(work) == ["true\n"]


def test_a_process_that_dies_leaves_what_it_said() -> None:
    def work(say: Callable[[object], None]) -> None:
        say("begun")
        raise RuntimeError

    assert in_process(work) == ['"begun"\n']


# --- what goes as before --------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["spyre", "nano-vllm", "vllm-v1", "vllm-v0"])
def test_the_right_program_goes_as_before_in_every_room_that_judges_nothing(policy: str) -> None:
    for case in (Fuzzing(policy, episode) for episode in range(2)):
        case.prepare()

        assert case.is_unchanged("reference")
        assert case.is_unchanged("engine")
        assert not case.is_unchanged("spec")


@pytest.mark.parametrize(
    ("path", "operator"),
    [
        ("reference/vllm_v1/transitions.py", "field"),
        pytest.param("engine/vllm_v1/apply.py", "comparison", marks=pytest.mark.thorough),
    ],
)
def test_where_a_wrong_program_goes_as_before_judging_does_not_kill_it_either(
    path: str, operator: str
) -> None:
    source = (ROOT / path).read_text(encoding="utf-8")
    some = [mutant for mutant in find_mutants(source, path) if mutant.operator == operator]
    cases = [Fuzzing("vllm-v1", episode) for episode in range(4)]
    for case in cases:
        case.prepare()

    def work(wrong: Mutant, say: Callable[[object], None]) -> None:
        plant(wrong)
        for case in cases:
            say([case.is_unchanged(wrong.room), case.killer("clean") is not None])

    seen = {line for wrong in some[:6] for line in in_process(partial(work, wrong))}

    assert {"[true, false]\n", "[false, true]\n"} <= seen
    assert "[true, true]\n" not in seen


# --- what is refused ------------------------------------------------------------------------------

TOO_SMALL = Refusing("vllm-v1", "vllm-v1, lookahead", "num_blocks")


def test_what_could_never_be_served_is_refused_and_with_one_block_more_it_is_not() -> None:
    blocks = TOO_SMALL.verdict()

    assert blocks is not None
    assert TOO_SMALL.killer(blocks) is None
    assert TOO_SMALL.killer(blocks - 1) == "error (WorkloadError)"


def test_where_it_is_not_refused_a_rule_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = TOO_SMALL.verdict()
    monkeypatch.setattr(machine, "refuse_unservable", lambda _request, _config: None)

    assert blocks is not None
    assert TOO_SMALL.killer(blocks) == "V1-LIF-7"


def test_an_instance_in_which_nothing_is_refused_for_want_of_the_key_says_nothing() -> None:
    assert Refusing("vllm-v1", "vllm-v1, lookahead", "max_num_seqs").verdict() is None


# --- the score ------------------------------------------------------------------------------------

HERE = Module("spec", "toy", ROOT / PATH)
ONE, OTHER = (Mutant(PATH, "f", 1, "term", change) for change in ("a -> b", "b -> c"))


def now(_policy: str) -> str:
    """The fingerprint of a program."""
    return "now"


def later(_policy: str) -> str:
    return "later"


def score(*found: Outcome, listed: tuple[str, ...] = ()) -> Findings:
    return Findings([(HERE, mutant) for mutant in found], dict.fromkeys(listed, "the same"))


def test_the_score_is_of_what_rules_kill_and_leaves_out_equivalents_and_the_same_program() -> None:
    third, fourth = Mutant(PATH, "f", 1, "end", "c -> d"), Mutant(PATH, "f", 1, "end", "d -> e")
    found = score(
        Outcome(ONE, "SPY-VOL-1", "explore", "toy, two"),
        Outcome(OTHER, None),
        Outcome(third, SAME),
        Outcome(fourth, None),
        listed=(fourth.id,),
    )

    assert found.scores()[0].row() == (
        *("spec", "toy", "3"),
        *("1", "0", "0", "0", "0", "0", "1", "1", "1", "50.0 %"),
    )
    assert found.overlooked == [Outcome(OTHER, None)]


def test_what_only_a_test_kills_is_overlooked_by_the_rules() -> None:
    by_test = Outcome(ONE, "tests/test_a.py::test_b", "tests")

    assert score(by_test).overlooked == [by_test]


def test_an_equivalent_that_is_killed_is_told() -> None:
    for means in ("explore", "tests"):
        killed = Outcome(ONE, "SPY-VOL-1", means, "toy, two")

        assert score(killed, listed=(ONE.id,)).overlooked == [killed]


def test_a_part_that_is_tried_again_renews_the_record() -> None:
    by_test = Outcome(OTHER, "tests/test_a.py::test_b", "tests")
    ids = {HERE.group: [ONE.id, OTHER.id]}

    first = renewed({}, score(Outcome(ONE, None), by_test), ids, now)[HERE.group]
    killed = score(Outcome(ONE, "SPY-VOL-1", "explore"))
    again = renewed({HERE.group: first}, killed, ids, now)[HERE.group]

    assert (first["explore"], first["tests"], first["alive"]) == (0, 1, 1)
    assert first["overlooked"] == {ONE.id: "alive", OTHER.id: "tests"}
    assert (again["explore"], again["tests"], again["alive"], again["untried"]) == (1, 1, 0, 0)
    assert again["overlooked"] == {OTHER.id: "tests"}


def test_the_record_forgets_what_is_no_mutant_any_more_and_says_how_many_were_not_tried() -> None:
    old = renewed({}, score(Outcome(ONE, None)), {HERE.group: [ONE.id]}, now)
    new = Outcome(OTHER, "SPY-VOL-1", "explore")

    entry = renewed(old, score(new), {HERE.group: [OTHER.id, "another"]}, now)[HERE.group]

    assert (entry["mutants"], entry["explore"], entry["alive"], entry["untried"]) == (1, 1, 0, 1)


def test_what_only_a_test_noticed_stays_so_where_tests_are_not_asked_again() -> None:
    ids = {HERE.group: [ONE.id]}
    by_test = renewed({}, score(Outcome(ONE, "tests/test_a.py::test_b", "tests")), ids, now)

    assert renewed(by_test, score(Outcome(ONE, None)), ids, now) == by_test
    assert renewed(by_test, score(Outcome(ONE, None)), ids, later)[HERE.group]["alive"] == 1


def test_an_outcome_of_another_program_is_kept_and_counted_as_stale_only() -> None:
    ids = {HERE.group: [ONE.id, OTHER.id]}
    both = score(Outcome(ONE, "divergence", "fuzz"), Outcome(OTHER, None))
    before = renewed({}, both, ids, now)

    after = renewed(before, score(Outcome(ONE, "SPY-VOL-1", "fuzz")), ids, later)
    entry, known = after[HERE.group], outcomes_on_record(after)

    assert (before[HERE.group]["mutants"], before[HERE.group]["stale"]) == (2, 0)
    assert (entry["mutants"], entry["stale"], entry["untried"]) == (1, 1, 0)
    assert known[digest(ONE.id)] == Recorded("fuzz: rule", "later")
    assert known[digest(OTHER.id)] == Recorded("alive", "now")


def test_the_score_counts_the_kills_that_name_a_rule() -> None:
    kills = (
        "SPY-VOL-1",
        "guard SPY-VOL-1",
        "SPY-VOL-1 is not witnessed",
        "SPY-VOL-1 is not refuted",
    )
    others = ("divergence", "error (KeyError)", "hangs", "device refuses: rectangle", "PRV-PAD-1")
    mutants = [Mutant(PATH, "f", 1, "term", str(number)) for number in range(9)]
    found = [
        Outcome(mutant, by, "fuzz") for mutant, by in zip(mutants, (*kills, *others), strict=True)
    ]

    (counted,) = score(*found).scores()

    assert (counted.killed["fuzz"], counted.rule, counted.percent) == (9, 4, 100)
