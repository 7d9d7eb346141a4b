"""`lockstep rules`: every rule, where it is written, and what the checks say about it."""

from pathlib import Path

import click

from checks.cli.common import json_option


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
    from checks.cli.rule_lists import print_rules

    print_rules(ids, json_path)
    return 0
