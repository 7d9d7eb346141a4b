"""Record what an installed release did in random cases: `python -m tests.recorded.make_served`.

    python -m tests.recorded.make_served DRIVER [EPISODES]

`checks/recorded/served.json` gets a digest of the release's steps in each case, or null where the
release raises or has a known difference. An unknown difference ends it: nothing is written.
`lockstep mutants` holds mutants of the reference against the record.
"""

import sys
from contextlib import closing

from checks.evidence import SERVED, recorded, write_record
from checks.harness.campaign import Plan, own_system
from checks.harness.comparison import Terms, compare, script_of
from checks.harness.driver.system import DriverCommand
from checks.harness.system import Taken
from checks.mutants.conforming import digest_of
from checks.policies import policy_named
from checks.releases.environments import command_of

EPISODES = 250


def main(driver: str, episodes: int = EPISODES) -> None:
    """Serve the cases and write their digests; prints how many there are."""
    plan = Plan(DriverCommand(command_of(driver)), terms=Terms(judged=False))
    with closing(own_system(plan.system)) as system:
        hello = system.hello
        if hello.unreported:
            raise SystemExit(f"{driver} does not report {', '.join(sorted(hello.unreported))}")
        steps = [_digest(plan, episode) for episode in range(episodes)]
        entry = {
            "driver": hello.name,
            "release": hello.release,
            "config": {key: [*values] for key, values in sorted(hello.config.items())},
            "abilities": sorted(hello.abilities),
            "steps": steps,
        }
        write_record(recorded(SERVED) | {hello.policy: entry}, SERVED)
        print(f"{hello.release}: {episodes} cases, {steps.count(None)} without a digest")


def _digest(plan: Plan, episode: int) -> str | None:
    """Of the steps that the system takes in the case; None: it has a known difference."""
    system, case, terms = own_system(plan.system), plan.case(episode), plan.terms_of(episode)
    seen = compare(system, case, terms)
    if seen.finding is not None:
        raise SystemExit(f"case {episode}, unknown difference: {seen.finding.says}")
    if seen.known is not None:
        return None
    taken = system.play(case, script_of(system, case, terms))
    steps = [one.step for one in taken if isinstance(one, Taken)]
    return digest_of(policy_named(system.hello.policy), steps)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
