"""Any number of rows in the solver: their maximum, conjunction, count and sum.

A formula that uses rows only through the words of `spec.core.rows` runs unchanged on these rows.
Each row is an element of a sort without structure, and its numbers are functions of it. The result
of a word is a new constant, a *fold*. The solver is told what follows from the word's meaning:

- the largest number is that of some row (the witness), and no row's number is larger;
- a condition that does not hold for all rows fails for some row (the witness);
- a count is at least 0; it is at least 1 exactly if some row (the witness) is counted, and at least
  2 exactly if another row is; it is no larger than another count unless some row is counted in the
  first and not in the second;
- a sum is at least 0 unless the number of some row (the witness) is negative, and one more row adds
  its own number.

These facts are true of any finite number of rows, and nothing else is assumed. Facts about every
row are instantiated only for the rows that a statement names and for witnesses. Fewer instances
mean weaker assumptions: what is proven is true, and what is not proven may still be true.
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
    """The result of a word on rows.

    `each`: the bound row; `is_there` and `value` are terms of it. `outer`: the other rows in these
    terms, in order; `result` and `witness` are functions of them.
    """

    word: str
    each: Element
    is_there: Truth
    value: Any
    outer: tuple[Element, ...]
    result: z3.FuncDeclRef
    witness: z3.FuncDeclRef
    second: z3.FuncDeclRef  # of a count: another row that is counted
    is_flat: bool  # its value contains no other fold

    def is_part(self, term: z3.ExprRef) -> bool:
        """True if its result is a part of the term."""
        own = z3.is_app(term) and term.decl().eq(self.result)
        return own or any(map(self.is_part, term.children()))


@define
class Folds:
    """The folds of one statement, each only once."""

    drawn: tuple[str, Sequence[str]] = ("", ())  # names of the rows and of their numbers
    known: dict[tuple[str, int, int], Fold] = field(factory=dict)
    more_rows: dict[int, tuple[Any, ...]] = field(factory=dict)
    instances: list[Element] = field(factory=list)
    _depth: int = 0

    def instantiate(self, row: Element) -> None:
        """Instantiate the facts about every row for this row."""
        if not any(row.eq(other) for other in self.instances):
            self.instances.append(row)

    @property
    def all_instances(self) -> list[Element]:
        """The instantiated rows, and every row that was added to others."""
        return [*self.instances, *(row for row, *_ in self.more_rows.values())]

    def fold(self, word: str, rows: "RowsOfAnyNumber") -> tuple[Any, Element, Element]:
        """The result of a word on rows, its witness, and for a count a second witness."""
        each = z3.Const(f"each!{self._depth}", ROW)
        self._depth += 1
        is_there, value = rows.is_there(each), rows.value(each)
        self._depth -= 1
        free = _free_rows((is_there, _term(value)), each)
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
                is_flat=not any(fold.is_part(body) for fold in self.known.values()),
            )
        fold = self.known[key]
        return fold.result(*free), fold.witness(*free), fold.second(*free)


def _free_rows(terms: Iterable[z3.ExprRef], each: Element) -> list[Element]:
    """The rows in the terms other than `each`, each once, in order of appearance."""
    found: dict[int, Element] = {}
    seen: set[int] = set()
    pending = list(terms)[::-1]
    while pending:
        term = pending.pop()
        if term.get_id() in seen or term.eq(each):
            continue
        seen.add(term.get_id())
        if term.sort() == ROW and not _contains(term, each):
            found[term.get_id()] = term
        else:
            pending.extend(reversed(term.children()))
    return list(found.values())


def _contains(term: z3.ExprRef, row: Element) -> bool:
    return term.eq(row) or any(_contains(child, row) for child in term.children())


@frozen
class RowsOfAnyNumber(AnyRows):
    """Rows, given by the condition that an element is one of them and by its value."""

    folds: Folds = field(repr=False)
    is_there: Callable[[Element], Truth]
    value: Callable[[Element], Row]
    fewer: "RowsOfAnyNumber | None" = None  # the same rows without `added`
    added: Element = None

    def each(self, function: Callable[[Row], Row]) -> "RowsOfAnyNumber":
        """The rows with the function applied to their values."""
        fewer = None if self.fewer is None else self.fewer.each(function)
        return evolve(self, value=lambda element: function(self.value(element)), fewer=fewer)

    def where(self, condition: Callable[[Row], Truth]) -> "RowsOfAnyNumber":
        """The rows for which the condition holds."""
        fewer = None if self.fewer is None else self.fewer.where(condition)
        return evolve(
            self,
            is_there=lambda element: z3.And(self.is_there(element), condition(self.value(element))),
            fewer=fewer,
        )

    def with_row(self, row: Row) -> "RowsOfAnyNumber":
        """The rows and one more, which is none of them.

        For the same rows the additional row is always the same element, with any values.
        """
        there = self.is_there(z3.Const("probe", ROW))
        more = self.folds.more_rows
        added, *_ = more.setdefault(
            there.get_id(), (z3.Const(f"one more {len(more)}", ROW), there, self.is_there)
        )
        return evolve(
            self,
            is_there=lambda element: z3.Or(element == added, self.is_there(element)),
            value=lambda element: _either(element == added, row, self.value(element)),
            fewer=self,
            added=added,
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
        """The number of values that hold."""
        return self.folds.fold("count", self)[0]


def _term(number: Number | Truth) -> z3.ExprRef:
    if isinstance(number, bool):
        return z3.BoolVal(number)
    return z3.IntVal(number) if isinstance(number, int) else number


def _numbers(row: Row) -> list[z3.ExprRef]:
    """The numbers of a row, which is a number or a record of numbers."""
    return [_term(number) for number in _plain_numbers(row)]


def _plain_numbers(row: Row) -> list[Any]:
    if has(type(row)):
        return [getattr(row, number.name) for number in fields(type(row))]
    return list(row) if isinstance(row, tuple) else [row]


def _either(condition: Truth, row: Row, other: Row) -> Row:
    """The first row if the condition holds, else the other."""
    numbers = [z3.If(condition, *both) for both in zip(_numbers(row), _numbers(other), strict=True)]
    return type(row)(*numbers) if has(type(row)) or isinstance(row, tuple) else numbers[0]


# --- rows of a statement: any number of rows, or a list of rows -----------------------------------


def any_rows(integer: Integer, name: str, record: Callable[..., Row], names: Sequence[str]) -> Rows:
    """Rows with numbers of these names: any number of rows, or `NAME_rows` listed ones."""
    listed = integer(f"{name}_rows")
    if isinstance(listed, int):
        return [
            record(*(integer(f"{name}_{place}_{number}") for number in names))
            for place in range(listed)
        ]
    functions = [z3.Function(f"{name}_{number}", ROW, z3.IntSort()) for number in names]
    is_there = z3.Function(f"{name}_is_there", ROW, z3.BoolSort())
    folds = Folds((name, names))
    return RowsOfAnyNumber(
        folds, is_there, lambda row: record(*(function(row) for function in functions))
    )


def are_same(rows: Rows, other: Rows) -> Truth:
    """True if both have the same rows with the same numbers, listed rows in the same order.

    Use it only as a claim, not as an assumption: for any number of rows it speaks of one arbitrary
    row.
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
    """The rows for which the condition holds; of listed rows all, if it holds for none.

    A statement must be writable also if there is no such row; it says nothing then.
    """
    if isinstance(rows, RowsOfAnyNumber):
        return rows.where(condition)
    return [row for row in rows if condition(row)] or rows


