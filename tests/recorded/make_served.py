"""Record what an installed release did in random cases: `python -m tests.recorded.make_served`.

    python -m tests.recorded.make_served DRIVER [CASE …]

`checks/recorded/served.json` gets a digest of the release's steps in each case, and after how many
it raises, if it does where the reference says that the engine ends; null where a step has a known
difference. An unknown one ends this: nothing is written.
`lockstep mutants` holds mutants of the reference against the record. Served are the first 250 cases
and those on record, and further ones by their numbers, as `find_cases` finds them.
"""

import sys
from contextlib import closing

from checks.evidence import SERVED, recorded, write_record
from checks.harness.campaigns.campaign import Plan, own_system
from checks.harness.comparison import Terms, compare, script_of
from checks.harness.driver.system import DriverCommand
from checks.harness.system import Json, Taken
from checks.mutants.conforming import steps_digest
from checks.registry import known_policy
from checks.releases.environments import command_of

FIRST = range(250)


def main(driver: str, *further: int) -> None:
    """Serve the cases and write their digests; prints how many there are."""
    plan = Plan(DriverCommand(command_of(driver)), terms=Terms(judged=False))
    with closing(own_system(plan.system)) as system:
        hello = system.hello
        if hello.unreported:
            raise SystemExit(f"{driver} does not report {', '.join(sorted(hello.unreported))}")
        known = map(int, recorded(SERVED).get(hello.policy, {"steps": ()})["steps"])
        episodes = sorted({*FIRST, *known, *further})
        steps = {str(episode): _digest(plan, episode) for episode in episodes}
        entry = {
            "driver": hello.name,
            "release": hello.release,
            "config": {key: [*values] for key, values in sorted(hello.config.items())},
            "abilities": sorted(hello.abilities),
            "steps": steps,
        }
        write_record(recorded(SERVED) | {hello.policy: entry}, SERVED)
        print(
            f"{hello.release}: {len(steps)} cases, {[*steps.values()].count(None)} without a digest"
        )


def _digest(plan: Plan, episode: int) -> str | Json | None:
    """The digest of the system's steps in the case; None if a step has a known difference."""
    system, case, terms = own_system(plan.system), plan.case(episode), plan.terms_of(episode)
    seen = compare(system, case, terms)
    if seen.finding is not None:
        raise SystemExit(f"case {episode}, unknown difference: {seen.finding.says}")
    played = [*system.play(case, script_of(system, case, terms))]
    steps = [answer.step for answer in played if isinstance(answer, Taken)]
    digest = steps_digest(known_policy(system.hello.policy), steps)
    if seen.known is None:
        return digest
    return {"digest": digest, "raises_after": len(steps)} if len(steps) < len(played) else None


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
