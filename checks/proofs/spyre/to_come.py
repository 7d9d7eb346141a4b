"""Obligations about volume: why no step of any run exceeds the limit under the rule `exact`.

The volume alone is not inductive: a batch within the limit now says nothing about its next step.
What every step keeps is stronger: *no future step of the present decode batch exceeds the limit,
if nobody joins it*.
1. What becomes of the batch (PRV-TOC-1): clients that leave take their row along; in a decode step
   every row is one token further, or leaves; a chunk leaves the rows as they are, but for the last
   one, after which the candidate that the rule was asked about has come to them.
2. Why that keeps it (PRV-TOC-2): rows that leave take no future step over the limit; a decode step
   makes the second of the future steps the first; the order of the rows is of no matter.
3. Why admission keeps it (PRV-TOC-3): the rule looks at all that is to come; if it admits a
   candidate, no future step of the batch that it joins exceeds the limit.
4. Why it is enough (PRV-TOC-4): a decode step is the first of the future steps; a prefill step is
   that of one request, which could be served alone.
Nobody decodes at the start. As in `checks.proofs.spyre.inductive` there are three requests, and the
situation before is any that its invariants allow. The letter of an obligation stands for the sizes
of block and chunk: A for the product's, B for small ones.
"""

from collections.abc import Sequence
from functools import partial

from attrs import field, frozen

from checks.proofs.registry import Integer, Statement, obligation
from checks.proofs.spyre.inductive import (
    ANY_STEP,
    REQUESTS,
    SIZES,
    Scene,
    any_rule,
    any_scene,
    consistent,
)
from checks.proofs.spyre.machine import DECODING, Machine, Setting, Situation, count
from checks.proofs.spyre.symbolic import MACHINE
from spec.core.arithmetic import Number, Truth, every, implies, negate, select, some
from spec.spyre.admission import Member, exact_volume_holds, rows_until
from spec.spyre.padding import max_tkv, peak_tkv, volume

Rows = Sequence[Member]  # a row that has nothing to come is none

# --- words of the claims ------------------------------------------------------------------------


def keeps_limit(rows: Rows, step: Number, limit: Number, block_size: Number) -> Truth:
    """The rows' step after so many is within the limit, if nobody joins or leaves early.

    Written by what the device sees: the rows that are still there, times the tkv of those rows.
    """
    still = [row.remaining >= step for row in rows]
    load = volume(count(still), max_tkv(_lengths_then(rows, step), block_size))
    return implies(some(still), load <= limit)


def _lengths_then(rows: Rows, step: Number) -> list[Number]:
    """Tokens of the rows in that step; one token stands for a row that has left.

    A row of one token is never wider than another, nor reaches further into its block.
    """
    return [select(row.remaining >= step, row.length + step, 1) for row in rows]


def rows_of(scene: Scene, situation: Situation) -> list[Member]:
    """The decode batch, with a row that has nothing to come for whoever is not in it."""
    placed = zip(scene.clients, situation.places, strict=True)
    return [
        Member(
            place.computed, select(place.phase == DECODING, client.max_tokens - place.generated, 0)
        )
        for client, place in placed
    ]


def is_there(row: Member) -> Truth:
    """The row has something to come."""
    return row.remaining >= 1


def same(row: Member, other: Member) -> Truth:
    """As long, and with as much to come."""
    return every([row.length == other.length, row.remaining == other.remaining])


def next_of(row: Member) -> Member:
    """The row after one more token."""
    return Member(row.length + 1, row.remaining - 1)


def is_row_or_none(after: Member, row: Member) -> Truth:
    """The row itself, or none."""
    return implies(is_there(after), every([is_there(row), same(after, row)]))


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


def clients_leave_with_their_rows(
    integer: Integer, block_size: int, chunk_size: int, machine: Machine = MACHINE
) -> Statement:
    """Arrivals change no row."""
    scene = any_scene(integer, block_size, chunk_size, any_rule(integer))
    after = machine.between(scene.clients, scene.situation, integer("index"))
    before_and_after = [rows_of(scene, one) for one in (scene.situation, after)]
    return Statement(
        given=consistent(scene, scene.situation), claim=stay_or_leave(*before_and_after)
    )


