"""Rows of any number in the solver: what is largest, holds for all, how many, and their sum.

A formula that takes from rows only what the words of `spec.core.rows` take runs on these rows as
it is. Each row is an element of a sort without structure; its numbers are functions of it. What a
word yields is a new constant, a *fold*, and the solver learns of it what follows from its meaning:

- the largest number is that of some row (its witness), and no row's is larger;
- what does not hold for all fails for some row (its witness), and else holds for each;
- a count of rows is 0 or more, 1 or more exactly if some row (its witness) is counted, 2 or more
  exactly if another row is, and no larger than another count unless some row is counted in the one
  and not in the other;
- a sum of numbers is 0 or more unless some row's (its witness's) is negative, and one more row adds
  its own number.

This is true of any finite number of rows, and all that is taken for granted of them. What is said
of every row is said of the rows that a statement looks at, and of witnesses; fewer rows are less
to go by, so what is proven is proven, and what is not may still be true.
"""

from collections.abc import Callable, Container, Iterable, Sequence
from itertools import permutations
from typing import Any, TypeAlias

import z3
from attrs import define, evolve, field, fields, frozen, has

from checks.proofs.registry import ALL_WORDS, Integer
from spec.core.arithmetic import Number, Truth, every
from spec.core.rows import AnyRows, Row, Rows

Element: TypeAlias = Any  # of the solver's sort of rows
ROW = z3.DeclareSort("Row")


@frozen
class Fold:
    """What a word makes of rows. `each`: the bound row, `is_there` and `value` in terms of it.

    `outer`: the other rows that these depend on, in order; `result` and `witness` are functions of
    them.
    """

    word: str
    each: Element
    is_there: Truth
    value: Any
    outer: tuple[Element, ...]
    result: z3.FuncDeclRef
    witness: z3.FuncDeclRef
    second: z3.FuncDeclRef  # of a count: another row that is counted
    is_flat: bool  # no other fold stands in it

    def stands_in(self, term: z3.ExprRef) -> bool:
        """True if its result stands somewhere in the term."""
        own = z3.is_app(term) and term.decl().eq(self.result)
        return own or any(map(self.stands_in, term.children()))


@define
class Folds:
    """All folds of one statement, each once however often it is written."""

    drawn: tuple[str, Sequence[str]] = ("", ())  # what the rows are called, and their numbers
    known: dict[tuple[str, int, int], Fold] = field(factory=dict)
    more_rows: dict[int, tuple[Any, ...]] = field(factory=dict)
    looked_at: list[Element] = field(factory=list)
    _depth: int = 0

    def look_at(self, row: Element) -> None:
        """What is said of every row is said of this one."""
        if not any(row.eq(one) for one in self.looked_at):
            self.looked_at.append(row)

    @property
    def rows_looked_at(self) -> list[Element]:
        """The witnesses that are looked at, and every row that was added to others."""
        return [*self.looked_at, *(one for one, *_ in self.more_rows.values())]

    def fold(self, word: str, rows: "RowsOfAnyNumber") -> tuple[Any, Element, Element]:
        """The result of a word on rows, its witness, and of a count another row."""
        each = z3.Const(f"each!{self._depth}", ROW)
        self._depth += 1
        is_there, value = rows.is_there(each), rows.value(each)
        self._depth -= 1
        free = _rows_in((is_there, _term(value)), each)
        bound = [z3.Const(f"outer!{place}", ROW) for place in range(len(free))]
        renamed = list(zip(free, bound, strict=True))
        inner = z3.Const("each!", ROW)
        there, body = (
            z3.substitute(term, (each, inner), *renamed) for term in (is_there, _term(value))
        )
        key = word, there.get_id(), body.get_id()
        if key not in self.known:
            sort = z3.BoolSort() if word == "all" else z3.IntSort()
            name = f"{word}!{len(self.known)}"
            self.known[key] = Fold(
                word,
                inner,
                there,
                body,
                tuple(bound),
                z3.Function(name, *[ROW] * len(bound), sort),
                z3.Function(f"row of {name}", *[ROW] * len(bound), ROW),
                z3.Function(f"other row of {name}", *[ROW] * len(bound), ROW),
                is_flat=not any(one.stands_in(body) for one in self.known.values()),
            )
        one = self.known[key]
        return one.result(*free), one.witness(*free), one.second(*free)


