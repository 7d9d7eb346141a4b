"""The printed lines of an exploration: verdict, assumptions and coverage."""

from collections.abc import Iterator

from checks.explore.exploring import AnyInstance, Exploration
from checks.words import counted


def assumption_lines(instance: AnyInstance) -> Iterator[str]:
    """Lines on what the environment may do in an instance, and what it is assumed not to do."""
    ids = frozenset(request.id for request in instance.requests)
    speculating = ids if getattr(instance.config, "num_speculative_tokens", 0) else frozenset()
    kinds = {
        "leaves between two steps": (instance.aborts, ids),
        "leaves while the model runs": (instance.leavers, ids),
        "ends early": (instance.early_ends, ids),
        "comes back": (instance.returning, ids),
        "loses its load": (instance.failing, frozenset(instance.external)),
        "is proposed fewer drafts than configured": (instance.fewer_drafts, speculating),
    }
    yield "assumed: requests arrive in any order and at any time"
    if grammars := sorted(request.id for request in instance.requests if request.grammar):
        yield f"assumed: request {', '.join(grammars)} waits for its grammar, but not for ever"
    if with_images := sorted(request.id for request in instance.requests if request.has_images):
        yield f"assumed: request {', '.join(with_images)} waits for its images, but not for ever"
    yield from _turn_lines(instance)
    for what, (allowed, possible) in kinds.items():
        if possible:
            who = "any request" if allowed >= possible else f"request {', '.join(sorted(allowed))}"
            yield f"assumed: {who if allowed else 'no request'} {what}"


def _turn_lines(instance: AnyInstance) -> Iterator[str]:
    """A line for each later turn of a session."""
    by_id = {request.id: request for request in instance.requests}
    for earlier in instance.requests:
        if earlier.continued_by is not None:
            begins = "arrived" if by_id[earlier.continued_by].after is None else "ended"
            turn = f"request {earlier.continued_by}, the turn after {earlier.id},"
            yield f"assumed: {turn} comes at any time after that one has {begins}, or never"


def coverage_lines(exploration: Exploration) -> Iterator[str]:
    """Lines with the rules by share of judged edges, and the rules without a witness."""
    edges = exploration.result.transitions
    by_edges: dict[int, list[str]] = {}
    for rule in exploration.rules:
        by_edges.setdefault(exploration.sampled.get(rule, edges), []).append(rule)
    for count, rules in sorted(by_edges.items(), reverse=True):
        share = "every edge" if count == edges else f"{count:,} of {counted(edges, 'edge')}"
        share += "" if count == edges else f" ({count / max(edges, 1):.1%})"
        yield (
            f"judged on {share}: {', '.join(rules)}" if count else f"not judged: {', '.join(rules)}"
        )
    if exploration.unseen:
        yield f"not seen, for nothing happened that they are about: {', '.join(exploration.unseen)}"


def verdict_line(exploration: Exploration) -> str:
    """One line: whether the rules hold, and within which bounds."""
    stopped_by = exploration.result.stopped_by
    unless_complete = f"incomplete ({stopped_by}), " if stopped_by else ""
    if exploration.findings:
        refuted = ", ".join(finding.rule for finding in exploration.findings)
        return f"{unless_complete}refuted: {refuted}"
    seen, so_far = len(exploration.rules) - len(exploration.unseen), " so far" if stopped_by else ""
    held = f"{unless_complete}{seen} rule{' holds' if seen == 1 else 's hold'}{so_far}"
    held += f", {len(exploration.unseen)} not seen" if exploration.unseen else ""
    if exploration.using == "compiled":
        sampled = [edges for edges in exploration.sampled.values() if edges > 0]
        unjudged = len(exploration.sampled) - len(sampled)
        held = f"compiled: {held}"
        parts = ((len(sampled), f"on {max(sampled, default=0):,} edges"), (unjudged, "not judged"))
        listed = [held, *(f"{count} {what}" for count, what in parts if count)]
        if exploration.chances_of_a_miss is not None:
            chance = max(exploration.chances_of_a_miss)
            listed.append(f"a state missed with a probability of {chance:.1g} at most")
        return ", ".join(listed)
    return held
