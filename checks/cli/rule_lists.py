"""What `lockstep rules` prints: the rules by policy, or everything about one."""

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from checks.cli.common import console, write_json
from checks.cli.tables import plain_table
from checks.evidence import Verdict, recorded_verdicts
from checks.policies import POLICIES, RULES
from checks.releases.verdicts import CONFORMED, recorded, verdicts_on
from spec.core.errors import InputError
from spec.core.rule import AnyRule


def print_rules(ids: Sequence[str], json_path: Path | None) -> None:
    """The rules whose id begins with one of these, all without; and the report.

    Raises:
        InputError: nothing begins so.
    """
    listed = recorded_verdicts(_selected(ids))
    write_json([_as_mapping(verdict) for verdict in listed], json_path)
    screen = console(json_path)
    if ids and len(listed) == 1:
        _print_one(screen, listed[0])
        return
    for name, policy in POLICIES.items():
        of_policy = [one for one in listed if one.rule.id in policy.registry.rules]
        if of_policy:
            screen.print(f"[bold]{name}[/bold]")
            screen.print(_table(of_policy))
    screen.print(f"{len(listed)} rules; one alone: lockstep rules {listed[0].rule.id}")


def _selected(ids: Sequence[str]) -> list[AnyRule]:
    """In the order of the registry."""
    for wanted in ids:
        if not any(known.startswith(wanted.upper()) for known in RULES):
            near = get_close_matches(wanted.upper(), RULES, n=3)
            families = sorted({known.rpartition("-")[0] for known in RULES})
            raise InputError("ID", wanted, f"{', '.join(near or families)}, or their beginning")
    prefixes = tuple(wanted.upper() for wanted in ids) or ("",)
    return [rule for rule in RULES.values() if rule.id.startswith(prefixes)]


def _print_one(screen: Console, verdict: Verdict) -> None:
    """Everything about one rule, line by line; obligations and releases with their bounds."""
    for name, value in _as_mapping(verdict).items():
        if name in ("proven by", "refuted by"):
            continue  # these stand with their bounds under "proven for" and "refuted for"
        if not isinstance(value, dict):
            screen.print(f"[bold]{name}[/bold]: {value}")
            continue
        for key, bounds in value.items():
            screen.print(f"[bold]{name}[/bold] {bounds}: {key}")


def _table(listed: Sequence[Verdict]) -> Table:
    table = plain_table("rule", "kind", "says", "source", "explored", "proofs")
    for one in listed:
        rule = one.rule
        source = str(rule.source)
        table.add_row(rule.id, rule.kind.value, rule.sentence, source, one.explored, one.proofs)
    return table


def _as_mapping(verdict: Verdict) -> dict[str, Any]:
    rule = verdict.rule
    return {
        "id": rule.id,
        "policy": next(name for name, one in POLICIES.items() if rule.id in one.registry.rules),
        "says": rule.sentence,
        "source": str(rule.source),
        "kind": rule.kind.value,
        "explored": verdict.explored,
        "holds in": list(verdict.holds_in),
        "refuted in": list(verdict.refuted_in),
        "states": verdict.states,
        "witness seen on edges": verdict.witnessed,
        "proven by": list(verdict.proven),
        "proven for": dict(verdict.proven),
        "refuted by": list(verdict.disproven),
        "refuted for": dict(verdict.disproven),
        "released": verdicts_on(rule.id, recorded(CONFORMED)),
    }