def rows_decode_together(
    integer: Integer, block_size: int, chunk_size: int, machine: Machine = MACHINE
) -> Statement:
    """All of them, by one token."""
    scene = any_scene(integer, block_size, chunk_size, any_rule(integer))
    move = machine.step(scene.setting, scene.clients, scene.situation)
    before, after = (rows_of(scene, one) for one in (scene.situation, move.after))
    return Statement(
        given=[*consistent(scene, scene.situation), move.is_decode],
        claim=go_on_or_leave(before, after),
    )


def somebody_joins(scene: Scene, after: Situation) -> Truth:
    """A row is there that was not."""
    placed = zip(rows_of(scene, scene.situation), rows_of(scene, after), strict=True)
    return some(every([negate(is_there(row)), is_there(now)]) for row, now in placed)


def rows_wait_for_a_chunk(
    integer: Integer, block_size: int, chunk_size: int, machine: Machine = MACHINE
) -> Statement:
    """As they do in an idle step, in which there are none."""
    scene = any_scene(integer, block_size, chunk_size, any_rule(integer))
    move = machine.step(scene.setting, scene.clients, scene.situation)
    before, after = (rows_of(scene, one) for one in (scene.situation, move.after))
    nobody_new = negate(somebody_joins(scene, move.after))
    return Statement(
        given=[*consistent(scene, scene.situation), negate(move.is_decode), nobody_new],
        claim=stay_or_leave(before, after),
    )


def only_the_admitted_join(
    integer: Integer, block_size: int, chunk_size: int, machine: Machine = MACHINE
) -> Statement:
    """The rule was asked about this candidate and these rows, and has said yes."""
    rule = Recorder(integer("admits") == 1)
    scene = any_scene(integer, block_size, chunk_size, rule)
    move = machine.step(scene.setting, scene.clients, scene.situation)
    ((batch, candidate),) = rule.asked
    joined = with_joined(batch, candidate)
    lengths = [row.length >= 1 for row in joined]
    return Statement(
        given=[*consistent(scene, scene.situation), somebody_joins(scene, move.after)],
        claim=every([rule.answer, *lengths, are_rotated(joined, rows_of(scene, move.after))]),
    )


# --- 2 to 4: what that does to the steps to come ------------------------------------------------


def _any_rows(integer: Integer, name: str) -> list[Member]:
    return [
        Member(integer(f"{name}_tokens_{index}"), integer(f"{name}_to_come_{index}"))
        for index in range(REQUESTS)
    ]


def _any_future(integer: Integer, block_size: int) -> tuple[Rows, Rows, list[Truth]]:
    """Rows before and after, and what is given of the former: they have tokens."""
    before, after = _any_rows(integer, "row"), _any_rows(integer, "then")
    given = [implies(is_there(row), row.length >= 1) for row in before]
    return before, after, [block_size >= 1, integer("step") >= 1, *given]


def leaving_keeps_the_limit(integer: Integer, block_size: int) -> Statement:
    """A row less at no larger max-tkv."""
    before, after, given = _any_future(integer, block_size)
    step, limit = integer("step"), integer("limit")
    return Statement(
        given=[
            *given,
            stay_or_leave(before, after),
            keeps_limit(before, step, limit, block_size),
        ],
        claim=keeps_limit(after, step, limit, block_size),
    )


def decoding_keeps_the_limit(integer: Integer, block_size: int) -> Statement:
    """The step that was the next but one is the next."""
    before, after, given = _any_future(integer, block_size)
    step, limit = integer("step"), integer("limit")
    return Statement(
        given=[
            *given,
            go_on_or_leave(before, after),
            keeps_limit(before, step + 1, limit, block_size),
        ],
        claim=keeps_limit(after, step, limit, block_size),
    )


def order_is_of_no_matter(integer: Integer, block_size: int) -> Statement:
    """Wherever the candidate is put among the rows."""
    before, after, given = _any_future(integer, block_size)
    step, limit = integer("step"), integer("limit")
    return Statement(
        given=[*given, are_rotated(before, after), keeps_limit(before, step, limit, block_size)],
        claim=keeps_limit(after, step, limit, block_size),
    )


def _facts_of_an_end(rows: Rows, last: Member, step: Number, block_size: Number) -> Truth:
    """Of the rows that are there until this one's end, and a step until then.

    No step exceeds the peak (PRV-PEAK-1E, 1F), and a row of one token adds nothing to the rows
    that are there (PRV-TOC-3C).
    """
    lives = [(row.length, row.remaining) for row in rows]
    until = rows_until(lives, last.remaining)
    then = max_tkv([length + step for length in until], block_size)
    still = [select(row.remaining >= last.remaining, row.length + step, 1) for row in rows]
    no_higher = then <= peak_tkv(until, last.remaining, block_size)
    adds_nothing = max_tkv(still, block_size) <= then
    return implies(step <= last.remaining, every([no_higher, adds_nothing]))


