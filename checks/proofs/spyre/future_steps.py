"""Obligations about volume: why no step of any run exceeds the limit under the rule `exact`.

The volume alone is not inductive: a batch within the limit now says nothing about its next step.
What every step keeps is stronger: *no future step of the present decode batch exceeds the limit,
if no request joins it*.
1. What becomes of the batch (PRV-TOC-1): clients that leave take their row along; in a decode step
   every row is one token further, or leaves; a chunk leaves the rows as they are, but for the last
   one, after which the candidate that the rule was asked about has come to them.
2. Why that keeps it (PRV-TOC-2): rows that leave take no future step over the limit; a decode step
   makes the second of the future steps the first; the order of the rows is of no matter.
3. Why admission keeps it (PRV-TOC-3): the rule looks at all future steps; if it admits a candidate,
   no future step of the batch that it joins exceeds the limit.
4. Why it is enough (PRV-TOC-4): a decode step is the first of the future steps; a prefill step is
   that of one request, which could be served alone.
No row is there at first. As in `checks.proofs.spyre.inductive` there are three requests, and the
state before is any that its invariants allow. The letter of an obligation stands for the sizes of
block and chunk: A for the product's, B for small ones.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from attrs import field, frozen

from checks.proofs.registry import Case, Fact, Integer, Positive, Statement
from checks.proofs.spyre.agreement import OF_NUMERIC_MACHINE, of_machine
from checks.proofs.spyre.inductive import ANY_STEP, REQUESTS, SIZES, Scene
from checks.proofs.spyre.numeric_machine import DECODING, SchedulerState, Setting, count
from checks.proofs.spyre.rows import cite_layout, cite_rows, cite_width, later
from checks.proofs.spyre.scope import obligation
from spec.core.arithmetic import Number, Truth, every, implies, negate, select, some
from spec.spyre.admission import Life, Member, exact_volume_holds, rows_until
from spec.spyre.padding import max_tkv, volume

Rows = Sequence[Member]  # a row without future steps is none

# --- words of the claims ------------------------------------------------------------------------


def keeps_limit(rows: Rows, step: Number, limit: Number, block_size: Number) -> Truth:
    """The rows' step after so many is within the limit, if no request joins or leaves early.

    Written by what the device sees: the rows that are still there, times the tkv of those rows.
    """
    still = [row.remaining >= step for row in rows]
    load = volume(count(still), max_tkv(lengths_in(rows, step), block_size))
    return implies(some(still), load <= limit)


def lengths_in(rows: Rows, step: Number) -> list[Number]:
    """Tokens of the rows in a step.

    One token stands for a row that has left: it is never wider, nor reaches further (PRV-TOC-3C).
    """
    return [select(row.remaining >= step, row.length + step, 1) for row in rows]


def rows_of(scene: Scene, state: SchedulerState) -> list[Member]:
    """The decode batch, with a row without future steps for each request outside it."""
    of_clients = zip(scene.clients, state.requests, strict=True)
    return [
        Member(one.computed, select(one.phase == DECODING, client.max_tokens - one.generated, 0))
        for client, one in of_clients
    ]


def is_there(row: Member) -> Truth:
    """The row has future steps."""
    return row.remaining >= 1


def next_of(row: Member) -> Member:
    """The row after one more token."""
    return Member(row.length + 1, row.remaining - 1)


def is_row_or_none(after: Member, row: Member) -> Truth:
    """The row itself, as long and with as many future steps, or none."""
    same = every([after.length == row.length, after.remaining == row.remaining])
    return implies(is_there(after), every([is_there(row), same]))


def stay_or_leave(before: Rows, after: Rows) -> Truth:
    """Every row stays as it is, or leaves."""
    return every(is_row_or_none(now, row) for row, now in zip(before, after, strict=True))


def go_on_or_leave(before: Rows, after: Rows) -> Truth:
    """Every row is one token further, or leaves."""
    return stay_or_leave([next_of(row) for row in before], after)


def with_joined(batch: Rows, candidate: Member) -> list[Member]:
    """The rows after the candidate's last chunk, which has yielded its first token."""
    return [*batch, Member(candidate.length, candidate.remaining - 1)]