def row_with_largest(rows: Rows, number: Callable[[Row], Number]) -> Row:
    """A row that has the largest number, as an instance; there is at least one row."""
    if isinstance(rows, RowsOfAnyNumber):
        return _witness("largest", rows, number)
    return max(rows, key=number)


def row_where_not(rows: Rows, condition: Callable[[Row], Truth]) -> Row:
    """A row for which the condition fails, as an instance; any row if there is none."""
    if isinstance(rows, RowsOfAnyNumber):
        return _witness("all", rows, condition)
    return next((row for row in rows if not condition(row)), rows[0])


def look_at_counted(rows: Rows, condition: Callable[[Row], Truth]) -> None:
    """Instantiate two rows for which the condition holds, if there are two."""
    if isinstance(rows, RowsOfAnyNumber):
        _witness("count", rows, condition)
        rows.folds.instantiate(rows.folds.fold("count", rows.each(condition))[2])


def instantiated_rows(rows: Rows) -> list[Row]:
    """The values of the instantiated rows of a statement; of listed rows all."""
    if isinstance(rows, RowsOfAnyNumber):
        return [rows.value(row) for row in rows.folds.all_instances]
    return list(rows)


def _witness(word: str, rows: RowsOfAnyNumber, of_row: Callable[[Row], Any]) -> Row:
    _, element, _ = rows.folds.fold(word, rows.each(of_row))
    rows.folds.instantiate(element)
    return rows.value(element)


# --- facts that follow from the meaning of folds -------------------------------------------------


