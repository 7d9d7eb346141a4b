"""A page for each default instance: its requests, number of states and verdicts."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from checks.book.rules import Drawn, instance_page, replayed
from checks.book.runs import Shown
from checks.book.source import (
    Page,
    bullets,
    code,
    folded,
    policies,
    section,
    sections,
    slug,
    table,
)
from checks.evidence import EXPLORED, recorded
from checks.explore.exploring import AnyInstance, sentence
from checks.explore.instance import title_of
from checks.explore.policy import machine_of
from checks.registry import claims_of
from checks.words import counted, joined, sentence_case
from spec.core.requests import Request

_MAY = {  # who may do what, by the field that names the requests
    "aborts": ("the client of {}", "may go away at any time"),
    "early_ends": ("{}", "may sample the end of sequence with any token"),
    "returning": ("the client of {}", "may come back after it left, any number of times"),
    "failing": ("the load of external keys and values of {}", "may fail"),
    "fewer_drafts": ("the drafter", "may propose fewer drafts for {} than are configured, or none"),
    "leavers": ("the client of {}", "may leave while a step runs"),
}


def instance_pages(shown: Iterable[Shown], drawn: Drawn) -> Iterator[Page]:
    """A page for each instance, and one for each policy that lists them."""
    explored = recorded(EXPLORED)
    broken = [run for run in shown if run.found]
    for policy in policies():
        yield Page(f"instances/{slug('of ' + policy)}.md", _list_page(policy, explored))
        for instance in machine_of(policy).instances:
            title = title_of(instance)
            own = [run for run in broken if run.instance == title]
            text = _page(policy, instance, explored[title], own, drawn)
            yield Page(instance_page(title), text)


def _list_page(policy: str, explored: Mapping[str, Any]) -> str:
    rows = [
        (
            f"[{instance.name}]({slug(title_of(instance))}.md)",
            sentence_case(instance.about),
            f"{record['states']:,}",
            ", ".join(record["violations"]) or "nothing",
        )
        for instance in machine_of(policy).instances
        for record in [explored[title_of(instance)]]
    ]
    states = sum(
        explored[title_of(instance)]["states"] for instance in machine_of(policy).instances
    )
    return sections(
        f"# Instances of {policy}",
        f"{counted(len(rows), 'instance')}, {states:,} states. Each is a question with bounds: a"
        " few requests under a configuration, and what may happen to them. Every state that can be"
        " reached is looked at, so that within these bounds nothing is left to chance.",
        table(("instance", "what it is", ">states", "what is broken"), rows),
    )


def _page(
    policy: str,
    instance: AnyInstance,
    record: Mapping[str, Any],
    broken: Iterable[Shown],
    drawn: Drawn,
) -> str:
    default = claims_of(policy).config().as_mapping()
    keys = {
        key: value
        for key, value in instance.config.as_mapping().items()
        if value != default.get(key)
    }
    title, violations = title_of(instance), record["violations"]
    held = [rule for rule in record["rules"] if rule not in violations]
    return sections(
        f"# {title}",
        f"{sentence_case(instance.about)}.",
        bullets(
            [
                f"**Policy:** [{policy}](../rules/{slug(policy)}.md)",
                f"**Looked at:** {record['states']:,} states, {record['transitions']:,}"
                f" transitions; the furthest state is {record['depth']} actions away",
                f"**Rules:** {len(held)} hold, {len(violations)} broken",
            ]
        ),
        section("Its requests", table(*_requests(instance)), bullets(_freedom(instance))),
        section(
            "Its configuration",
            "What is not as by default.",
            table(("key", "value"), ((f"`{key}`", f"`{_short(keys[key])}`") for key in keys)),
        )
        if keys
        else "",
        *(_broken(run, drawn) for run in broken),
        section("What holds", folded(f"{len(held)} rules", ", ".join(held))),
        section(
            "Again on your machine",
            code("sh", f'lockstep explore "{title}"'),
        ),
    )


def _short(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _requests(instance: AnyInstance) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    columns = ("request", ">prompt, tokens", "prompt", ">at most to generate")
    return columns, [
        (request.id, request.prompt_len, _prompt(request), request.max_tokens)
        for request in instance.requests
    ]


def _prompt(request: Request) -> str:
    """The named streams of a prompt, or its tokens."""
    spans = (f"`{span.content}` from token {span.offset} on" for span in request.encoder_spans)
    return ", ".join([*(_part(*part) for part in request.prompt.parts), *spans])


def _part(*part: Any) -> str:
    match part:
        case (str(name), int(count)):
            return f"{count} of `{name}`"
    return f"tokens `{' '.join(map(str, part))}`"


def _freedom(instance: AnyInstance) -> Iterator[str]:
    """Sentences on what the environment may do in the instance."""
    yield "Requests arrive in any order, at any time."
    for name, (who, what) in _MAY.items():
        ids = sorted(getattr(instance, name))
        if len(ids) == len(instance.requests):
            yield sentence_case(f"{who.format('each request')} {what}.")
        elif ids:
            subject = "request" if len(ids) == 1 else "each of the requests"
            yield sentence_case(f"{who.format(f'{subject} {joined(ids)}')} {what}.")
    for request_id, tokens in instance.external.items():
        yield f"A connector has {counted(tokens, 'token')} of request {request_id}."
    for request in instance.requests:
        if request.grammar:
            yield f"The grammar of request {request.id} is ready some time after its arrival."
        if request.has_images:
            yield f"Images of request {request.id} are encoded after its arrival, or fail to be."
        if not request.reads_cache:
            yield f"Request {request.id} reads no cache."
        if request.continued_by is not None:
            turn = request.continued_by
            yield f"Request {turn} is the next turn of the session of request {request.id}."


def _broken(run: Shown, drawn: Drawn) -> str:
    return section(
        f"How {run.rule} is broken",
        f"> {sentence(run.rule)}",
        f"{sentence_case(run.found)}.",
        drawn(run, run.rule.lower()),
        replayed(run),
    )
