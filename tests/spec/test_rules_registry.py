"""The registry: every rule is well formed, and none holds only because it never applies."""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

import reference
from checks.evidence import EXPLORED, record_of, recorded, verdict_on
from checks.explore.exploring import explore_instance
from checks.explore.instance import Instance
from checks.explore.policy import machine_of
from checks.registry import POLICIES, claims_of
from checks.registry import RULES as EVERY
from reference.spyre.machine import SpyreMachine
from spec.core.rule import AnyRule, Kind, Registry, Source, shortened
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Context, Step
from spec.spyre.rules import REGISTRY, applicable
from spec.spyre.state import State
from tests.requests import request

ID = re.compile(r"([A-Z]+[0-9]?-)?[A-Z]{2,3}-[1-9][0-9]?")
RULES = list(EVERY.values())


# --- every rule that there is ---------------------------------------------------------------------


def test_rules_are_known_by_their_own_ids() -> None:
    assert len(EVERY) > 150
    assert all(id_ == rule.id for id_, rule in EVERY.items())
    assert [id_ for id_ in EVERY if not ID.fullmatch(id_)] == []


TEXTS = {
    *("spyre", "sendnn-inference 2.6.3", "lockstep"),
    *("vllm-v1", "vLLM 0.28.0"),
    *("nano-vllm", "nano-vllm 9e8507e", "nano-vllm bb823b3"),
    *("vllm-v0", "vLLM 0.9.2"),
}


def test_every_rule_is_one_sentence_with_a_source() -> None:
    for rule in RULES:
        without_releases = re.sub(r"\d+\.\d+\.\d+", "", rule.sentence)
        assert re.fullmatch(r"[A-Z][^.]*\.", without_releases), rule.id
        assert rule.source.text in TEXTS, rule.id
        assert str(rule.source) == f"{rule.source.text}, {rule.source.section}"


PREDICATES = {
    Kind.ALWAYS: "in_state",
    Kind.STEP: "of_step",
    Kind.GUARD: "of_step",
    Kind.BETWEEN: "of_change",
    Kind.EVENTUALLY: "goal",
}


def test_every_rule_has_the_predicate_of_its_kind_and_no_other() -> None:
    for rule in RULES:
        defined = [name for name in {*PREDICATES.values()} if getattr(rule, name) is not None]
        assert defined == [PREDICATES[rule.kind]], rule.id


def test_every_rule_applies_under_some_configuration_that_is_explored() -> None:
    for policy in POLICIES:
        instances = machine_of(policy).instances
        for rule in claims_of(policy).registry.rules.values():
            assert any(rule.applies(instance.config) for instance in instances), rule.id


# --- what the machine names -----------------------------------------------------------------------


