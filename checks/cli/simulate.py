"""`lockstep simulate`: serve a workload without a device and without rules, in seconds."""

from typing import Any

import click

from checks.cli import exit_code
from checks.cli.common import Output, files_option, gathered, on_option, timed_config_options
from checks.cli.configuration import Sources
from checks.cli.find import Questions, find, question_options
from checks.cli.outputs import Command
from checks.cli.run import (
    Files,
    Offered,
    Requests,
    compare_option,
    plot_option,
    request_options,
    serve,
    slo_option,
    timeline_option,
)
from checks.ending import stopping
from checks.harness.runs.simulating import (
    SIMULATION,
    Verified,
    random_slices,
    verify_slice,
)
from checks.words import counted
from spec.core.errors import ConfigError


@click.command(cls=Command)
@timed_config_options
@request_options
@compare_option
@slo_option
@question_options
@gathered("files", Files, timeline_option, plot_option)
@on_option("configurations of --compare")
@files_option
def simulate(
    requests: Requests,
    sources: Sources,
    compared: tuple[str, ...],
    slo: str | None,
    asked: Questions,
    files: Files,
    output: Output,
) -> int:
    """Serve WORKLOAD with the decisions of `run`, in seconds: no token is computed, no rule judged.

    The engine's scheduler works alone, with lengths and block hashes in the place of tokens; for
    vllm-v0, which has no engine, the reference does, which takes longer. The decisions and figures
    are those of `run`. The answer says with which release decisions were compared, and where this
    configuration lies outside of that. --find max_rate searches the largest rate at which requests
    meet the bounds of --slo, --find KEY the values of a key with which they do. A scheduler cannot
    start in the middle of a workload, so each slice of --verify is served alone.
    """
    variants = sources.variants(compared)
    verify = asked.verify
    if verify is not None and compared:
        raise ConfigError("--verify", verify, "one configuration, without --compare")
    if asked.key is not None:
        others = {"--compare": compared, "--verify": verify, "--timeline": files.timeline}
        asked.refuse(slo, requests.rate, others)
    offered = Offered.of(requests, variants)
    if asked.key is not None:
        (settings,) = variants.values()
        return find(offered, settings, asked, slo, files.plot, output)
    slices = [
        (settings, part)
        for label, settings in variants.items()
        for part in (random_slices(offered.requests[label], verify, asked.seed) if verify else ())
    ]
    schedulers = dict.fromkeys(variants, SIMULATION)
    served = serve(offered, variants, schedulers, compared, slo, files)
    verified = [verify_slice(settings, part) for settings, part in slices if not stopping()]
    more = {"verified": [*map(_report, verified)]} if verified else {}
    codes = (
        exit_code(violated=not result.holds, incomplete=result.run.interrupted)
        for result in verified
    )
    return served.report(output, *map(_says, verified), worst=max(codes, default=0), **more)


def _says(verified: Verified) -> str:
    """The result of a slice of `--verify` in a sentence."""
    run = verified.run
    requests, steps = counted(verified.requests, "request"), counted(run.steps, "step")
    what = f"verified: {requests} from {verified.first} on, {steps}"
    if verified.differs is not None:
        return f"{what}: step {verified.differs} decides otherwise than `run`"
    if run.broken:
        first = run.broken[0]
        return f"{what}: {first.rule.id} broken in step {first.step}: {first.found}"
    if run.refused is not None:
        return f"{what}: refused in {run.refused}"
    rules = counted(len(run.rules), "rule")
    return f"{what}: decisions and tokens of `run`, every rule holds ({rules})"


def _report(verified: Verified) -> dict[str, Any]:
    return {
        "first": verified.first,
        "requests": verified.requests,
        "steps": verified.run.steps,
        "rules": len(verified.run.rules),
        "differs_in_step": verified.differs,
        "broken": sorted({violation.rule.id for violation in verified.run.broken}),
        "holds": verified.holds,
    }
