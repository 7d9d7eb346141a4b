"""The published figures beside ours: a section for each with our run and both sets of numbers."""

from checks.book.drawing import Films
from checks.book.pictures import examples, steps_of, trace_name
from checks.book.source import Page, bullets, policies, section, sections, table
from checks.export.figures import Numbers, PublishedFigure
from checks.export.policy import presentation_of

_BEGIN = """\
# The published figures, beside ours

The texts come with figures. Each of them is a run that the reference can take, too. Here is our run
of each, and the numbers that were read off both.

The published data is not repeated here. A test holds what was read off it against the data
where that is at hand (`tests/checks/export/test_figures.py`).
"""


def our_numbers(figure: PublishedFigure) -> Numbers:
    """The numbers of a published figure, read from the plot of our run."""
    example = examples()[figure.example]
    plot = presentation_of(example.config.policy).plot
    assert plot is not None
    requests = {request.id: request for request in example.requests}
    return figure.read([*plot(example.config, requests, steps_of(example))])


def figures_page(films: Films) -> Page:
    """Every published figure of every policy."""
    figures = [figure for policy in policies() for figure in presentation_of(policy).published]
    lines = (
        f"{figure.title}: {_agreement(figure.published, our_numbers(figure))}" for figure in figures
    )
    text = sections(_BEGIN, bullets(lines), *(_section(figure, films) for figure in figures))
    return Page("figures.md", text)


def _agreement(theirs: Numbers, ours: Numbers) -> str:
    same = sum(theirs.get(name) == ours.get(name) for name in _names(theirs, ours))
    return f"{same} of {len(_names(theirs, ours))} numbers are the same"


def _names(theirs: Numbers, ours: Numbers) -> list[str]:
    return [*dict.fromkeys([*theirs, *ours])]


def _section(figure: PublishedFigure, films: Films) -> str:
    ours, example = our_numbers(figure), examples()[figure.example]
    rows = (
        (name, _cell(figure.published, name), _cell(ours, name), _compared(figure, ours, name))
        for name in _names(figure.published, ours)
    )
    run = films.element(
        trace_name(example), figure.name, root="", at=example.at, parts="chart picture"
    )
    return section(
        figure.title,
        f"Published in {figure.source}.",
        run,
        table(("what", ">published", ">ours", ""), rows),
        figure.says,
    )


def _cell(numbers: Numbers, name: str) -> str:
    return str(numbers.get(name, "-"))


def _compared(figure: PublishedFigure, ours: Numbers, name: str) -> str:
    return "" if figure.published.get(name) == ours.get(name) else "**differs**"