def _rows_in(terms: Iterable[z3.ExprRef], each: Element) -> list[Element]:
    """The rows other than `each` that the terms speak of, each once, in order of appearance."""
    found: dict[int, Element] = {}
    seen: set[int] = set()
    pending = list(terms)[::-1]
    while pending:
        term = pending.pop()
        if term.get_id() in seen or term.eq(each):
            continue
        seen.add(term.get_id())
        if term.sort() == ROW and not _speaks_of(term, each):
            found[term.get_id()] = term
        else:
            pending.extend(reversed(term.children()))
    return list(found.values())


def _speaks_of(term: z3.ExprRef, row: Element) -> bool:
    return term.eq(row) or any(_speaks_of(child, row) for child in term.children())


@frozen
class RowsOfAnyNumber(AnyRows):
    """Rows, by the condition that an element is one of them, and by the value that it has."""

    folds: Folds = field(repr=False)
    is_there: Callable[[Element], Truth]
    value: Callable[[Element], Row]
    fewer: "RowsOfAnyNumber | None" = None  # of which these are `added` more
    added: Element = None

    def each(self, function: Callable[[Row], Row]) -> "RowsOfAnyNumber":
        """The rows with another value each."""
        fewer = None if self.fewer is None else self.fewer.each(function)
        return evolve(self, value=lambda one: function(self.value(one)), fewer=fewer)

    def where(self, condition: Callable[[Row], Truth]) -> "RowsOfAnyNumber":
        """Those of the rows for which the condition holds."""
        fewer = None if self.fewer is None else self.fewer.where(condition)
        return evolve(
            self,
            is_there=lambda one: z3.And(self.is_there(one), condition(self.value(one))),
            fewer=fewer,
        )

    def with_row(self, row: Row) -> "RowsOfAnyNumber":
        """The rows and one more, which is none of them.

        Whatever their values, the one more of the same rows is the same element.
        """
        there = self.is_there(z3.Const("probe", ROW))
        more = self.folds.more_rows
        element, *_ = more.setdefault(
            there.get_id(), (z3.Const(f"one more {len(more)}", ROW), there, self.is_there)
        )
        return evolve(
            self,
            is_there=lambda one: z3.Or(one == element, self.is_there(one)),
            value=lambda one: _either(one == element, row, self.value(one)),
            fewer=self,
            added=element,
        )

    def largest(self) -> Number:
        """The largest of their values."""
        return self.folds.fold("largest", self)[0]

    def total(self) -> Number:
        """The sum of their values: one more row adds its own."""
        if self.fewer is None:
            return self.folds.fold("total", self)[0]
        added = z3.If(self.is_there(self.added), self.value(self.added), 0)
        return self.fewer.total() + added

    def are_all_true(self) -> Truth:
        """True if the values all hold."""
        return self.folds.fold("all", self)[0]

    def count(self) -> Number:
        """How many of the values hold."""
        return self.folds.fold("count", self)[0]


def _term(number: Number | Truth) -> z3.ExprRef:
    if isinstance(number, bool):
        return z3.BoolVal(number)
    return z3.IntVal(number) if isinstance(number, int) else number


def _numbers(row: Row) -> list[z3.ExprRef]:
    """The numbers of a row, which is one or a record of some."""
    return [_term(number) for number in _plain_numbers(row)]


def _plain_numbers(row: Row) -> list[Any]:
    if has(type(row)):
        return [getattr(row, number.name) for number in fields(type(row))]
    return list(row) if isinstance(row, tuple) else [row]


def _either(condition: Truth, one: Row, other: Row) -> Row:
    """The one row where the condition holds, else the other."""
    numbers = [z3.If(condition, *both) for both in zip(_numbers(one), _numbers(other), strict=True)]
    return type(one)(*numbers) if has(type(one)) or isinstance(one, tuple) else numbers[0]


