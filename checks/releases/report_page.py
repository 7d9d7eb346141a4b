"""The report of a campaign as a Markdown page: a section for each defect, ready to file."""

from collections.abc import Iterator, Sequence

from attrs import evolve

from checks.harness.campaigns.campaign import Campaign
from checks.harness.campaigns.report import (
    MOST_DIFFERENCES,
    MOST_RULES,
    bounds_lines,
    case_lines,
    shown,
)
from checks.harness.campaigns.wording import reported
from checks.harness.policy import evidence_of
from checks.harness.system import Hello, Json
from checks.registry import RULES
from checks.releases.filing import Filed
from checks.releases.markdown import block, table
from checks.releases.recipes import IN_ENGINE_CORE
from checks.words import counted

_MOST_ACTIONS = 12

_ENGINE_CORE = (
    "The order is that of `EngineCore.step`: `schedule`, `execute_model`, `sample_tokens`, aborts"
    " that came meanwhile, `update_from_output`. Arrivals, and aborts that came while nothing ran,"
    " are taken from the input queue between two steps."
)
_OTHER_ORDER = "Arrivals and aborts come between two steps, in this order."


def page_lines(seen: Campaign, unknown: Sequence[Filed], known: Sequence[Filed]) -> Iterator[str]:
    """The lines of the page; they do not depend on the clock."""
    hello, plan = seen.hello, seen.plan
    yield from block(f"# {hello.release}: what differs from the specification")
    episodes = f"{counted(seen.episodes, 'episode')} of seed {plan.seed}"
    steps = f"{counted(seen.steps, 'step')} compared ({plan.terms.strictness.value})"
    yield from block(
        f"{steps} in {episodes};",
        f"{seen.judged:,} of them judged by every rule that applies,",
        f"{seen.on_device:,} done on our device.",
    )
    yield from block(*(f"- {line}" for line in bounds_lines(seen)))
    yield from block(f"## Not known: {len(unknown)}")
    for number, filed in enumerate(unknown, start=1):
        yield from _section(hello, plan.seed, f"{number}. {filed.says}", filed)
    yield from block(f"## Known: {len(known)}")
    for filed in known:
        yield from _section(hello, plan.seed, f"{filed.id}. {filed.says}", filed)
    due = {row.id for row in evidence_of(seen.policy).release_differences(hello)}
    missing = sorted(due - {filed.id for filed in known})
    if missing:
        yield f"Not met in this campaign: {', '.join(missing)}."


def _section(hello: Hello, seed: int, title: str, filed: Filed) -> Iterator[str]:
    case, finding = filed.small.case, filed.small.finding
    yield from block(f"### {title}")
    yield f"- release: {hello.release}"
    often = counted(filed.times, "step" if filed.steps else "episode")
    yield f"- met: in {often}, first in episode {filed.first.episode} of seed {seed}"
    yield f"- shows in: step {finding.step} of the case below"
    if filed.reason:
        yield f"- because: {filed.reason}"
    if finding.headline != filed.says:
        yield f"- {finding.headline}"
    yield f"- {finding.evidence}"
    for rule, what in finding.followed[:MOST_RULES]:
        yield f"- the reference followed {rule} ({what}): {_rule(rule)}"
    yield ""
    yield from _differences(hello, filed)
    yield f"    {evolve(case, swarm=None).parameters}"
    yield from (f"    {line}" for line in case_lines(case))
    yield ""
    yield from block("This input is possible:")
    yield from block(*_actions(filed.recording.actions[: finding.step + 1]))
    yield from block(_ENGINE_CORE if hello.name in IN_ENGINE_CORE else _OTHER_ORDER)
    yield from block(f"Again: `{filed.again}`, without the release with", "`--recorded`.")


def _rule(rule: str) -> str:
    return f"{RULES[rule].sentence} ({RULES[rule].source})"


def _differences(hello: Hello, filed: Filed) -> Iterator[str]:
    differences = reported(filed.case, filed.finding.differences)
    if not differences:
        yield from block(f"{hello.name} here: {filed.finding.says}")
        return
    rows = [
        (f"{each.field} {each.place}".strip(), _quoted(each.expected), _quoted(each.found))
        for each in differences[:MOST_DIFFERENCES]
    ]
    more = len(differences) - MOST_DIFFERENCES
    if more > 0:
        rows.append((f"and {more} more", "", ""))
    yield from block(*table(("field", "expected", hello.name), rows))


def _quoted(value: object) -> str:
    return "-" if value is None else f"`{shown(value)}`"


def _actions(actions: Sequence[Json]) -> Iterator[str]:
    """The actions of the environment, step by step."""
    done = [line for index, action in enumerate(actions) for line in _done(index, action)]
    yield from done[:_MOST_ACTIONS]
    if len(done) > _MOST_ACTIONS:
        yield f"- and {len(done) - _MOST_ACTIONS} more of these"


_SAYS = {
    "arrive": "before step {step} `add_request` hands over {}",
    "abort": "before step {step} the client of {} leaves: `abort_requests`",
    "abort_running": "while step {step} runs the client of {} leaves",
    "loaded": "before step {step} the keys and values of {} have come",
    "lost": "in step {step} the keys and values of {} turn out not to come",
    "sent": "before step {step} the keys and values of {} have been sent",
    "answered": "before step {step} the connector says what it has of {}",
    "compiled": "before step {step} the grammar of {} is ready",
    "encoded": "before step {step} the images of {} are encoded",
    "unencodable": "before step {step} encoding the images of {} has failed",
    "accepted": "in step {step} these drafts are right: {}",
    "proposed": "after step {step} these drafts are proposed, fewer than configured: {}",
}


def _done(step: int, action: Json) -> Iterator[str]:
    for key, says in _SAYS.items():
        done = action.get(key, ())
        if isinstance(done, dict):
            done = [f"{count} of {request_id}" for request_id, count in done.items()]
        if done:
            yield "- " + says.format(", ".join(done), step=step)
