"""`lockstep rules`: every rule, where it is written, and what the checks say about it."""

from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from checks.cli.common import console, json_option, write_json
from checks.evidence import Verdict, recorded_verdicts
from checks.policies import POLICIES, RULES
from checks.releases.verdicts import CONFORMED, recorded, told_of
from spec.core.errors import InputError
from spec.core.rule import AnyRule


@click.command()
@click.argument("ids", nargs=-1, metavar="[ID …]")
@json_option
def rules(ids: tuple[str, ...], json_path: Path | None) -> int:
    """List every rule: its sentence, its source, and which checks cover it with what result.

    ID is a rule's id or the beginning of several: SPY-VOL-1, SPY-PFX, BLK; those of nano-vLLM begin
    with NANO, those of vLLM V1 with V1. The verdicts are those on record with this version, made by
    exploring the default instances, by proving the obligations, whose bounds `lockstep prove`
    shows, and by campaigns with released schedulers; those stand with each rule shown alone.
    """
    listed = recorded_verdicts(_selected(ids))
    write_json([_as_mapping(verdict) for verdict in listed], json_path)
    screen = console(json_path)
    if ids and len(listed) == 1:
        _tell(screen, listed[0])
        return 0
    for name, policy in POLICIES.items():
        of_policy = [one for one in listed if one.rule.id in policy.registry.rules]
        if of_policy:
            screen.print(f"[bold]{name}[/bold]")
            screen.print(_table(of_policy))
    screen.print(f"{len(listed)} rules; one alone: lockstep rules {listed[0].rule.id}")
    return 0


def _tell(screen: Console, verdict: Verdict) -> None:
    """Everything about one rule, line by line."""
    for name, value in _as_mapping(verdict).items():
        if name in ("proven by", "refuted by"):
            continue  # told with their bounds
        if not isinstance(value, dict):
            screen.print(f"[bold]{name}[/bold]: {value}")
        for obligation, bounds in value.items() if isinstance(value, dict) else ():
            screen.print(f"[bold]{name}[/bold] {bounds}: {obligation}")


def _selected(ids: tuple[str, ...]) -> list[AnyRule]:
    """The rules whose id begins with one of these, in the order of the registry.

    Raises:
        InputError: nothing begins so.
    """
    for wanted in ids:
        if not any(known.startswith(wanted.upper()) for known in RULES):
            near = get_close_matches(wanted.upper(), RULES, n=3)
            families = sorted({known.rpartition("-")[0] for known in RULES})
            allowed = f"{', '.join(near or families)}, or their beginning"
            raise InputError("ID", wanted, allowed)
    prefixes = tuple(wanted.upper() for wanted in ids) or ("",)
    return [rule for rule in RULES.values() if rule.id.startswith(prefixes)]


def _table(listed: list[Verdict]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("rule", "kind", "says", "source", "explored", "proofs"):
        table.add_column(name, overflow="fold")
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
        "released": told_of(rule.id, recorded(CONFORMED)),
    }
