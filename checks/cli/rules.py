"""`lockstep rules`: every rule, where it is written, and what the checks say about it."""

from typing import Any

import click
from rich.console import Console
from rich.text import Text

from checks.cli import HOLDS
from checks.cli.common import Output, beginning_with, json_option, plain_table
from checks.cli.outputs import Command
from checks.evidence import CONFORMED, Verdict, recorded, recorded_verdicts, verdicts_on
from checks.policies import POLICIES, RULES

_COLUMNS = ("rule", "kind", "says", "source", "explored", "proofs")


@click.command(cls=Command)
@click.argument("ids", nargs=-1, metavar="[ID …]")
@json_option
def rules(ids: tuple[str, ...], output: Output) -> int:
    """List every rule: its sentence, its source, and which checks cover it with what result.

    ID is a rule's id or the beginning of several: SPY-VOL-1, SPY-PFX, BLK; those of nano-vLLM begin
    with NANO, those of vLLM V1 with V1. The verdicts are those on record with this version, made by
    exploring the default instances, by proving the obligations, whose bounds `lockstep prove`
    shows, and by campaigns with released schedulers; those stand with each rule shown alone.
    """
    listed = recorded_verdicts([RULES[one] for one in beginning_with(ids, RULES, "ID", nearest=3)])
    output.end(HOLDS, {"rules": [_as_mapping(verdict) for verdict in listed]})
    screen = output.screen
    if ids and len(listed) == 1:
        _print_one(screen, listed[0])
        return 0
    for name, policy in POLICIES.items():
        rows = [_row(one) for one in listed if one.rule.id in policy.registry.rules]
        if rows:
            screen.print(Text.assemble((name, "bold")))
            screen.print(plain_table(_COLUMNS, rows))
    screen.print(f"{len(listed)} rules; one alone: lockstep rules {listed[0].rule.id}")
    return 0


def _print_one(screen: Console, verdict: Verdict) -> None:
    """Everything about one rule, line by line; obligations and releases with their bounds."""
    for name, value in _as_mapping(verdict).items():
        if name in ("proven by", "refuted by"):
            continue  # these stand with their bounds under "proven for" and "refuted for"
        if not isinstance(value, dict):
            screen.print(Text.assemble((name, "bold"), f": {value}"))
            continue
        for key, bounds in value.items():
            screen.print(Text.assemble((name, "bold"), f" {bounds}: {key}"))


def _row(verdict: Verdict) -> tuple[str, ...]:
    rule, source = verdict.rule, str(verdict.rule.source)
    return rule.id, rule.kind.value, rule.sentence, source, verdict.explored, verdict.proofs


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
        "stale for": dict(verdict.stale),
        "released": verdicts_on(rule.id, recorded(CONFORMED)),
    }
