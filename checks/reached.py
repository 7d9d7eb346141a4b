"""Record what random cases reach with and without guidance: `python -m checks.reached`."""

from collections.abc import Mapping
from typing import Any

from attrs import evolve

from checks.evidence import REACHED, write_record
from checks.harness.campaigns.campaign import Campaign, Plan, run_batch
from checks.harness.comparison import Terms
from checks.harness.policy import Own, evidence_of
from checks.harness.situations import all_situations
from checks.harness.system import REFERENCE
from checks.registry import POLICIES

_EPISODES = 400


def reached(policy: str) -> Mapping[str, Any]:
    """The situations that the reference of a policy reaches, drawn alone and guided."""
    drawn = Plan(Own(policy, REFERENCE), terms=Terms(judged=False), guided=False)
    alone, guided = _seen(drawn), _seen(evolve(drawn, guided=True))
    return {
        "episodes": _EPISODES,
        "named": len(all_situations(evidence_of(policy).labels.situations)),
        "drawn": len(alone.situations),
        "guided": len(guided.situations),
        "kept": len(guided.kept),
    }


def _seen(plan: Plan) -> Campaign:
    seen = Campaign(plan)
    for episode in range(_EPISODES):
        seen.add(run_batch(plan, seen.starts([episode])))
    return seen


if __name__ == "__main__":
    write_record({policy: reached(policy) for policy in POLICIES}, REACHED)
