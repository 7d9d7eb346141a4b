"""`lockstep explain`: the meaning of a word of the chapters, the commands and their output."""

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

import click

from checks.cli.common import out, print_lines
from checks.cli.outputs import Command
from checks.glossary import glossary
from checks.vocabulary import vocabulary
from spec.core.errors import InputError


@click.command(cls=Command)
@click.argument("words", nargs=-1, metavar="[WORD …]")
def explain(words: tuple[str, ...]) -> None:
    """Say what WORD means in the chapters, the commands and their output; without any, list all.

    A word of the glossary, a configuration key or its value, a field of a record, an event, a rule
    or an obligation. The list has the entries of the glossary.
    """
    if not words:
        for title, text in glossary().items():
            print_lines(out, f"{title}: {_first_sentence(text)}")
        return
    known = vocabulary()
    for meanings in [_explained(word, known) for word in words]:
        print_lines(out, *meanings)


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=\.) |: |\n", text, maxsplit=1)[0].rstrip(".")


def _explained(word: str, known: Mapping[str, Sequence[str]]) -> Sequence[str]:
    """The meanings of a word.

    Raises:
        InputError: it is not known.
    """
    if word.lower() not in known:
        near = get_close_matches(word.lower(), known, n=3) or list(glossary())
        raise InputError("WORD", word, "; ".join(near))
    return known[word.lower()]
