"""Verdicts on record: what exploring, proving and campaigns showed, kept with the project.

The files are written by `explore`, `prove` and `conform` with `--record`, and pinned by tests, so a
change that moves a count or a verdict shows in its diff. `lockstep rules` and the chapter quote
them.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import frozen

from checks.explore.instance import title_of
from checks.export.files import new_file
from spec.core.rule import AnyRule

if TYPE_CHECKING:
    from checks.explore.exploring import Exploration
    from checks.harness.campaign import Campaign
    from checks.proofs.registry import Proof


def record_of(explorations: Iterable["Exploration"]) -> dict[str, Any]:
    """What is worth keeping of explorations: exact counts and verdicts, no times."""
    return {
        title_of(one.instance): {
            "about": one.instance.about,
            "states": one.result.states,
            "transitions": one.result.transitions,
            "depth": one.result.depth,
            "violations": one.violations,
            "rules": list(one.rules),
            "witnesses": {rule: edges for rule, edges in one.witnesses.items() if edges},
        }
        for one in explorations
    }


def proofs_of(proofs: Iterable["Proof"]) -> dict[str, Any]:
    """What is worth keeping of proofs: the claims, their verdicts and the processor's seconds.

    Of a second solver that was asked, too, what it says.
    """
    return {
        proof.obligation: claim_of(proof.obligation)
        | {"verdict": proof.verdict.value, "seconds": round(proof.seconds, 1)}
        | ({"second": proof.second} if proof.second else {})
        for proof in proofs
    }


def claim_of(obligation: str) -> dict[str, Any]:
    """What an obligation claims, as the record has it."""
    from checks.proofs.obligations import OBLIGATIONS

    about = OBLIGATIONS[obligation]
    return {
        "says": about.sentence,
        "of": about.of.value,
        "where": about.where,
        "bounds": about.bounds,
        "rules": list(about.rules),
    }


def write_record(record: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Write a record: each field of an entry is a line, so that a diff shows what has changed.

    An entry whose list of rules an earlier entry has names that entry instead of the list.
    """
    first_with: dict[tuple[str, ...], str] = {}
    entries = []
    for title, entry in record.items():
        fields = dict(entry)
        first = first_with.setdefault((*entry.get("rules", ()),), title)
        if "rules" in entry and first != title:
            fields["rules"] = first
        lines = (f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in fields.items())
        entries.append(f" {json.dumps(title)}: {{\n" + ",\n".join(lines) + "\n }")
    with new_file(path) as file:
        file.write("{\n" + ",\n".join(entries) + "\n}\n")


_RECORDS = Path(__file__).with_name("recorded")
EXPLORED, PROVEN = _RECORDS / "explored.json", _RECORDS / "proven.json"
LARGE = _RECORDS / "large.json"  # instances of which the compiled machine found the states
CONFORMED, MUTATED = _RECORDS / "conformed.json", _RECORDS / "mutated.json"
SERVED = _RECORDS / "served.json"  # digests of the steps of a release in random cases, by policy


def recorded(path: Path) -> dict[str, Any]:
    """A record: `EXPLORED` and `LARGE` by instance, `PROVEN` by obligation, `CONFORMED` by release.

    Of a campaign with a release: its `seed`, `episodes` and `steps`, the `rules` that were judged,
    and of those that were broken where that is known in how many steps.
    """
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    for entry in content.values():
        if isinstance(rules := entry.get("rules"), str):
            entry["rules"] = content[rules]["rules"]
    return content


@frozen
class Claim:
    """What an obligation claims its verdict for.

    `of`: "formula", for all numbers, or "machine", for every run. `where`: the configuration that
    it is about; empty: every one. `bounds`: the numbers that it is about.
    """

    of: str
    where: str
    bounds: str

    @property
    def about(self) -> str:
        """Of what, under which configuration and for which numbers, in words."""
        return self._under("every run of the machine") + f", for {self.bounds}"

    @property
    def broken_by(self) -> str:
        """The same where it is refuted: then it is false of some run, or some number."""
        of_runs = self.of == "machine"
        return (
            self._under("a run of the machine") + f", {'among' if of_runs else 'for'} {self.bounds}"
        )

    def _under(self, run: str) -> str:
        what = run if self.of == "machine" else "the formula"
        return f"{what} with {self.where}" if self.where else what