# --- rows of a statement: any number of them, or as many as are listed ----------------------------


def any_rows(integer: Integer, name: str, record: Callable[..., Row], names: Sequence[str]) -> Rows:
    """Rows with numbers of these names: of any number, or as many as `NAME_rows` says."""
    listed = integer(f"{name}_rows")
    if isinstance(listed, int):
        return [
            record(*(integer(f"{name}_{place}_{one}") for one in names)) for place in range(listed)
        ]
    functions = [z3.Function(f"{name}_{one}", ROW, z3.IntSort()) for one in names]
    is_there = z3.Function(f"{name}_is_there", ROW, z3.BoolSort())
    folds = Folds((name, names))
    return RowsOfAnyNumber(folds, is_there, lambda row: record(*(it(row) for it in functions)))


def are_same(rows: Rows, other: Rows) -> Truth:
    """True if both have the same rows with the same numbers, in the same order if they are listed.

    It is to be claimed, not given: of rows of any number it speaks of one, which is any of them.
    """
    if not isinstance(rows, RowsOfAnyNumber):
        pairs = zip(rows, other, strict=False)
        return every([len(rows) == len(other), *(_same_row(*pair) for pair in pairs)])
    row = z3.Const("any row", ROW)
    same_row = _same_row(rows.value(row), other.value(row))
    is_there = rows.is_there(row)
    return z3.And(is_there == other.is_there(row), z3.Implies(is_there, same_row))


def _same_row(row: Row, other: Row) -> Truth:
    pairs = zip(_plain_numbers(row), _plain_numbers(other), strict=True)
    return every([number == another for number, another in pairs])


def where(rows: Rows, condition: Callable[[Row], Truth]) -> Rows:
    """Those of the rows for which the condition holds; of listed ones all, if it does for none.

    A statement says nothing where there is no such row, and is written down there, too.
    """
    if isinstance(rows, RowsOfAnyNumber):
        return rows.where(condition)
    return [row for row in rows if condition(row)] or rows


def row_with_largest(rows: Rows, number: Callable[[Row], Number]) -> Row:
    """A row that has the largest number, to be looked at; there is at least one row."""
    if isinstance(rows, RowsOfAnyNumber):
        return _witness("largest", rows, number)
    return max(rows, key=number)


def row_where_not(rows: Rows, condition: Callable[[Row], Truth]) -> Row:
    """A row for which the condition fails, to be looked at; if there is none, any."""
    if isinstance(rows, RowsOfAnyNumber):
        return _witness("all", rows, condition)
    return next((row for row in rows if not condition(row)), rows[0])


def look_at_counted(rows: Rows, condition: Callable[[Row], Truth]) -> None:
    """Two rows for which the condition holds are looked at, if there are two."""
    if isinstance(rows, RowsOfAnyNumber):
        _witness("count", rows, condition)
        rows.folds.look_at(rows.folds.fold("count", rows.each(condition))[2])


def looked_at(rows: Rows) -> list[Row]:
    """The rows that a statement looks at, by their values."""
    if isinstance(rows, RowsOfAnyNumber):
        return [rows.value(one) for one in rows.folds.rows_looked_at]
    return list(rows)


def _witness(word: str, rows: RowsOfAnyNumber, of_row: Callable[[Row], Any]) -> Row:
    _, element, _ = rows.folds.fold(word, rows.each(of_row))
    rows.folds.look_at(element)
    return rows.value(element)


# --- what follows from the meaning of the folds --------------------------------------------------


