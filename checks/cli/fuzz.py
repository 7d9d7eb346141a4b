"""`lockstep fuzz`: random cases, a system and the reference step by step."""

from pathlib import Path

import click

from checks.cli.campaigns import Found, campaign_report, print_campaign, run_campaign
from checks.cli.common import (
    CAMPAIGN_SECONDS,
    NEW_DIRECTORY,
    campaign_options,
    console,
    json_option,
    pinned_keys,
    pinned_option,
    write_json,
)
from checks.cli.conform import conform_driver
from checks.harness.campaign import Campaign, Plan, shrunk
from checks.harness.comparing import Strictness
from checks.harness.comparison import Terms
from checks.harness.corpus import write_finding
from checks.harness.system import ENGINE, REFERENCE, Own
from checks.policies import DEFAULT, policy_named, policy_names
from spec.core.errors import InputError

_BATCH = 25  # episodes; about a second of work


@click.command()
@click.option(
    "--target",
    "--using",
    "using",
    default=ENGINE,
    show_default=True,
    help=f"What is held against the reference: {REFERENCE}, {ENGINE}, or a driver as for conform.",
)
@click.option(
    "--policy",
    metavar=f"[{'|'.join(policy_names())}]",
    callback=lambda _context, _option, name: policy_named(name).name,
    default=DEFAULT,
    show_default=True,
    help="Whose engine and reference.",
)
@campaign_options
@click.option("--judge", is_flag=True, help="Hold every rule against the system's steps, too.")
@pinned_option
@click.option(
    "--corpus",
    type=NEW_DIRECTORY,
    default=Path("corpus"),
    show_default=True,
    help="Directory for findings.",
)
@json_option
def fuzz(
    using: str,
    policy: str,
    seconds: float | None,
    episodes: int | None,
    seed: int,
    strictness: str,
    judge: bool,
    settings: tuple[str, ...],
    corpus: Path,
    json_path: Path | None,
) -> int:
    """Serve random cases with a target and with the reference, and compare every step.

    Each episode draws a configuration and requests; whole kinds of action are switched off in it,
    the others skewed. Both serve them until no request is left and nothing is held. What differs is
    made as small as it can be and written into the corpus, with the command that replays it. With
    --episodes the answer is the same for the same seed, on every machine.
    """
    if seconds is not None and episodes is not None:
        raise InputError("--time", seconds, "not together with --episodes")
    terms = Terms(Strictness(strictness), judged=judge)
    if using not in (ENGINE, REFERENCE):
        return conform_driver(
            using, seconds, episodes, seed, terms, settings, corpus, json_path=json_path
        )
    pinned = pinned_keys(settings, policy)
    plan = Plan(Own(policy, using), seed, terms, pinned, batch=_BATCH)
    plan.case(0)  # what cannot be drawn is refused before anything runs
    seen, took = run_campaign(plan, seconds or CAMPAIGN_SECONDS, episodes)
    findings = _written(plan, seen, using, corpus)
    print_campaign(console(json_path), plan, seen, findings, took)
    report = {
        "target": using,
        "judged": terms.judged,
        "known": dict(sorted(seen.expected.items())),
        **campaign_report(plan, seen, findings, took),
    }
    write_json(report, json_path)
    if findings:
        return 1
    return 3 if seen.interrupted else 0


def _written(plan: Plan, seen: Campaign, using: str, corpus: Path) -> list[Found]:
    """Each finding made small, in a file of its own."""
    found: list[Found] = []
    for first in seen.first_seen.values():
        small = shrunk(plan, first)
        path = write_finding(corpus, using, small.case, small.finding, plan.terms)
        found.append((first, small, path, f"lockstep replay {path} --target {using}"))
    return found