def are_rotated(rows: Rows, other: Rows) -> Truth:
    """The others are the rows, with the last one put somewhere, or gone.

    The others that have gone may have left.
    """
    *batch, last = rows
    placed = [[*batch[:index], last, *batch[index:]] for index in range(len(rows))]
    return some(stay_or_leave(one, other) for one in placed)


# --- 1: what becomes of the batch ---------------------------------------------------------------


@frozen
class Recorder:
    """An admission rule that decides as it likes and keeps what it was asked about."""

    answer: Truth
    asked: list[tuple[Rows, Member]] = field(factory=list)

    def __call__(
        self, _setting: Setting, batch: Rows, candidate: Member, _last_tkv: Number
    ) -> Truth:
        """The answer."""
        self.asked.append((batch, candidate))
        return self.answer


def clients_leave_with_their_rows(scene: Scene) -> Statement:
    """Clients that leave take their row along, no more."""
    before, after = (rows_of(scene, one) for one in (scene.state, scene.between()))
    return Statement(stay_or_leave(before, after), scene.consistent)


def rows_decode_together(scene: Scene) -> Statement:
    """In a decode step every row is one token further, or leaves."""
    result = scene.step()
    before, after = (rows_of(scene, one) for one in (scene.state, result.after))
    given = [*scene.consistent, result.is_decode]
    return Statement(go_on_or_leave(before, after), given)


def a_row_joins(scene: Scene, after: SchedulerState) -> Truth:
    """A row is there that was not."""
    rows = zip(rows_of(scene, scene.state), rows_of(scene, after), strict=True)
    return some(every([negate(is_there(row)), is_there(now)]) for row, now in rows)


def rows_wait_for_a_chunk(scene: Scene) -> Statement:
    """Where no request joins, a chunk leaves all rows as they are."""
    # As does an idle step, in which there are none.
    result = scene.step()
    before, after = (rows_of(scene, one) for one in (scene.state, result.after))
    none_new = negate(a_row_joins(scene, result.after))
    given = [*scene.consistent, negate(result.is_decode), none_new]
    return Statement(stay_or_leave(before, after), given)


def only_the_admitted_join(integer: Integer, block_size: int, chunk_size: int) -> Statement:
    """What joins the batch is the candidate that the rule was asked about and has admitted, next
    to the rows that it was asked about.
    """
    rule = Recorder(integer("admits") == 1)
    scene = Scene.drawn(integer, block_size, chunk_size, rule)
    after = scene.step().after
    ((batch, candidate),) = rule.asked
    joined = with_joined(batch, candidate)
    lengths = [row.length >= 1 for row in joined]
    return Statement(
        [rule.answer, *lengths, are_rotated(joined, rows_of(scene, after))],
        given=[*scene.consistent, a_row_joins(scene, after)],
    )


# --- 2 to 4: what that does to the future steps -------------------------------------------------


def _any_rows(integer: Integer, name: str) -> list[Member]:
    return [
        Member(integer(f"{name}_tokens_{index}"), integer(f"{name}_to_come_{index}"))
        for index in range(REQUESTS)
    ]


def limit_stays_kept(
    integer: Integer,
    limit: Number,
    step: Positive,
    block_size: int,
    becomes: Callable[[Rows, Rows], Truth],
    is_decode: bool = False,
) -> Statement:
    """If no future step of the rows exceeds the limit, none of what they become does.

    In a decode step the next step but one becomes the next.
    """
    before, after = _any_rows(integer, "row"), _any_rows(integer, "then")
    step_before = step + 1 if is_decode else step
    return Statement(
        keeps_limit(after, step, limit, block_size),
        given=[
            *(implies(is_there(row), row.length >= 1) for row in before),
            becomes(before, after),
            keeps_limit(before, step_before, limit, block_size),
        ],
        is_congruent=True,
    )


@obligation(
    "PRV-TOC-3C",
    bounds="every batch size (the longest and the furthest row stand for it), every block size",
    rules=[],
)
def one_token_adds_nothing(
    longest: Positive, furthest: Positive, block_size: Positive
) -> Statement:
    """A row of one token adds nothing to a batch: no other max-tkv, whatever rows are there."""
    batch = [longest, furthest]
    return Statement(max_tkv([*batch, 1], block_size) == max_tkv(batch, block_size))


