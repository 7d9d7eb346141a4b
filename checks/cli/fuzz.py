"""`lockstep fuzz`: compare a system with the reference in random cases, step by step."""

from pathlib import Path

import click

from checks.cli import exit_code
from checks.cli.campaigns import (
    Extent,
    campaign_expected,
    campaign_report,
    end_campaign,
    extent_options,
    pinned_option,
    print_campaign,
    shrinking,
    strictness_option,
)
from checks.cli.common import Output, directory_option, json_option, on_option
from checks.cli.conform import Filing, conform_driver
from checks.cli.expect import expect_option
from checks.cli.outputs import NAME_OR_FILE, Command
from checks.ending import deferred
from checks.harness.campaigns.campaign import Campaign, FirstSeen, Found, shrunk_causes
from checks.harness.campaigns.corpus import write_finding
from checks.harness.campaigns.shrinking import Shrunk
from checks.harness.comparing import Strictness
from checks.harness.comparison import Terms
from checks.harness.finding import Signature
from checks.harness.policy import Own
from checks.harness.system import ENGINE, REFERENCE
from checks.registry import DEFAULT, POLICIES, known_policy

_BATCH = 3  # episodes; about a tenth of a second of work


@click.command(cls=Command)
@click.option(
    "--target",
    "--using",
    "using",
    type=NAME_OR_FILE,
    default=ENGINE,
    show_default=True,
    help=f"The system under test: {REFERENCE}, {ENGINE}, or a driver as for conform.",
)
@click.option(
    "--policy",
    metavar=f"[{'|'.join(POLICIES)}]",
    callback=lambda _context, _option, name: known_policy(name),
    default=DEFAULT,
    show_default=True,
    help="Whose engine and reference.",
)
@extent_options()
@strictness_option
@click.option("--judge", is_flag=True, help="Judge the system's own steps by every rule, too.")
@pinned_option
@on_option("episodes")
@expect_option
@directory_option("--corpus", default="corpus")
@json_option
def fuzz(
    using: str,
    policy: str,
    extent: Extent,
    strictness: str,
    judge: bool,
    expect: str | None,
    corpus: Path,
    output: Output,
) -> int:
    """Serve random cases with a target and with the reference, and compare every step.

    Each episode draws a configuration and requests; whole kinds of action are switched off in it,
    the others skewed. Both serve them until no request is left and nothing is held. What differs is
    made as small as it can be and written into the corpus, with the command that replays it. With
    --episodes the answer is the same for the same seed, on every machine.
    """
    terms = Terms(Strictness(strictness), judged=judge)
    if using not in (ENGINE, REFERENCE):
        return conform_driver(using, extent, terms, Filing(corpus), output, expect=expect)
    plan = extent.plan(Own(policy, using), terms, _BATCH)
    expected = None if expect is None else campaign_expected(expect, "fuzz", extent, plan)
    with deferred():
        seen = extent.run(plan)
        with shrinking(seen) as budget:
            causes = [*shrunk_causes(seen, budget)]
        findings = [_written(seen, using, corpus, *cause) for cause in causes]
    print_campaign(output.screen, seen, findings)
    report = {
        "target": using,
        "judged": terms.judged,
        "known": dict(sorted(seen.expected.items())),
        **campaign_report(seen, findings),
    }
    code = exit_code(violated=findings, incomplete=seen.interrupted)
    return end_campaign(seen, findings, output, report, code, expected)


def _written(
    seen: Campaign,
    using: str,
    corpus: Path,
    first: FirstSeen,
    small: Shrunk,
    times: int,
    also: tuple[Signature, ...],
) -> Found:
    """Write a shrunk finding into its own file."""
    path = write_finding(corpus, using, small.case, small.finding, seen.plan.terms)
    again = f"lockstep replay {path} --target {using}"
    return Found(first=first, small=small, path=path, again=again, times=times, also=also)
