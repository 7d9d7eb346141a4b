"""The symbolic machine: a scheduler step as a function from terms to terms.

What the reference decides by looking into queues is decided here for every request at once, by
conditions, for a fixed number of requests. All lengths and limits come out of the formulas of
`spec.spyre.padding` and `spec.spyre.admission`, so this module encodes the priorities and the
phases only. Given integers it computes; that it then does what the reference does is tested,
transition by transition, and so is that its terms say the same.
"""

from collections.abc import Sequence

from attrs import evolve, frozen

from checks.proofs.spyre.machine import (
    ABSENT,
    DECODING,
    GONE,
    PREFILLING,
    WAITING,
    Client,
    Machine,
    Move,
    Place,
    Setting,
    Situation,
    count,
    outsider,
)
from spec.core.arithmetic import Number, Truth, every, negate, select, some
from spec.spyre.admission import Member
from spec.spyre.padding import active_chunk, chunk_count, chunk_end, left_padding, max_tkv, volume

# --- between two steps --------------------------------------------------------------------------


def between(clients: Sequence[Client], situation: Situation, index: Number) -> Situation:
    """Whoever is due before step `index` arrives, then whoever goes away before it leaves."""
    placed = zip(clients, situation.places, strict=True)
    places = tuple(_left(client, _arrived(client, place, index), index) for client, place in placed)
    return evolve(situation, places=places)


def _arrived(client: Client, place: Place, index: Number) -> Place:
    arrives = every([place.phase == ABSENT, client.arrival <= index])
    return evolve(place, phase=select(arrives, WAITING, place.phase))


def _left(client: Client, place: Place, index: Number) -> Place:
    return _gone_if(client.abort_at <= index, place)


def _gone_if(leaves: Truth, place: Place) -> Place:
    """Whoever leaves takes its tokens along."""
    return Place(
        phase=select(leaves, GONE, place.phase),
        computed=select(leaves, 0, place.computed),
        generated=select(leaves, 0, place.generated),
    )


# --- who has the next chunk ---------------------------------------------------------------------


@frozen
class _Turn:
    """The request that is looked at for a prefill, if there is one, and its next chunk.

    `of`: of every request, whether it is the one. `end`: tokens computed after the chunk.
    """

    exists: Truth
    of: Sequence[Truth]
    is_first: Truth
    is_last: Truth
    end: Number
    member: Member


def _turn(setting: Setting, clients: Sequence[Client], situation: Situation) -> _Turn:
    """The prefill in progress, else the head of the queue: the first that waits."""
    waiting, prefilling = situation.are(WAITING), situation.are(PREFILLING)
    is_first = negate(some(prefilling))
    of = [
        some([prefilling[index], every([is_first, waits, negate(some(waiting[:index]))])])
        for index, waits in enumerate(waiting)
    ]
    prompt_len = _picked(of, [client.prompt_len for client in clients])
    computed = _picked(of, [place.computed for place in situation.places])
    padding = left_padding(prompt_len, setting.block_size, setting.chunk_size)
    chunk = active_chunk(computed, padding, setting.chunk_size)
    return _Turn(
        exists=some([*waiting, *prefilling]),
        of=of,
        is_first=is_first,
        is_last=chunk == chunk_count(prompt_len, setting.chunk_size) - 1,
        end=chunk_end(chunk, padding, setting.chunk_size, prompt_len),
        member=Member(prompt_len, _picked(of, [client.max_tokens for client in clients])),
    )


def _picked(turns: Sequence[Truth], values: Sequence[Number]) -> Number:
    """The value of the request whose turn it is; if it is nobody's, that of the last."""
    *others, picked = values
    for turn, value in zip(turns, others, strict=False):
        picked = select(turn, value, picked)
    return picked


# --- may it have it -----------------------------------------------------------------------------