def facts(
    folds: Folds,
    terms: Iterable[z3.ExprRef],
    words: Container[str] = ALL_WORDS,
    hidden: Sequence[tuple[z3.ExprRef, z3.ExprRef]] = (),
) -> list[z3.ExprRef]:
    """The terms, and the facts about the folds in them, for the instantiated rows.

    `hidden`: pairs of a number and its replacement; folds that occur only in hidden numbers get no
    facts.
    """

    def shown(wanted: Iterable[z3.ExprRef]) -> list[z3.ExprRef]:
        return [z3.substitute(term, *hidden) if hidden else term for term in wanted]

    instances = folds.all_instances
    found = shown([*terms, *(z3.Not(there(row)) for row, _, there in folds.more_rows.values())])
    uses = _Uses(folds)
    uses.add(found)
    # A row between two counts is in the first only. What holds for all rows holds for it.
    counts = [use for use in uses.seen if use.fold.word == "count" and "count" in words]
    between = []
    for place, (count, other) in enumerate(permutations(counts, 2)):
        row = z3.Const(f"between {place}", ROW)
        between.append(row)
        apart = z3.And(count.counts(row), z3.Not(other.counts(row)))
        found.append(z3.Or(count.result <= other.result, apart))
    # A condition that fails for a witness may hold for all rows by another fold.
    between += [use.witness for use in uses.seen if use.fold.word in {"all", "total"}]
    uses.add(found)
    done = 0
    while done < len(uses.seen):
        use = uses.seen[done]
        done += 1
        is_used = use.fold.word in words or use.is_instance(instances)
        new = shown(use.facts(instances, between) if is_used else use.least_facts)
        found += new
        uses.add(new)
    return found


@frozen
class _Use:
    """A fold applied to the rows `at` on which it depends."""

    fold: Fold
    at: tuple[Element, ...]

    @property
    def result(self) -> Any:
        return self.fold.result(*self.at)

    @property
    def witness(self) -> Element:
        return self.fold.witness(*self.at)

    def is_instance(self, rows: list[Element]) -> bool:
        """True if its witness is one of these rows."""
        return any(self.witness.eq(row) for row in rows)

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
        """The definition of the word (largest, sum, every, …) over a batch of just these rows."""
        result, witness, second = self.result, self.witness, self.fold.second(*self.at)
        among = [z3.Or([row == other for other in every_row]) for row in (witness, second)]
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
        """Facts that name no row: no count is negative, nor a sum of natural numbers."""
        if self.fold.word == "total":
            negative = z3.And(self.is_there(self.witness), self.value(self.witness) < 0)
            return [z3.Or(self.result >= 0, negative)]
        return [self.result >= 0] if self.fold.word == "count" else []

    def facts(self, instances: list[Element], between: list[Element]) -> list[z3.ExprRef]:
        """The facts that follow from the word's meaning, for these rows and the witness."""
        result, witness = self.result, self.witness
        if self.fold.word == "largest":
            some = z3.Or([self.is_there(row) for row in instances])
            attained = z3.And(self.is_there(witness), result == self.value(witness))
            return [
                z3.Implies(some, attained),
                *(
                    z3.Implies(self.is_there(row), result >= self.value(row))
                    for row in (*instances, *between)
                ),
            ]
        if self.fold.word == "all":
            fails = z3.And(self.is_there(witness), z3.Not(self.value(witness)))
            return [
                z3.Or(result, fails),
                *(
                    z3.Implies(z3.And(result, self.is_there(row)), self.value(row))
                    for row in (*instances, *(between if self.fold.is_flat else ()))
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
                for row in instances
            ),
        ]


# --- a few rows ----------------------------------------------------------------------------------


def exact_facts(
    folds: Folds, terms: Iterable[z3.ExprRef], elements: Sequence[Element]
) -> list[z3.ExprRef]:
    """The terms, and the exact meaning of their folds if these elements are all rows.

    With these facts the solver finds a refutation with a few rows that is right by definition.
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


def row_numbers(model: z3.ModelRef, folds: Folds, elements: Sequence[Element]) -> dict[str, int]:
    """The number of rows that exist in a solver model, and the fields of each, named as there."""
    name, names = folds.drawn
    ctx = model.ctx
    is_there = z3.Function(f"{name}_is_there", ROW, z3.BoolSort()).translate(ctx)
    there = [
        element
        for element in (constant.translate(ctx) for constant in elements)
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
    """The uses of folds in terms, each once, in order of appearance."""

    folds: Folds
    seen: list[_Use] = field(factory=list)
    _terms: set[int] = field(factory=set)
    _results: set[int] = field(factory=set)
    _kept: list[Any] = field(factory=list)

    def add(self, terms: Iterable[z3.ExprRef]) -> None:
        """Add the uses of folds in these terms."""
        named = self.folds.known.values()
        by_name = {
            function.name(): fold for fold in named for function in (fold.result, fold.witness)
        }
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
