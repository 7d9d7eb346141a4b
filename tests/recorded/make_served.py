"""Record what an installed release did in random cases: `python -m tests.recorded.make_served`.

    python -m tests.recorded.make_served DRIVER [EPISODES]

Of each case `checks/recorded/served.json` gets a digest of the release's steps, or null where it
raised or is known to do otherwise than the reference. `lockstep mutants` holds wrong references
against it.
"""

import sys
from contextlib import closing

from checks.evidence import SERVED, recorded, write_record
from checks.harness.campaign import Plan, own_system
from checks.harness.comparison import script_of
from checks.harness.driver.system import DriverCommand
from checks.harness.system import Failure
from checks.mutants.conforming import compared, digest_of
from checks.policies import policy_named
from checks.releases.environments import command_of

EPISODES = 200


def main(driver: str, episodes: int = EPISODES) -> None:
    """Serve the cases and write their digests; says of how many there is none."""
    plan = Plan(DriverCommand(command_of(driver)))
    with closing(own_system(plan.system)) as system:
        hello = system.hello
        if hello.unreported:
            raise SystemExit(f"{driver} leaves out {', '.join(sorted(hello.unreported))}")
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
    """Of the steps that the system takes in the case, if the reference takes the same."""
    system, case = own_system(plan.system), plan.case(episode)
    script = script_of(system, case, plan.terms_of(episode))
    steps = []
    for taken in system.play(case, script):
        if isinstance(taken, Failure):
            return None
        steps.append(taken.step)
    policy = policy_named(system.hello.policy)
    found = digest_of(compared(policy, steps))
    return found if found == digest_of(compared(policy, script.steps)) else None


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