def _others(turns: Sequence[Truth], rows: Sequence[Member]) -> list[Member]:
    """The rows without that of the request whose turn it is, in order; never the last's if none."""

    def shifted(index: int) -> Member:
        before, after = rows[index], rows[index + 1]
        is_behind = some(turns[: index + 1])
        return Member(
            select(is_behind, after.length, before.length),
            select(is_behind, after.remaining, before.remaining),
        )

    return [shifted(index) for index in range(len(rows) - 1)]


def _batch(
    setting: Setting, clients: Sequence[Client], situation: Situation, turn: _Turn
) -> list[Member]:
    """The decode batch, as the admission rule is given it: one member per other request."""
    absent = outsider(turn.member, setting)
    rows = [
        Member(
            select(place.phase == DECODING, place.computed, absent.length),
            select(place.phase == DECODING, client.max_tokens - place.generated, absent.remaining),
        )
        for client, place in zip(clients, situation.places, strict=True)
    ]
    return _others(turn.of, rows)


def refused(setting: Setting, situation: Situation, turn: _Turn, batch: Sequence[Member]) -> Truth:
    """Some rule keeps the request from its next chunk: interleaving, slots, admission."""
    decoding, prefilling = situation.are(DECODING), situation.are(PREFILLING)
    running = count([*decoding, *prefilling])
    full = count(decoding) >= setting.max_num_seqs
    may_join = every([negate(full), setting.rule(setting, batch, turn.member, situation.last_tkv)])
    is_judged = turn.is_first if setting.judged_first else turn.is_last
    return some(
        [
            every([setting.interleave, situation.prefilled, some(decoding)]),
            every([turn.is_first, running >= setting.max_num_seqs]),
            every([is_judged, negate(may_join)]),
        ]
    )


# --- the step -----------------------------------------------------------------------------------


def step(setting: Setting, clients: Sequence[Client], situation: Situation) -> Move:
    """A chunk of one request if somebody may have it, else one token of every row, else idle."""
    decoding, places = situation.are(DECODING), situation.places
    turn = _turn(setting, clients, situation)
    batch = _batch(setting, clients, situation, turn)
    is_prefill = every([turn.exists, negate(refused(setting, situation, turn, batch))])
    is_decode = every([negate(is_prefill), some(decoding)])
    after = [
        _after(client, place, every([is_prefill, its_turn]), every([is_decode, decodes]), turn)
        for client, place, its_turn, decodes in zip(clients, places, turn.of, decoding, strict=True)
    ]
    of_prefill, of_decode = turn.member.length, decode_tkv(setting, situation)
    tkv = select(is_prefill, of_prefill, select(is_decode, of_decode, 0))
    of_batch = select(is_decode, volume(count(decoding), of_decode), 0)
    return Move(
        after=Situation(tuple(after), prefilled=is_prefill, last_tkv=tkv),
        is_prefill=is_prefill,
        is_decode=is_decode,
        tkv=tkv,
        volume=select(is_prefill, volume(1, of_prefill), of_batch),
    )


def decode_tkv(setting: Setting, situation: Situation) -> Number:
    """Max-tkv of the decode batch's next step, if there is a row.

    Whoever is not in the batch is given one token: it is never the widest, nor reaches furthest.
    """
    lengths = [select(place.phase == DECODING, place.computed + 1, 1) for place in situation.places]
    return max_tkv(lengths, setting.block_size)


def _after(client: Client, place: Place, prefills: Truth, decodes: Truth, turn: _Turn) -> Place:
    """One request's place after the step; it leaves when it has all its tokens."""
    joins = every([prefills, turn.is_last])
    samples = some([joins, decodes])
    generated = place.generated + select(samples, 1, 0)
    own = select(turn.is_last, DECODING, PREFILLING)
    moved = Place(
        phase=select(prefills, own, place.phase),
        computed=select(prefills, turn.end, place.computed + select(decodes, 1, 0)),
        generated=generated,
    )
    return _gone_if(every([samples, generated >= client.output_len]), moved)


MACHINE = Machine(between=between, step=step)