def named_rules(source: str) -> Iterator[str]:
    """Everything in the source that looks like the id of a rule."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and ID.fullmatch(str(node.value)):
            yield str(node.value)


def test_every_rule_that_the_machine_names_is_registered() -> None:
    modules = list(Path(reference.__file__).parent.rglob("*.py"))

    named = {name for path in modules for name in named_rules(path.read_text())}

    assert len(named) > 60
    assert named - EVERY.keys() == set()


def test_a_rule_that_is_not_there_would_be_noticed() -> None:
    assert set(named_rules('require(x, "pad", "SPY-XXX-1"); f("PFX-1", "utf-8", "A")')) == {
        "SPY-XXX-1",
        "PFX-1",
    }


# --- witnesses ------------------------------------------------------------------------------------


def unwitnessed(rules: Iterable[AnyRule], explored: dict[str, Any]) -> list[str]:
    """Rules that no instance judges, or whose witness was seen in none: vacuous so far."""
    return [rule.id for rule in rules if not verdict_on(rule, explored, {}).witnessed]


def test_every_rule_is_judged_and_witnessed_on_record() -> None:
    assert unwitnessed(RULES, recorded(EXPLORED)) == []


def test_every_rule_holds_somewhere_on_record() -> None:
    explored = recorded(EXPLORED)

    assert [rule.id for rule in RULES if not verdict_on(rule, explored, {}).holds_in] == []


SMALL = Instance(
    name="small",
    about="two requests of one block each",
    config=SpyreConfig(block_size=2, chunk_size=2, max_model_len=8, max_num_seqs=2, num_blocks=8),
    requests=(request("0", 2, 3), request("1", 2, 3)),
)


@pytest.mark.parametrize(
    ("shortest", "witness_is_seen"),
    [(3, False), (2, True)],  # two of the requests may decode together, never three
)
def test_rule_with_an_unreachable_witness_fails_the_check(
    monkeypatch: pytest.MonkeyPatch, shortest: int, witness_is_seen: bool
) -> None:
    def crowd(_ctx: Context, step: Step) -> bool:
        return len(step.batch) >= shortest

    planted = evolve(REGISTRY["SPY-DEC-1"], id="TST-1", witness=crowd)
    monkeypatch.setitem(REGISTRY, "TST-1", planted)

    record = record_of([explore_instance(SMALL)])

    assert unwitnessed([planted], record) == ([] if witness_is_seen else ["TST-1"])


def test_rule_that_was_never_judged_fails_the_check() -> None:
    nowhere = evolve(REGISTRY["SPY-DEC-1"], id="TST-1")

    assert unwitnessed([nowhere], recorded(EXPLORED)) == ["TST-1"]
    assert verdict_on(nowhere, recorded(EXPLORED), {}).explored == "not judged"


# --- how rules are registered and judged ----------------------------------------------------------


def never(_ctx: Context, _step: Step) -> bool:
    return False


HERE = Source("lockstep", "tests")


def test_each_decorator_registers_its_kind_and_leaves_the_function_alone() -> None:
    registry: Registry[SpyreConfig, Context, State, Step] = Registry()

    def holds(_ctx: Context, _state: State) -> Iterator[str]:
        """One that is
        long.

        And a remark.
        """
        yield from ()

    def acts(_ctx: Context, _step: Step) -> Iterator[str]:
        """Two."""
        yield from ()

    def moves(_ctx: Context, _before: State, _after: State) -> Iterator[str]:
        """Five."""
        yield from ()

    def reached(_state: State, _request_id: str) -> bool:
        """Four."""
        return True

    assert registry.always("A-1", HERE, witness=never)(holds) is holds
    assert registry.of_step("A-2", HERE, witness=never)(acts) is acts
    registry.guard("A-3", HERE)(acts)
    assert registry.eventually("A-4", HERE, witness=never)(reached) is reached
    assert registry.between("A-5", HERE, witness=never)(moves) is moves

    assert [(rule.id, rule.kind) for rule in registry.rules.values()] == [
        ("A-1", Kind.ALWAYS),
        ("A-2", Kind.STEP),
        ("A-3", Kind.GUARD),
        ("A-4", Kind.EVENTUALLY),
        ("A-5", Kind.BETWEEN),
    ]
    assert registry.rules["A-4"].goal is reached
    assert registry.rules["A-1"].sentence == "One that is long."


def test_second_rule_of_the_same_id_is_refused() -> None:
    registry: Registry[SpyreConfig, Context, State, Step] = Registry()

    def reached(_state: State, _request_id: str) -> bool:
        """One."""
        return True

    registry.eventually("A-1", HERE, witness=never)(reached)

    with pytest.raises(ValueError, match="two rules are called A-1"):
        registry.eventually("A-1", HERE, witness=never)(reached)


def test_a_rule_without_a_sentence_is_refused() -> None:
    registry: Registry[SpyreConfig, Context, State, Step] = Registry()

    with pytest.raises(ValueError, match="A-1 says nothing"):
        registry.eventually("A-1", HERE, witness=never)(lambda _state, _id: True)


def test_a_witness_may_stand_below_its_rule_and_must_stand_somewhere() -> None:
    registry: Registry[SpyreConfig, Context, State, Step] = Registry()

    def reached(_state: State, _request_id: str) -> bool:
        """One."""
        return True

    registry.eventually("A-1", HERE)(registry.witness(never)(reached))

    assert registry.rules["A-1"].witness is never
    with pytest.raises(ValueError, match="A-2 has no witness"):
        registry.eventually("A-2", HERE)(reached)


def served_step() -> tuple[Context, Step]:
    machine = SpyreMachine.of(SMALL.config, SMALL.requests)
    return machine.ctx, machine.step(machine.arrive(machine.initial(), "0"))


def test_step_that_breaks_rules_is_found_by_all_of_them() -> None:
    ctx, step = served_step()

    def broken(step: Step) -> list[tuple[str, str]]:
        found = ((rule.id, rule.found_of_step(ctx, step)) for rule in applicable(ctx.config))
        return [(id_, text) for id_, text in found if text]

    assert broken(step) == []
    assert broken(evolve(step, tkv=999, volume=999)) == [
        ("SPY-LEN-1", "tkv 999, max_model_len 8"),
        ("SPY-TKV-2", "tkv 999, rows reach 2"),
    ]


def test_rule_about_states_is_judged_on_the_state_that_a_step_leaves() -> None:
    ctx, step = served_step()
    rule = REGISTRY["BLK-1"]
    broken = evolve(step.after, pool=evolve(step.after.pool, free=()))

    assert rule.found_of_step(ctx, step) is None
    assert rule.found_of_step(ctx, evolve(step, after=broken)) == "0 free and 1 held of 8 blocks"
    assert rule.found_in_state(ctx, broken) == "0 free and 1 held of 8 blocks"


def test_what_a_rule_finds_names_the_first_few_of_many_requests() -> None:
    ctx, step = served_step()
    found = f"waiting {[str(number) for number in range(2_000)]}, limit {8}"
    rule = evolve(REGISTRY["BLK-1"], in_state=lambda _ctx, _state: iter([found]))

    named = ", ".join(f"'{number}'" for number in range(20))
    assert rule.found_in_state(ctx, step.after) == f"waiting [{named}, … 1,980 more], limit 8"


@pytest.mark.parametrize(
    ("text", "short"),
    [
        (f"{[*range(20)]} of {[7]}", f"{[*range(20)]} of [7]"),
        (
            f"{[(number, 1) for number in range(21)]}",
            f"{[(number, 1) for number in range(20)]}"[:-1] + ", … 1 more]",
        ),
        (f"{[[*range(22)], [5]]}", "[[" + ", ".join(map(str, range(20))) + ", … 2 more], [5]]"),
        ("tokens 3] of 4)", "tokens 3] of 4)"),
    ],
)
def test_each_bracket_is_shortened_by_itself(text: str, short: str) -> None:
    assert shortened(text) == short