def facts(
    folds: Folds,
    terms: Iterable[z3.ExprRef],
    words: Container[str] = ALL_WORDS,
    hidden: Sequence[tuple[z3.ExprRef, z3.ExprRef]] = (),
) -> list[z3.ExprRef]:
    """The terms, and what holds of the folds in them, for the rows that are looked at.

    `hidden`: numbers, each with the one that is written instead of it; of the folds that only these
    numbers are made of nothing is said.
    """

    def shown(wanted: Iterable[z3.ExprRef]) -> list[z3.ExprRef]:
        return [z3.substitute(one, *hidden) if hidden else one for one in wanted]

    looked_at = folds.rows_looked_at
    found = shown([*terms, *(z3.Not(there(one)) for one, _, there in folds.more_rows.values())])
    uses = _Uses(folds)
    uses.add(found)
    # A row between two counts is in one and not in the other; what holds for all holds for it.
    counts = [use for use in uses.seen if use.fold.word == "count" and "count" in words]
    between = []
    for place, (one, other) in enumerate(permutations(counts, 2)):
        row = z3.Const(f"between {place}", ROW)
        between.append(row)
        apart = z3.And(one.counts(row), z3.Not(other.counts(row)))
        found.append(z3.Or(one.result <= other.result, apart))
    # What fails for some row is said to hold for all by another.
    between += [use.witness for use in uses.seen if use.fold.word in {"all", "total"}]
    uses.add(found)
    done = 0
    while done < len(uses.seen):
        use = uses.seen[done]
        done += 1
        is_used = use.fold.word in words or use.is_looked_at(looked_at)
        new = shown(use.facts(looked_at, between) if is_used else use.least_facts)
        found += new
        uses.add(new)
    return found


@frozen
class _Use:
    """A fold at some rows: those that it depends on are given."""

    fold: Fold
    at: tuple[Element, ...]

    @property
    def result(self) -> Any:
        return self.fold.result(*self.at)

    @property
    def witness(self) -> Element:
        return self.fold.witness(*self.at)

    def is_looked_at(self, looked_at: list[Element]) -> bool:
        """True if its witness is one of these rows."""
        return any(self.witness.eq(one) for one in looked_at)

    def _of(self, term: Any, row: Element) -> Any:
        outer = zip(self.fold.outer, self.at, strict=True)
        return z3.substitute(term, (self.fold.each, row), *outer)

    def is_there(self, row: Element) -> Truth:
        return self._of(self.fold.is_there, row)

    def value(self, row: Element) -> Any:
        return self._of(self.fold.value, row)

    def counts(self, row: Element) -> Truth:
        """True if the row is there and its condition holds."""
        return z3.And(self.is_there(row), self.value(row))

    def exact_facts(self, every_row: Sequence[Element]) -> list[z3.ExprRef]:
        """What the word comes to if there are no rows but these, its witnesses among them."""
        result, witness, second = self.result, self.witness, self.fold.second(*self.at)
        among = [z3.Or([row == one for one in every_row]) for row in (witness, second)]
        there = [self.is_there(row) for row in every_row]
        values = [self.value(row) for row in every_row]
        pairs = list(zip(there, values, strict=True))
        match self.fold.word:
            case "largest":
                attained = z3.And(self.is_there(witness), self.value(witness) == result)
                none_larger = [z3.Implies(is_there, result >= value) for is_there, value in pairs]
                return [*among, z3.Implies(z3.Or(there), attained), *none_larger]
            case "all":
                holds = z3.And([z3.Implies(is_there, value) for is_there, value in pairs])
                fails = z3.And(self.is_there(witness), z3.Not(self.value(witness)))
                return [*among, result == holds, z3.Or(result, fails)]
            case "total":
                total = z3.Sum([z3.If(is_there, value, 0) for is_there, value in pairs])
                return [*among, result == total]
        count = z3.Sum([z3.If(self.counts(row), 1, 0) for row in every_row])
        counted = z3.Implies(result >= 1, self.counts(witness))
        another = z3.Implies(result >= 2, z3.And(self.counts(second), second != witness))
        return [*among, result == count, counted, another]

    @property
    def least_facts(self) -> list[z3.ExprRef]:
        """What follows without looking at any row: no count is negative, nor a sum of naturals."""
        if self.fold.word == "total":
            negative = z3.And(self.is_there(self.witness), self.value(self.witness) < 0)
            return [z3.Or(self.result >= 0, negative)]
        return [self.result >= 0] if self.fold.word == "count" else []

    def facts(self, looked_at: list[Element], between: list[Element]) -> list[z3.ExprRef]:
        """What follows from the meaning of the word, for these rows and the witness."""
        result, witness = self.result, self.witness
        if self.fold.word == "largest":
            some = z3.Or([self.is_there(row) for row in looked_at])
            attained = z3.And(self.is_there(witness), result == self.value(witness))
            return [
                z3.Implies(some, attained),
                *(
                    z3.Implies(self.is_there(row), result >= self.value(row))
                    for row in (*looked_at, *between)
                ),
            ]
        if self.fold.word == "all":
            fails = z3.And(self.is_there(witness), z3.Not(self.value(witness)))
            return [
                z3.Or(result, fails),
                *(
                    z3.Implies(z3.And(result, self.is_there(row)), self.value(row))
                    for row in (*looked_at, *(between if self.fold.is_flat else ()))
                ),
            ]
        if self.fold.word == "total":
            return self.least_facts
        second = self.fold.second(*self.at)
        return [
            *self.least_facts,
            z3.Implies(result >= 1, self.counts(witness)),
            z3.Implies(result >= 2, z3.And(self.counts(second), second != witness)),
            *(
                z3.Implies(
                    self.counts(row), z3.And(result >= 1, z3.Or(result >= 2, row == witness))
                )
                for row in looked_at
            ),
        ]


