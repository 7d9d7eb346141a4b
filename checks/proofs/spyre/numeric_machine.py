"""The numeric machine: a step of the Spyre scheduler as a function from numbers to numbers.

It is the scheduler without prefix caching, with enough blocks and without pausing, first come first
served. What the reference decides by looking into queues is decided here for every request at once,
by conditions, for a fixed number of requests. All lengths and limits come out of the formulas of
`spec.spyre.padding` and the conditions of `spec.spyre.variants`, so this module encodes the
priorities and the phases only. Given integers it computes, given solver terms it yields terms.

`checks.proofs.spyre.agreement` holds it to the reference, transition by transition.
"""

from collections.abc import Callable, Sequence

from attrs import frozen

from spec.core.arithmetic import Number, Truth, every, negate, select, some
from spec.spyre.admission import Member
from spec.spyre.padding import active_chunk, chunk_count, chunk_end, left_padding, max_tkv, volume
from spec.spyre.variants import ADMISSIONS, Admission, Joining

ABSENT, WAITING, PREFILLING, DECODING, GONE = range(5)  # phases of a request, in this order
NEVER = 10**9  # a step that no run reaches


def count(conditions: Sequence[Truth]) -> Number:
    """How many of the conditions hold."""
    return sum(select(condition, 1, 0) for condition in conditions)


@frozen
class Client:
    """What a client asks for and when it comes and goes; lengths in tokens.

    It samples the end of sequence as token `output_len`, arrives before step `arrival` and goes
    away before step `abort_at`.
    """

    prompt_len: Number
    max_tokens: Number
    output_len: Number
    arrival: Number
    abort_at: Number = NEVER


@frozen
class RequestState:
    """A request's phase, and its tokens computed and generated; none unless it was admitted."""

    phase: Number
    computed: Number
    generated: Number


@frozen
class SchedulerState:
    """A scheduler at rest: the state of every client's request, in order of arrival.

    `prefilled`: the step before was a prefill. `last_tkv`: what that step returned, in tokens.
    """

    requests: tuple[RequestState, ...]
    prefilled: Truth
    last_tkv: Number

    def are(self, phase: int) -> list[Truth]:
        """Of every request, whether it is in this phase."""
        return [one.phase == phase for one in self.requests]


def at_the_start(clients: Sequence[object]) -> SchedulerState:
    """The state before any request has arrived."""
    absent = tuple(RequestState(ABSENT, 0, 0) for _ in clients)
    return SchedulerState(absent, prefilled=False, last_tkv=0)


Rule = Callable[["Setting", Sequence[Member], Member, Number], Truth]


@frozen
class Setting:
    """The configuration, as far as the machine looks at it; lengths in tokens.

    `rule`: may the candidate join the batch, given what the step before returned as tkv? It is
    asked with one row per other request, an `outsider` for each that is not decoding.
    `judged_first`: the last-chunk conditions are judged once, before the first chunk, as 2.6.3
    does with interleaving off.
    """

    block_size: int
    chunk_size: int
    interleave: Truth
    limit: Number
    max_num_seqs: Number
    max_model_len: Number
    rule: Rule
    judged_first: bool = False


@frozen
class StepResult:
    """A step's outcome: its kind, its tkv and volume in tokens; it was idle if of neither kind."""

    after: SchedulerState
    is_prefill: Truth
    is_decode: Truth
    tkv: Number
    volume: Number


# --- admission rules ----------------------------------------------------------------------------


def rule_of(admission: Admission) -> Rule:
    """The rule of a variant: all of its conditions hold."""

    def holds(
        setting: Setting, batch: Sequence[Member], candidate: Member, last_tkv: Number
    ) -> Truth:
        joining = Joining(
            decoding=batch,
            candidate=candidate,
            limit=setting.limit,
            max_model_len=setting.max_model_len,
            block_size=setting.block_size,
            last_tkv=last_tkv,
        )
        first, *others = (one.holds(joining) for one in ADMISSIONS[admission].conditions)
        return every([first, *others]) if others else first

    return holds


def outsider(candidate: Member, setting: Setting) -> Member:
    """A member that changes no admission: as long as the candidate, gone since long ago.

    It stands for a row that is not in the batch, where a list needs a fixed number of rows. No
    tkv exceeds the model length by a block, and no rule adds more than three.
    """
    return Member(candidate.length, -(setting.max_model_len + 4 * setting.block_size))


# --- between two steps --------------------------------------------------------------------------


def between(clients: Sequence[Client], state: SchedulerState, index: Number) -> SchedulerState:
    """The state in which step `index` begins: requests that are due arrive, then aborts happen."""

    def changed(client: Client, request: RequestState) -> RequestState:
        arrives = every([request.phase == ABSENT, client.arrival <= index])
        phase = select(arrives, WAITING, request.phase)
        arrived = RequestState(phase, request.computed, request.generated)
        return _gone_if(client.abort_at <= index, arrived)

    requests = tuple(map(changed, clients, state.requests))
    return SchedulerState(requests, state.prefilled, state.last_tkv)


