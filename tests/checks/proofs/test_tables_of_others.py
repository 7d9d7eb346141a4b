"""Two tables of wrong formulas and references by authors who had not seen any other table."""

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from random import Random
from typing import Any

import pytest
from attrs import evolve

from checks.harness.case import Case
from checks.proofs import words
from checks.proofs.links import Link
from checks.proofs.nano_vllm import moves as nano_vllm
from checks.proofs.obligations import OBLIGATIONS
from checks.proofs.prover import prove
from checks.proofs.spyre import moves as spyre
from checks.proofs.vllm_v1 import moves as vllm_v1
from spec.core.requests import Prompt, Request
from spec.spyre.config import SpyreConfig
from spec.spyre.variants import Admission
from tests.checks.proofs.changes import Change, change_table, changes_a_run, drawn_cases

LINKS = {link.policy: link for link in (spyre.LINK, vllm_v1.LINK, nano_vllm.LINK)}
BASES: Mapping[str, Callable[[], str | None]] = {
    "spyre": spyre.stale,
    "vllm-v1": vllm_v1.LINK.stale,
    "nano-vllm": nano_vllm.LINK.stale,
}
# Keys without which some change shows too seldom.
PINNED: Mapping[str, tuple[dict[str, Any], ...]] = {
    "spyre": ({"queue": "aligned"}, {"reservation": False, "prefix_caching": True}),
    "vllm-v1": ({"num_speculative_tokens": 3}, {"connector": "async"}),
    "nano-vllm": ({},),
}

TABLES = {file: change_table(file) for file in ("second_table.toml", "third_table.toml")}
ALL = [
    (policy, change)
    for table in TABLES.values()
    for policy, changes in table.items()
    for change in changes
]
QUICK = ("count_of", "worst_case_blocks", "model_length_holds")  # words, a link, an obligation


def _is_quick(change: Change) -> bool:
    return change.place.rpartition(".")[2] in QUICK


def _has_run(change: Change) -> bool:
    return bool(change.requests)


def _params(is_fast: Callable[[Change], bool]) -> list[Any]:
    """All changes; those that are not fast are in the thorough tier."""
    return [
        pytest.param(
            policy,
            change,
            id=f"{policy} {change}",
            marks=() if is_fast(change) else pytest.mark.thorough,
        )
        for policy, change in ALL
    ]


@pytest.mark.parametrize(("policy", "change"), _params(_is_quick))
def test_a_change_is_noticed_by_what_the_table_names(policy: str, change: Change) -> None:
    with change.planted():
        assert is_noticed(policy, change)


def is_noticed(policy: str, change: Change) -> bool:
    """True if what the table names for the change notices it."""
    match change.noticed_by:
        case "words":
            return words.stale.__wrapped__() is not None
        case "link":
            return BASES[policy]() is not None
    return not prove(OBLIGATIONS[change.noticed_by]).is_as_expected


@pytest.mark.parametrize(("policy", "change"), _params(_has_run))
def test_a_change_changes_the_run_beside_it_or_some_run(policy: str, change: Change) -> None:
    if _has_run(change):
        assert changes_a_run(change, [change.case(policy)])
        return
    small = chain.from_iterable(drawn_cases(policy, **keys) for keys in PINNED[policy])
    large = drawn_cases(policy, LINKS[policy].large_cases)
    cases = chain(_crowds() if policy == "spyre" else (), small, large)
    assert changes_a_run(change, cases)


RARE = (
    (
        vllm_v1.LINK,
        Change(
            "reference.vllm_v1.transitions.preempt",
            "drafts={id_: count for id_, count in plan.drafts.items() if id_ != victim.id}",
            "drafts=plan.drafts",
        ),
    ),
    (
        nano_vllm.LINK,
        Change(
            "reference.nano_vllm.step._admissions",
            "in_batch = count - len(decoded_first)",
            "in_batch = count",
        ),
    ),
    (
        spyre.LINK,
        Change(
            "reference.spyre.admission.reserved_blocks",
            "for sequence in state.admitted",
            "for sequence in state.decoding",
        ),
    ),
)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("link", "change"), RARE, ids=lambda parameter: str(getattr(parameter, "policy", ""))
)
def test_rare_runs_notice_what_large_runs_do_not(link: Link, change: Change) -> None:
    assert not [*link.differences_in_rare_runs()]
    with change.planted():
        assert [*link.differences_in_rare_runs()]


# --- runs in which a limit binds ------------------------------------------------------------------


def _crowds() -> Iterator[Case]:
    """Three requests, one of which comes back to a tight batch; then random crowds of six."""
    lengths = ((4, 4), (6, 13), (2, 17))
    config = evolve(_config(36), reservation=False, num_blocks=6, interleave=False)
    yield Case(config, tuple(_request(str(i), *length) for i, length in enumerate(lengths)))
    for admission in (Admission.DOCUMENTED, Admission.SHIPPED):
        for seed in range(10):
            random = Random(seed)
            config = evolve(_config(random.randint(24, 72)), admission=admission)
            yield Case(config, tuple(_any_request(random, str(name)) for name in range(6)))


def _config(limit: int) -> SpyreConfig:
    return SpyreConfig(
        block_size=4,
        chunk_size=4,
        max_model_len=24,
        max_num_seqs=4,
        num_blocks=99,
        prefix_caching=False,
        max_batch_tkv_limit=limit,
    )


def _any_request(random: Random, name: str) -> Request:
    prompt_len = random.randint(1, 14)
    arrival = random.choice((0, 0, random.randint(0, 9)))
    return _request(name, prompt_len, random.randint(1, 24 - prompt_len), arrival)


def _request(name: str, prompt_len: int, max_tokens: int, arrival: int = 0) -> Request:
    prompt = Prompt.of_parts([(f"own {name}", prompt_len)])
    return Request(id=name, prompt=prompt, max_tokens=max_tokens, arrival=arrival)