@frozen
class Verdict:
    """What the records say about one rule.

    `holds_in` and `refuted_in`: instances; `states`: explored states of those where it holds. The
    same of large instances, in which it was judged on every edge: `holds_in_large` and so on.
    `witnessed`: edges on which its witness was seen, over all instances. `proven`, `disproven` and
    `stale`: obligations that serve it, each with what it claims.
    """

    rule: AnyRule
    holds_in: tuple[str, ...]
    refuted_in: tuple[str, ...]
    states: int
    witnessed: int
    proven: Mapping[str, Claim]
    disproven: Mapping[str, Claim]
    stale: Mapping[str, Claim]
    holds_in_large: tuple[str, ...] = ()
    refuted_in_large: tuple[str, ...] = ()
    large_states: int = 0

    @property
    def word(self) -> str:
        """The verdict in short; what is refuted anywhere is not said to be proven."""
        if self.refuted_in or self.refuted_in_large or self.disproven:
            is_refuted = self.refuted_in or self.refuted_in_large or not self.proven
            return "refuted" if is_refuted else "proven in part"
        return "proven" if self.proven else "holds" if self.holds_in else "not judged"

    @property
    def of(self) -> str | None:
        """What is proven: "machine", if of every run of it, "formula", or None if nothing is."""
        found = {claim.of for claim in self.proven.values()}
        return None if not found else "machine" if "machine" in found else "formula"

    @property
    def phrase(self) -> str:
        """The verdict in words: what is proven is said to be so of the formula, or of every run."""
        if self.word != "proven":
            return self.word
        what = "every run of the machine" if self.of == "machine" else "the formula"
        return f"proven of {what}"

    @property
    def explored(self) -> str:
        """What exploring showed, in words: with the reference, and with the compiled machine."""
        small = _explored(self.holds_in, self.refuted_in, self.states)
        large = _explored(self.holds_in_large, self.refuted_in_large, self.large_states)
        return f"{small}; compiled: {large}" if large != _NOT_JUDGED else small

    @property
    def proofs(self) -> str:
        """What proving showed, in words: of what, the widest first, and by which obligations."""
        parts = [
            f"proven of {about} ({', '.join(obligations)})"
            for about, obligations in by_claim(self.proven).items()
        ]
        more = [f"{len(parts) - _SHOWN} more"] if len(parts) > _SHOWN else []
        others = [f"refuted of {claim.broken_by} ({id_})" for id_, claim in self.disproven.items()]
        others += [f"stale of {claim.about} ({id_})" for id_, claim in self.stale.items()]
        return "; ".join([*parts[:_SHOWN], *more, *others]) or "-"


_NOT_JUDGED = "not judged"


def _explored(holds_in: Sequence[str], refuted_in: Sequence[str], states: int) -> str:
    """What exploring these instances showed of a rule, in words."""
    held = f"holds in {len(holds_in)} instances, {states:,} states"
    if not holds_in and not refuted_in:
        return _NOT_JUDGED
    if not refuted_in:
        return held
    refuted = f"refuted in: {'; '.join(refuted_in)}"
    return f"{refuted} ({held})" if holds_in else refuted


_SHOWN = 2  # bounds in a cell of a table; a rule that is shown alone has them all
_WIDEST = ("any", "every batch size", "every row of a batch of any", "every step of a batch of any")