def admission_keeps_the_limit(
    integer: Integer, limit: Number, step: Positive, block_size: int
) -> Statement:
    """If `exact` admits a candidate, no future step of the batch exceeds the limit."""
    # By the first end from that step on: the rows that are there then are there in the step.
    *batch, candidate = _any_rows(integer, "row")
    joined = with_joined(batch, candidate)
    lives = [Life(row.length, row.remaining) for row in joined]
    now = lengths_in(joined, step)

    def is_first_end(last: Member) -> Truth:
        between = (every([row.remaining >= step, row.remaining < last.remaining]) for row in joined)
        return every([last.remaining >= step, negate(some(between))])

    def known(last: Member) -> Iterator[Fact]:
        until, own = rows_until(lives, last.remaining), {"block_size": block_size}
        then = later(until, step)
        yield cite_rows("PRV-PEAK-2", until, step=step, steps=last.remaining, **own)
        yield from (*cite_layout([*now, *then], block_size), *cite_width(now, then, block_size))

    return Statement(
        keeps_limit(joined, step, limit, block_size),
        given=[
            *(row.length >= 1 for row in joined),
            exact_volume_holds(batch, candidate, limit, block_size),
        ],
        cases=[
            *(Case(is_first_end(last), known(last)) for last in joined),
            Case(every(row.remaining < step for row in joined)),
        ],
    )


def the_next_step_keeps_the_limit(scene: Scene) -> Statement:
    """If no future step of the batch exceeds the limit, the next step of the machine does not."""
    setting, rows = scene.setting, rows_of(scene, scene.state)
    kept = keeps_limit(rows, 1, setting.limit, setting.block_size)
    return Statement(scene.step().volume <= setting.limit, [*scene.consistent, kept])


# What happens to rows, what is said of it, what becomes of them, and whether in a decode step.
_BECOMES: tuple[tuple[str, str, Callable[[Rows, Rows], Truth], bool], ...] = (
    (
        "rows that leave",
        "If no future step exceeds the limit, none does after some rows have left.",
        stay_or_leave,
        False,
    ),
    (
        "what a decode step leaves",
        "If no future step exceeds the limit, none does after a decode step and the ends in it.",
        go_on_or_leave,
        True,
    ),
    (
        "rows in another order",
        "Whether a future step exceeds the limit does not depend on the order of the rows.",
        are_rotated,
        False,
    ),
)

for _letter, (_block, _chunk) in SIZES.items():
    _rows = (
        f"every batch of {REQUESTS} rows, all lengths and limits, every future step; block {_block}"
    )
    _of_rows = partial(
        obligation,
        where="admission=exact",
        rules=["SPY-VOL-1"],
        block_size=_block,
    )
    _steps = f"{ANY_STEP}; block {_block}, chunk {_chunk}"
    _of_a_step = partial(
        of_machine,
        where=f"admission=exact, {OF_NUMERIC_MACHINE}",
        rules=["SPY-VOL-1"],
        block_size=_block,
        chunk_size=_chunk,
    )
    _of_a_step(f"PRV-TOC-1{_letter}1", bounds=f"{_steps}; rows that leave")(
        clients_leave_with_their_rows
    )
    _of_a_step(
        f"PRV-TOC-1{_letter}2",
        bounds=f"{_steps}; a decode step",
        rules=["SPY-VOL-1", "SPY-DEC-1"],
    )(rows_decode_together)
    _of_a_step(f"PRV-TOC-1{_letter}3", bounds=f"{_steps}; a chunk after which none joins")(
        rows_wait_for_a_chunk
    )
    _of_a_step(f"PRV-TOC-1{_letter}4", bounds=f"{_steps}; a request that joins")(
        only_the_admitted_join
    )
    for _number, (_what, _sentence, _becomes, _decodes) in enumerate(_BECOMES, start=1):
        _of_rows(
            f"PRV-TOC-2{_letter}{_number}",
            bounds=f"{_rows}; {_what}",
            sentence=_sentence,
            becomes=_becomes,
            is_decode=_decodes,
        )(limit_stays_kept)
    _of_rows(
        f"PRV-TOC-3{_letter}",
        bounds=f"{_rows}; a request that joins",
        rules=["SPY-VOL-1", "SPY-VOL-4"],
    )(admission_keeps_the_limit)
    _of_a_step(f"PRV-TOC-4{_letter}", bounds=f"{_steps}; the volume of the step")(
        the_next_step_keeps_the_limit
    )
