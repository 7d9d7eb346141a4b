"""The records of evidence: results of exploring, proving and campaigns, kept with the project.

`explore`, `prove` and `conform` write the files with `--record`, and tests pin them, so that the
diff of a change shows every changed count or verdict. `lockstep rules` and the chapters quote them.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import frozen

from checks.explore.instance import title_of
from checks.export.files import new_file
from checks.harness.campaigns.drawn import summarised
from checks.words import counted
from spec.core.rule import AnyRule

if TYPE_CHECKING:
    from checks.explore.exploring import Exploration
    from checks.harness.campaigns.campaign import Campaign
    from checks.harness.campaigns.worlds import Coverage
    from checks.proofs.registry import Proof


def record_of(explorations: Iterable["Exploration"]) -> dict[str, Any]:
    """The record of explorations: exact counts and verdicts, no times."""
    return {
        title_of(exploration.instance): {
            "about": exploration.instance.about,
            "states": exploration.result.states,
            "transitions": exploration.result.transitions,
            "depth": exploration.result.depth,
            "violations": exploration.violations,
            "rules": list(exploration.rules),
            "witnesses": {rule: edges for rule, edges in exploration.witnesses.items() if edges},
        }
        for exploration in explorations
    }


def proofs_of(proofs: Iterable["Proof"]) -> dict[str, Any]:
    """The record of proofs: claims, verdicts, processor seconds, a second solver's opinion."""
    return {
        proof.obligation: claim_of(proof.obligation)
        | {"verdict": proof.verdict.value, "seconds": round(proof.seconds, 1)}
        | ({"second": proof.second} if proof.second else {})
        for proof in proofs
    }


def claim_of(obligation: str) -> dict[str, Any]:
    """The claim of an obligation, as in the record."""
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

    If an earlier entry has the same list of rules, an entry names that entry instead of the list.
    """
    first_titles: dict[tuple[str, ...], str] = {}
    entries = []
    for title, entry in record.items():
        fields = dict(entry)
        first = first_titles.setdefault((*entry.get("rules", ()),), title)
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
REACHED = _RECORDS / "reached.json"  # situations that random cases reach, by policy
SERVED = _RECORDS / "served.json"  # digests of the steps of a release in random cases, by policy


def recorded(path: Path) -> dict[str, Any]:
    """A record: `EXPLORED` and `LARGE` by instance, `PROVEN` by obligation, `CONFORMED` by release.

    The entry of a campaign with a release has its `seed`, `episodes` and `steps`, the judged
    `rules`, in `broken`, by rule, the number of steps that broke it as expected, and in `drawn`, by
    configuration key, the values that its cases had (`checks.harness.campaigns.drawn`).
    """
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    for entry in content.values():
        if isinstance(rules := entry.get("rules"), str):
            entry["rules"] = content[rules]["rules"]
    return content


@frozen
class Claim:
    """The scope of an obligation's verdict.

    `of`: "formula", for all numbers, or "machine", for every run. `where`: the configuration; empty
    for all of them. `bounds`: the numbers.
    """

    of: str
    where: str
    bounds: str

    @property
    def about(self) -> str:
        """The scope of a proof in words: formula or run, configuration, numbers."""
        return self._under("every run of the machine") + f", for {self.bounds}"

    @property
    def broken_by(self) -> str:
        """The scope of a refutation in words: some run, or some number."""
        of_runs = self.of == "machine"
        return (
            self._under("a run of the machine") + f", {'among' if of_runs else 'for'} {self.bounds}"
        )

    def _under(self, run: str) -> str:
        subject = run if self.of == "machine" else "the formula"
        return f"{subject} with {self.where}" if self.where else subject


@frozen
class Verdict:
    """The recorded evidence for one rule.

    `holds_in` and `refuted_in`: titles of instances; `states`: number of explored states of those
    where it holds. `holds_in_large` and so on: the same for large instances in which the rule was
    judged on every edge. `witnessed`: number of edges with its witness, over all instances.
    `proven`, `disproven` and `stale`: its obligations, each with its claim.
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
        """The verdict in short; a rule refuted anywhere is never "proven"."""
        if self.refuted_in or self.refuted_in_large or self.disproven:
            is_refuted = self.refuted_in or self.refuted_in_large or not self.proven
            return "refuted" if is_refuted else "proven in part"
        return "proven" if self.proven else "holds" if self.holds_in else "not judged"

    @property
    def of(self) -> str | None:
        """The widest proof: "machine" for every run, "formula", or None if nothing is proven."""
        scopes = {claim.of for claim in self.proven.values()}
        return None if not scopes else "machine" if "machine" in scopes else "formula"

    @property
    def phrase(self) -> str:
        """The verdict in words; a proof names the formula or every run of the machine."""
        if self.word != "proven":
            return self.word
        subject = "every run of the machine" if self.of == "machine" else "the formula"
        return f"proven of {subject}"

    @property
    def explored(self) -> str:
        """The results of exploring in words: with the reference, and with the compiled machine."""
        small = _explored(self.holds_in, self.refuted_in, self.states)
        large = _explored(self.holds_in_large, self.refuted_in_large, self.large_states)
        return f"{small}; compiled: {large}" if large != _NOT_JUDGED else small

    @property
    def proofs(self) -> str:
        """The obligations of `claims`, and how many more are proven."""
        shown = [id_ for ids in self._widest.values() for id_ in ids]
        hidden = len(self.proven) - len(shown)
        proven = ", ".join([*shown, *([f"{hidden} more"] if hidden else [])])
        others = (
            f"{word}: {', '.join(claims)}"
            for word, claims in (("refuted", self.disproven), ("stale", self.stale))
            if claims
        )
        return "; ".join(part for part in (proven, *others) if part) or "-"

    @property
    def claims(self) -> dict[str, list[str]]:
        """Each claim that is proven, the widest two, refuted or stale, with its obligations."""
        refuted = by_claim(self.disproven, attrgetter("broken_by"))
        return {
            **{f"proven of {about}": ids for about, ids in self._widest.items()},
            **{f"refuted of {about}": ids for about, ids in refuted.items()},
            **{f"stale of {about}": ids for about, ids in by_claim(self.stale).items()},
        }

    @property
    def _widest(self) -> dict[str, list[str]]:
        return dict(islice(by_claim(self.proven).items(), _SHOWN))


