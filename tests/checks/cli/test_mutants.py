"""`lockstep mutants`: output, reports and exit codes."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from checks.cli import mutants as command
from checks.evidence import MUTATED, recorded
from checks.mutants.equivalents import (
    LIST,
    Experiment,
    equivalents,
    experiments,
    refuse_stale,
    write_experiments,
)
from checks.mutants.keeping import fingerprint
from checks.mutants.killing import Outcome
from checks.mutants.record import Recorded, digest
from checks.mutants.rooms import CORE, EXCLUDED, ROOMS, Module, is_excluded, modules
from checks.mutants.running import Chosen
from checks.mutants.sites import Mutant, find_mutants
from checks.registry import POLICIES
from spec.core.errors import InputError
from tests.checks.command import lockstep


@pytest.mark.thorough
def test_a_draw_of_the_mutants_is_killed_by_rules_as_recorded() -> None:
    arguments = ("--policy", "nano-vllm", "--room", "spec", "--sample", 4, "formulas.py:can_")
    ran = lockstep("mutants", *arguments, "--expect", "recorded", "--json", "r.json")
    report = json.loads(Path("r.json").read_text())

    assert ran.code == 0, ran.out
    assert "100.0 %" in ran.out
    assert (report["outcome"], report["tried"], report["overlooked"]) == ("holds", 4, [])
    assert sum(report["killed_by"].values()) == 4 - report["scores"][0]["equivalent"] > 0


@pytest.mark.parametrize(("killer", "code"), [("NANO-ADM-1", 0), (None, 1)])
def test_an_overlooked_mutant_is_a_violation_and_not_as_expected(
    killer: str | None, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judged(chosen: Chosen, *_: object, **__: object) -> Iterator[tuple[Module, Outcome]]:
        return ((module, Outcome(mutant, killer, "explore")) for module, mutant in chosen)

    monkeypatch.setattr(command, "judged", judged)
    arguments = ("mutants", "nano_vllm/formulas.py:can_allocate", "--sample", 1)

    assert lockstep(*arguments, "--json", "r.json", "--junit", "j.xml").code == code

    assert Path("j.xml").read_text().count("<testcase ") == 1
    report = json.loads(Path("r.json").read_text())
    ((name, verdict),) = report["verdicts"].items()
    assert verdict == ("overlooked" if killer is None else "noticed")
    assert lockstep(*arguments, "--expect", "r.json").code == 0
    other = "noticed" if killer is None else "overlooked"
    Path("r.json").write_text(json.dumps(report | {"verdicts": {name: other}}))
    changed = lockstep(*arguments, "--expect", "r.json")
    assert changed.code == 1
    assert f"not as expected: {name}: {verdict}, expected {other}" in changed.out


@pytest.mark.thorough
@pytest.mark.parametrize("group", recorded(MUTATED))
def test_most_mutants_of_each_room_and_policy_fall_to_rules(group: str) -> None:
    """Shown for 8, of core for 15; all of them take hours, see `lockstep mutants --record`."""
    room, _, policy = group.partition(", ")
    sample = 15 if policy == "core" else 8  # those of core take seconds
    ran = lockstep(
        *("mutants", "--room", room, "--policy", policy, "--sample", sample, "--json", "r.json")
    )
    assert ran.code in {0, 1}, ran.err
    (score,) = json.loads(Path("r.json").read_text())["scores"]

    assert score["mutants"] == sample
    assert score["score"] > 66  # on record 89 to 97


@pytest.mark.thorough
def test_the_same_seed_draws_the_same() -> None:
    draws = [
        lockstep("mutants", "spyre", "--list", "--sample", 20, "--seed", seed).out
        for seed in (1, 1, 2)
    ]

    assert draws[0] == draws[1] != draws[2]
    assert len(draws[0].splitlines()) == 20


@pytest.mark.thorough
def test_an_outcome_of_another_program_counts_as_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    some = ["nano_vllm/formulas.py:can_all", "--list"]
    first, second, *others = lockstep("mutants", *some).out.splitlines()
    on_record = {
        digest(first): Recorded("fuzz: rule", fingerprint("nano-vllm")),
        digest(second): Recorded("fuzz: rule", "of another program"),
    }
    monkeypatch.setattr(command, "outcomes_on_record", lambda _: on_record)

    assert lockstep("mutants", *some, "--untried").out.splitlines() == [second, *others]
    ran = lockstep("mutants", some[0], "--time", 0.001, "--json", "r.json")
    assert ran.code == 3
    assert "mutants were not tried to the end" in ran.out
    assert json.loads(Path("r.json").read_text())["stale"] == 1
    assert "on record: 1 outcome is stale: it is of another program; see --untried" in ran.out


# --- what is mutated ------------------------------------------------------------------------------


def test_every_room_and_policy_has_mutants() -> None:
    found = {(module.room, module.policy) for module, _ in command.all_mutants()}

    assert {("spec", name) for name in POLICIES} <= found
    assert {("reference", name) for name in POLICIES} <= found
    assert {room for room, _ in found} == {*ROOMS}


def test_every_mutant_has_an_id_of_its_own() -> None:
    ids = [mutant.id for _, mutant in command.all_mutants()]

    assert len(ids) == len({*ids})


@pytest.mark.parametrize("beginning", EXCLUDED)
def test_excluded_mutants_exist(beginning: str) -> None:
    room, _, rest = beginning.partition("/*/")
    inside = [
        mutant.id
        for module in modules()
        if module.name.startswith(room.partition(":")[0]) and rest.partition(":")[0] in module.name
        for mutant in find_mutants(module.path.read_text(encoding="utf-8"), module.name)
        if (mutant.id.startswith(beginning) or rest) and rest in mutant.id
    ]

    assert inside
    assert all(map(is_excluded, inside))


# --- the list of equivalents ----------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("policy", [*POLICIES, CORE])
def test_no_equivalent_falls_to_any_trial(policy: str) -> None:
    """Shown for ten; all of them take an hour."""
    ran = lockstep("mutants", "--equivalents", "--policy", policy, "--sample", 10)

    assert ran.code == 0, ran.out


def test_every_equivalent_is_a_mutant_and_has_a_reason() -> None:
    listed = equivalents()

    refuse_stale(listed, {mutant.id for _, mutant in command.all_mutants()})
    assert all(len(reason) > 10 for reason in listed.values())


def test_an_equivalent_that_is_no_mutant_any_more_is_refused() -> None:
    with pytest.raises(InputError, match="found 'gone'"):
        refuse_stale({"gone": "why not"}, {"there"})


def test_an_equivalent_without_a_reason_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "list.toml"
    path.write_text('[[equivalent]]\nmutants = ["a"]\nreason = ""\n')

    with pytest.raises(InputError, match="with a reason"):
        equivalents(path)


def test_what_no_experiment_is_noted_for_each_mutant_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "list.toml"
    path.write_text('[[equivalent]]\nmutants = ["a", "b"]\nreason = "so"\ntried = ["x"]\n')

    with pytest.raises(InputError, match="one text for each mutant"):
        equivalents(path)


def test_the_list_is_written_as_it_is_but_for_the_experiments(tmp_path: Path) -> None:
    path = tmp_path / "list.toml"
    path.write_text(LIST.read_text(encoding="utf-8"), encoding="utf-8")
    before, reasons = experiments(path), equivalents(path)
    first = next(iter(reasons))

    write_experiments({}, path)
    assert path.read_text(encoding="utf-8") == LIST.read_text(encoding="utf-8")

    write_experiments({first: 'f00d: no difference in "this"'}, path)
    assert equivalents(path) == reasons
    assert experiments(path) == {**before, first: 'f00d: no difference in "this"'}


SURVIVOR = Mutant("spec/spyre/padding.py", "f", 1, "term", "a -> b")


def test_an_experiment_says_what_ran_the_change_and_what_is_left_to_try() -> None:
    some = Outcome(SURVIVOR, None, tried={"explore": 3, "states": 1_234, "fuzz": 95})
    more = Outcome(SURVIVOR, None, tried={"fuzz": 5})
    none = Outcome(SURVIVOR, None)

    stages: list[list[Outcome | None]] = [[some, more], [some, None], [none, none]]
    assert [str(Experiment("f00d", stage)) for stage in stages] == [
        "f00d: no difference in 3 instances of 1,234 states, 100 random cases",
        "f00d: no difference in 3 instances of 1,234 states, 95 random cases; "
        "1 stage is left to try",
        "f00d: no trial runs it",
    ]


@pytest.mark.thorough
def test_a_wrong_equivalent_is_printed_and_the_exit_code_is_1(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listed = lockstep("mutants", "nano_vllm/formulas.py:can_all", "--list").out.splitlines()
    line, other = listed[:2]
    monkeypatch.setattr(command, "equivalents", lambda: {line: "it is said to be the same"})

    ran = lockstep("mutants", "--equivalents", "nano_vllm", "--json", "r.json")
    report = json.loads(Path("r.json").read_text())

    assert (ran.code, report["chosen"]) == (1, 1)
    assert "listed as equivalent, and killed by" in ran.out
    assert [found["mutant"] for found in report["overlooked"]] == [line]
    assert other not in ran.out
