"""`lockstep simulate`: serve a workload without a device and without rules, in seconds."""

from typing import Any

import click

from checks.cli import exit_code
from checks.cli.common import Output, config_options, files_option, gathered, on_option
from checks.cli.configuration import Sources
from checks.cli.outputs import Command
from checks.cli.run import (
    Files,
    Requests,
    compare_option,
    plot_option,
    request_options,
    serve,
    slo_option,
    timeline_option,
)
from checks.harness.runs.simulating import SIMULATION, Verified, verify_first
from checks.words import counted
from spec.core.errors import ConfigError


@click.command(cls=Command)
@config_options
@request_options
@compare_option
@slo_option
@click.option(
    "--verify",
    type=click.IntRange(1),
    metavar="N",
    help="Serve the first N requests once more as `run` does: judge every step by every rule and "
    "compare its decisions with the simulation.",
)
@gathered("files", Files, timeline_option, plot_option)
@on_option("configurations of --compare")
@files_option
def simulate(
    requests: Requests,
    sources: Sources,
    compared: tuple[str, ...],
    slo: str | None,
    verify: int | None,
    files: Files,
    output: Output,
) -> int:
    """Serve WORKLOAD with the decisions of `run`, in seconds: no token is computed, no rule judged.

    The engine's scheduler works alone, with lengths and block hashes in the place of tokens; for
    vllm-v0, which has no engine, the reference does, which takes longer. The decisions and figures
    are those of `run`. A scheduler cannot start in the middle of a workload, so --verify judges the
    first N requests.
    """
    variants = sources.variants(compared)
    if verify is not None and compared:
        raise ConfigError("--verify", verify, "one configuration, without --compare")
    schedulers = dict.fromkeys(variants, SIMULATION)
    served = serve(requests, variants, schedulers, compared, slo, files)
    if verify is None:
        return served.report(output)
    verified = [
        verify_first(variants[label], served.requests[label][:verify]) for label in served.runs
    ]
    code = served.report(output, verified=[*map(_report, verified)])
    for result in verified:
        output.screen.print(_says(result))
        code = max(code, exit_code(violated=not result.holds, incomplete=result.run.interrupted))
    return code


def _says(verified: Verified) -> str:
    """The result of `--verify` in a sentence."""
    run = verified.run
    what = f"the first {counted(verified.requests, 'request')}, {counted(run.steps, 'step')}"
    if verified.differs is not None:
        return f"verified: {what}: step {verified.differs} decides otherwise than `run`"
    if run.broken:
        first = run.broken[0]
        return f"verified: {what}: {first.rule.id} broken in step {first.step}: {first.found}"
    if run.refused is not None:
        return f"verified: {what}: refused in {run.refused}"
    rules = counted(len(run.rules), "rule")
    return f"verified: {what}: the decisions of `run`, and every rule holds ({rules})"


def _report(verified: Verified) -> dict[str, Any]:
    return {
        "requests": verified.requests,
        "steps": verified.run.steps,
        "rules": len(verified.run.rules),
        "differs_in_step": verified.differs,
        "broken": sorted({violation.rule.id for violation in verified.run.broken}),
        "holds": verified.holds,
    }