_NOT_JUDGED = "not judged"


def _explored(holds_in: Sequence[str], refuted_in: Sequence[str], states: int) -> str:
    """The results of exploring a rule in these instances, in words."""
    held = f"holds in {len(holds_in)} instances, {states:,} states"
    if not holds_in and not refuted_in:
        return _NOT_JUDGED
    if not refuted_in:
        return held
    refuted = f"refuted in: {'; '.join(refuted_in)}"
    return f"{refuted} ({held})" if holds_in else refuted


_SHOWN = 2  # claims in a table of many rules; a rule that is shown alone has them all
_WIDEST = ("any", "every batch size", "every row of a batch of any", "every step of a batch of any")


def by_claim(
    obligations: Mapping[str, Claim], text: Callable[[Claim], str] = attrgetter("about")
) -> dict[str, list[str]]:
    """The obligations by the text of their claims: runs first, then batches of any size."""

    def narrowness(claim: Claim) -> tuple[bool, bool]:
        return claim.of != "machine", not claim.bounds.startswith(_WIDEST)

    by_text: dict[str, list[str]] = {}
    for name, claim in sorted(obligations.items(), key=lambda pair: narrowness(pair[1])):
        by_text.setdefault(text(claim), []).append(name)
    return by_text


def recorded_verdicts(rules: Iterable[AnyRule]) -> list[Verdict]:
    """The verdict on each rule, from the project's records."""
    explored, proven, large = recorded(EXPLORED), recorded(PROVEN), recorded(LARGE)
    return [verdict_on(rule, explored, proven, large) for rule in rules]


def verdict_on(
    rule: AnyRule,
    explored: dict[str, Any],
    proven: dict[str, Any],
    large: dict[str, Any] | None = None,
) -> Verdict:
    """The verdict on a rule, from these records."""
    judged, holds, refuted, states = _explored_verdict(rule, explored)
    _, holds_in_large, refuted_in_large, large_states = _explored_verdict(rule, large or {})
    serving = {name: entry for name, entry in proven.items() if rule.id in entry["rules"]}
    return Verdict(
        rule=rule,
        holds_in=holds,
        refuted_in=refuted,
        states=states,
        witnessed=sum(entry["witnesses"].get(rule.id, 0) for entry in judged.values()),
        proven=_decided(serving, "proven"),
        disproven=_decided(serving, "refuted"),
        stale=_decided(serving, "stale"),
        holds_in_large=holds_in_large,
        refuted_in_large=refuted_in_large,
        large_states=large_states,
    )


def _explored_verdict(
    rule: AnyRule, explored: dict[str, Any]
) -> tuple[dict[str, Any], tuple[str, ...], tuple[str, ...], int]:
    """The instances where a rule was judged, held, and was refuted; the states where it held."""
    judged = {name: entry for name, entry in explored.items() if rule.id in entry["rules"]}
    refuted = tuple(name for name, entry in judged.items() if rule.id in entry["violations"])
    holds = tuple(name for name in judged if name not in refuted)
    return judged, holds, refuted, sum(judged[name]["states"] for name in holds)