def _gone_if(leaves: Truth, request: RequestState) -> RequestState:
    """A request that leaves takes its tokens along."""
    return RequestState(
        phase=select(leaves, GONE, request.phase),
        computed=select(leaves, 0, request.computed),
        generated=select(leaves, 0, request.generated),
    )


# --- the next chunk -----------------------------------------------------------------------------


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


def _turn(setting: Setting, clients: Sequence[Client], state: SchedulerState) -> _Turn:
    """The prefill in progress, else the head of the queue: the first that waits."""
    waiting, prefilling = state.are(WAITING), state.are(PREFILLING)
    is_first = negate(some(prefilling))
    of = [
        some([prefilling[index], every([is_first, waits, negate(some(waiting[:index]))])])
        for index, waits in enumerate(waiting)
    ]
    prompt_len = _picked(of, [client.prompt_len for client in clients])
    computed = _picked(of, [request.computed for request in state.requests])
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
    """The value of the request whose turn it is; if there is none, that of the last."""
    *others, picked = values
    for turn, value in zip(turns, others, strict=False):
        picked = select(turn, value, picked)
    return picked


# --- may it be computed -------------------------------------------------------------------------


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
    setting: Setting, clients: Sequence[Client], state: SchedulerState, turn: _Turn
) -> list[Member]:
    """The decode batch, as the admission rule is given it: one member per other request."""
    absent = outsider(turn.member, setting)

    def row(client: Client, request: RequestState) -> Member:
        decodes, remaining = request.phase == DECODING, client.max_tokens - request.generated
        return Member(
            select(decodes, request.computed, absent.length),
            select(decodes, remaining, absent.remaining),
        )

    return _others(turn.of, list(map(row, clients, state.requests)))


def _is_refused(
    setting: Setting, state: SchedulerState, turn: _Turn, batch: Sequence[Member]
) -> Truth:
    """Some rule keeps the request from its next chunk: interleaving, slots, admission."""
    decoding, prefilling = state.are(DECODING), state.are(PREFILLING)
    running = count([*decoding, *prefilling])
    full = count(decoding) >= setting.max_num_seqs
    may_join = every([negate(full), setting.rule(setting, batch, turn.member, state.last_tkv)])
    is_judged = turn.is_first if setting.judged_first else turn.is_last
    return some(
        [
            every([setting.interleave, state.prefilled, some(decoding)]),
            every([turn.is_first, running >= setting.max_num_seqs]),
            every([is_judged, negate(may_join)]),
        ]
    )


# --- the step -----------------------------------------------------------------------------------


def step(setting: Setting, clients: Sequence[Client], state: SchedulerState) -> StepResult:
    """A chunk of one request if a rule allows it, else one token of every row, else idle."""
    decoding = state.are(DECODING)
    turn = _turn(setting, clients, state)
    batch = _batch(setting, clients, state, turn)
    is_prefill = every([turn.exists, negate(_is_refused(setting, state, turn, batch))])
    is_decode = every([negate(is_prefill), some(decoding)])
    after = [
        _after(client, request, every([is_prefill, of_it]), every([is_decode, decodes]), turn)
        for client, request, of_it, decodes in zip(
            clients, state.requests, turn.of, decoding, strict=True
        )
    ]
    of_prefill, of_decode = turn.member.length, _decode_tkv(setting, state)
    tkv = select(is_prefill, of_prefill, select(is_decode, of_decode, 0))
    of_batch = select(is_decode, volume(count(decoding), of_decode), 0)
    return StepResult(
        after=SchedulerState(tuple(after), prefilled=is_prefill, last_tkv=tkv),
        is_prefill=is_prefill,
        is_decode=is_decode,
        tkv=tkv,
        volume=select(is_prefill, volume(1, of_prefill), of_batch),
    )


def _decode_tkv(setting: Setting, state: SchedulerState) -> Number:
    """Max-tkv of the decode batch's next step, if there is a row.

    A request outside the batch is given one token: it is never the widest, nor reaches furthest.
    """
    lengths = [select(one.phase == DECODING, one.computed + 1, 1) for one in state.requests]
    return max_tkv(lengths, setting.block_size)


def _after(
    client: Client, request: RequestState, prefills: Truth, decodes: Truth, turn: _Turn
) -> RequestState:
    """One request after the step; it leaves when it has all its tokens."""
    joins = every([prefills, turn.is_last])
    samples = some([joins, decodes])
    generated = request.generated + select(samples, 1, 0)
    phase = select(turn.is_last, DECODING, PREFILLING)
    advanced = RequestState(
        phase=select(prefills, phase, request.phase),
        computed=select(prefills, turn.end, request.computed + select(decodes, 1, 0)),
        generated=generated,
    )
    return _gone_if(every([samples, generated >= client.output_len]), advanced)