def by_claim(
    obligations: Mapping[str, Claim], said: Callable[[Claim], str] = attrgetter("about")
) -> dict[str, list[str]]:
    """The obligations by what is said of each claim: runs first, then batches of any size."""

    def narrowness(claim: Claim) -> tuple[bool, bool]:
        return claim.of != "machine", not claim.bounds.startswith(_WIDEST)

    found: dict[str, list[str]] = {}
    for name, claim in sorted(obligations.items(), key=lambda pair: narrowness(pair[1])):
        found.setdefault(said(claim), []).append(name)
    return found


def recorded_verdicts(rules: Iterable[AnyRule]) -> list[Verdict]:
    """The verdict on each rule, from the records kept with the project."""
    explored, proven, large = recorded(EXPLORED), recorded(PROVEN), recorded(LARGE)
    return [verdict_on(rule, explored, proven, large) for rule in rules]


def verdict_on(
    rule: AnyRule,
    explored: dict[str, Any],
    proven: dict[str, Any],
    large: dict[str, Any] | None = None,
) -> Verdict:
    """The verdict on a rule, from these records."""
    judged, holds, refuted, states = _judged_in(rule, explored)
    _, holds_in_large, refuted_in_large, large_states = _judged_in(rule, large or {})
    serving = {name: one for name, one in proven.items() if rule.id in one["rules"]}
    return Verdict(
        rule=rule,
        holds_in=holds,
        refuted_in=refuted,
        states=states,
        witnessed=sum(one["witnesses"].get(rule.id, 0) for one in judged.values()),
        proven=_decided(serving, "proven"),
        disproven=_decided(serving, "refuted"),
        stale=_decided(serving, "stale"),
        holds_in_large=holds_in_large,
        refuted_in_large=refuted_in_large,
        large_states=large_states,
    )


def _judged_in(
    rule: AnyRule, explored: dict[str, Any]
) -> tuple[dict[str, Any], tuple[str, ...], tuple[str, ...], int]:
    """The instances where a rule was judged, held, and was refuted; the states where it held."""
    judged = {name: one for name, one in explored.items() if rule.id in one["rules"]}
    refuted = tuple(name for name, one in judged.items() if rule.id in one["violations"])
    holds = tuple(name for name in judged if name not in refuted)
    return judged, holds, refuted, sum(judged[name]["states"] for name in holds)


def _decided(serving: dict[str, Any], verdict: str) -> dict[str, Claim]:
    """The obligations that came out so, each with what it claims."""
    return {
        name: Claim(one["of"], one["where"], one["bounds"])
        for name, one in serving.items()
        if one["verdict"] == verdict
    }


# --- campaigns with releases ----------------------------------------------------------------------


def write_entry(seen: "Campaign", path: Path) -> None:
    """Put what is worth keeping of a campaign, no times, in the place of its release's last one."""
    content = recorded(path) if path.exists() else {}
    content[seen.hello.release] = {
        "broken": dict(sorted(seen.expected.items())),
        "episodes": seen.episodes,
        "known": dict(sorted(seen.known.items())),
        "rules": seen.judged_rules,
        "seed": seen.plan.seed,
        "steps": seen.judged,
    }
    write_record(dict(sorted(content.items())), path)


def verdicts_on(rule: str, record: Mapping[str, Any]) -> dict[str, str]:
    """What campaigns say of a rule, by release."""
    verdicts = {}
    for release, one in record.items():
        if rule in one["broken"]:
            verdicts[release] = (
                f"broken in {one['broken'][rule]:,} of {one['steps']:,} steps, as known"
            )
        elif rule in one["rules"]:
            bounds = f"{one['episodes']:,} episodes, {one['steps']:,} steps"
            verdicts[release] = f"holds for {bounds}{_ended_by(one['known'])}"
    return verdicts


def _ended_by(known: Mapping[str, int]) -> str:
    """In how many episodes steps stand unjudged, behind a known difference."""
    met = {id_: times for id_, times in known.items() if times}
    if not met:
        return ""
    return f", of which {', '.join(sorted(met))} ended {sum(met.values()):,} before their end"