def _decided(serving: dict[str, Any], verdict: str) -> dict[str, Claim]:
    """The obligations with this verdict, each with its claim."""
    return {
        name: Claim(entry["of"], entry["where"], entry["bounds"])
        for name, entry in serving.items()
        if entry["verdict"] == verdict
    }


# --- campaigns with releases ----------------------------------------------------------------------


def write_entry(campaign: "Campaign", path: Path) -> None:
    """Record a campaign, without times, in place of the last campaign of its release."""
    content = recorded(path) if path.exists() else {}
    content[campaign.hello.release] = content.get(campaign.hello.release, {}) | {
        "broken": dict(sorted(campaign.expected.items())),
        "drawn": {key: summarised(values) for key, values in sorted(campaign.drawn.items())},
        "episodes": campaign.episodes,
        "known": dict(sorted(campaign.known.items())),
        "rules": campaign.judged_rules,
        "seed": campaign.plan.seed,
        "situations": len(campaign.situations),
        "steps": campaign.judged,
    }
    write_record(dict(sorted(content.items())), path)


def write_worlds(coverage: "Coverage", path: Path) -> None:
    """Record the worlds of a release beside its campaign, which is on record, with the day."""
    content, campaign = recorded(path), coverage.campaign
    content[campaign.hello.release]["worlds"] = {
        "day": date.today().isoformat(),
        "edges": dict(sorted(coverage.edges.items())),
        "behind": dict(sorted(coverage.behind.items())),
        "refused": dict(sorted(coverage.refused.items())),
        "paths": campaign.episodes,
        "steps": campaign.steps,
        "known": dict(sorted(campaign.known.items())),
        "broken": dict(sorted(campaign.expected.items())),
        "rules": campaign.judged_rules,
    }
    write_record(content, path)


def verdicts_on(rule: str, record: Mapping[str, Any]) -> dict[str, str]:
    """The results of campaigns for a rule, by release."""
    verdicts = {}
    for release, entry in record.items():
        if rule in entry["broken"]:
            verdicts[release] = (
                f"broken in {entry['broken'][rule]:,} of {entry['steps']:,} steps, as known"
            )
        elif rule in entry["rules"]:
            bounds = f"{entry['episodes']:,} episodes, {entry['steps']:,} steps"
            verdicts[release] = f"holds for {bounds}{_early_ends(entry['known'])}"
        worlds = entry.get("worlds", {"rules": ()})
        if rule in worlds["rules"]:
            steps = worlds["broken"].get(rule, 0)
            on_edges = f"broken in {counted(steps, 'step')}" if steps else "holds"
            on_worlds = f"{on_edges} on {_edges_taken(worlds)}"
            in_campaign = verdicts.get(release)
            verdicts[release] = f"{in_campaign}; {on_worlds}" if in_campaign else on_worlds
    return verdicts


NOT_ON_RECORD = "not on record"


def evidence_on_releases(record: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """By release in words: what was taken edge by edge, drawn and guided, and watched."""
    return {
        release: {
            "exhaustive": _edges_taken(entry["worlds"]) if "worlds" in entry else NOT_ON_RECORD,
            "guided": f"{entry['episodes']:,} episodes, {entry['steps']:,} steps{_reached(entry)}",
            "watched": entry.get("watched", NOT_ON_RECORD),
        }
        for release, entry in record.items()
    }


def _reached(entry: Mapping[str, Any]) -> str:
    return f", {entry['situations']:,} situations" if "situations" in entry else ""


def _edges_taken(worlds: Mapping[str, Any]) -> str:
    refused = worlds["refused"]
    edges = {name: count for name, count in worlds["edges"].items() if name not in refused}
    total, behind = sum(edges.values()), sum(worlds["behind"].values())
    taken = f"{total - behind:,} of {total:,}" if behind else f"all {total:,}"
    known = ", the rest behind known differences" if behind else ""
    besides = f", {len(refused)} refused at their start" if refused else ""
    return f"{taken} edges of {counted(len(edges), 'world')}{known}{besides} ({worlds['day']})"


def _early_ends(differences: Mapping[str, int]) -> str:
    """In words, the number of episodes that a known difference ended early."""
    counts = {id_: times for id_, times in differences.items() if times}
    if not counts:
        return ""
    return f", of which {', '.join(sorted(counts))} ended {sum(counts.values()):,} before their end"