@obligation(
    "PRV-TOC-3C",
    "A row of one token adds nothing to a batch: no other max-tkv, whatever rows are there.",
    bounds="every batch size (the longest and the furthest row stand for it), every block size",
    rules=["SPY-TKV-2"],
)
def one_token_adds_nothing(integer: Integer) -> Statement:
    """It is in the first block, at its first place."""
    longest, furthest = integer("longest"), integer("furthest")
    block_size, batch = integer("block_size"), [longest, furthest]
    return Statement(
        given=[block_size >= 1, longest >= 1, furthest >= 1],
        claim=max_tkv([*batch, 1], block_size) == max_tkv(batch, block_size),
    )


def admission_keeps_the_limit(integer: Integer, block_size: int) -> Statement:
    """Whoever is there at the first end from that step on, is there in the step."""
    *batch, candidate = _any_rows(integer, "row")
    step, limit = integer("step"), integer("limit")
    joined = with_joined(batch, candidate)
    return Statement(
        given=[
            step >= 1,
            *(row.length >= 1 for row in joined),
            exact_volume_holds(batch, candidate, limit, block_size),
        ],
        known=[_facts_of_an_end(joined, last, step, block_size) for last in joined],
        claim=keeps_limit(joined, step, limit, block_size),
    )


def the_next_step_keeps_the_limit(
    integer: Integer, block_size: int, chunk_size: int, machine: Machine = MACHINE
) -> Statement:
    """Its volume is that of the first of the steps to come."""
    scene = any_scene(integer, block_size, chunk_size, any_rule(integer))
    limit, rows = scene.setting.limit, rows_of(scene, scene.situation)
    move = machine.step(scene.setting, scene.clients, scene.situation)
    return Statement(
        given=[*consistent(scene, scene.situation), keeps_limit(rows, 1, limit, block_size)],
        claim=move.volume <= limit,
    )


_ROWS = f"every batch of {REQUESTS} rows, all lengths and limits, every future step"
_RULES = ["SPY-VOL-1", "SPY-VOL-4"]

for _letter, (_block, _chunk) in zip("AB", SIZES, strict=True):
    for _number, (_of_machine, _sentence) in enumerate(
        (
            (clients_leave_with_their_rows, "Clients that leave take their row along, no more."),
            (rows_decode_together, "In a decode step every row is one token further, or leaves."),
            (rows_wait_for_a_chunk, "Where nobody joins, a chunk leaves all rows as they are."),
            (
                only_the_admitted_join,
                "Whoever joins the batch is the candidate that the rule was asked about and has "
                "admitted, next to the rows that it was asked about.",
            ),
        ),
        start=1,
    ):
        obligation(
            f"PRV-TOC-1{_letter}{_number}",
            _sentence,
            bounds=f"{ANY_STEP}, whatever the rule decides; block {_block}, chunk {_chunk}",
            rules=_RULES,
        )(partial(_of_machine, block_size=_block, chunk_size=_chunk))
    for _name, _of_rows, _sentence in (
        (
            f"PRV-TOC-2{_letter}1",
            leaving_keeps_the_limit,
            "If no future step exceeds the limit, none does after some rows have left.",
        ),
        (
            f"PRV-TOC-2{_letter}2",
            decoding_keeps_the_limit,
            "If no future step exceeds the limit, none does after a decode step, whoever leaves.",
        ),
        (
            f"PRV-TOC-2{_letter}3",
            order_is_of_no_matter,
            "Whether a future step exceeds the limit does not depend on the order of the rows.",
        ),
        (
            f"PRV-TOC-3{_letter}",
            admission_keeps_the_limit,
            "If `exact` admits a candidate, no future step of the batch exceeds the limit.",
        ),
    ):
        obligation(_name, _sentence, bounds=f"{_ROWS}; block {_block}", rules=_RULES)(
            partial(_of_rows, block_size=_block)
        )
    obligation(
        f"PRV-TOC-4{_letter}",
        "If no future step of the batch exceeds the limit, the next step of the machine does not.",
        bounds=f"{ANY_STEP}, whatever the rule decides; block {_block}, chunk {_chunk}",
        rules=_RULES,
    )(partial(the_next_step_keeps_the_limit, block_size=_block, chunk_size=_chunk))