# --- a few rows ----------------------------------------------------------------------------------


def exact_facts(
    folds: Folds, terms: Iterable[z3.ExprRef], elements: Sequence[Element]
) -> list[z3.ExprRef]:
    """The terms, and what the folds in them come to if there are no rows but these elements.

    So the solver finds numbers of a few rows, of which every word is what it is by definition.
    """
    added = [element for element, *_ in folds.more_rows.values()]
    every_row = [*elements, *added]
    found = [
        *terms,
        z3.Distinct(*every_row),
        *(z3.Not(there(element)) for element, _, there in folds.more_rows.values()),
    ]
    uses = _Uses(folds)
    uses.add(found)
    done = 0
    while done < len(uses.seen):
        new = uses.seen[done].exact_facts(every_row)
        done += 1
        found += new
        uses.add(new)
    return found


def numbers_in(model: z3.ModelRef, folds: Folds, elements: Sequence[Element]) -> dict[str, int]:
    """The numbers of the rows that are there in the model, as `any_rows` names them."""
    name, names = folds.drawn
    ctx = model.ctx
    is_there = z3.Function(f"{name}_is_there", ROW, z3.BoolSort()).translate(ctx)
    there = [
        element
        for element in (one.translate(ctx) for one in elements)
        if z3.is_true(model.eval(is_there(element), model_completion=True))
    ]
    numbers = {f"{name}_rows": len(there)}
    for field_name in names:
        number = z3.Function(f"{name}_{field_name}", ROW, z3.IntSort()).translate(ctx)
        for place, element in enumerate(there):
            value = model.eval(number(element), model_completion=True)
            numbers[f"{name}_{place}_{field_name}"] = value.as_long()
    return numbers


@define
class _Uses:
    """The folds that stand in terms, each at its rows once, in order of appearance."""

    folds: Folds
    seen: list[_Use] = field(factory=list)
    _terms: set[int] = field(factory=set)
    _results: set[int] = field(factory=set)
    _kept: list[Any] = field(factory=list)

    def add(self, terms: Iterable[z3.ExprRef]) -> None:
        """Take those in that stand in these terms."""
        named = self.folds.known.values()
        by_name = {it.name(): one for one in named for it in (one.result, one.witness)}
        pending = list(terms)
        self._kept += pending
        while pending:
            term = pending.pop()
            if term.get_id() in self._terms:
                continue
            self._terms.add(term.get_id())
            fold = by_name.get(term.decl().name()) if z3.is_app(term) else None
            if fold is not None:
                self._use(_Use(fold, tuple(term.children())))
            pending.extend(term.children())

    def _use(self, use: _Use) -> None:
        if use.result.get_id() not in self._results:
            self._results.add(use.result.get_id())
            self._kept.append(use.result)
            self.seen.append(use)
