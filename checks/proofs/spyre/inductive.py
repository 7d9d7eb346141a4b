"""Obligations about every step of the machine: what it keeps, whatever came before.

The state before the step is any that the invariant allows, so what is kept by a step and by what
happens between two steps, and true at the start, is true for ever. There are three requests; fewer
are covered, since a request need never arrive. Lengths, limits, slots, arrivals, early ends and
aborts are numbers of any size. What is kept about volume stands in
`checks.proofs.spyre.future_steps`; that reservation keeps its promises is proven for any number of
requests in PRV-RES-1 to 5.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations, pairwise
from typing import Self, TypeVar

from attrs import fields, frozen

from checks.proofs.registry import Integer, Positive, Statement
from checks.proofs.spyre.agreement import OF_NUMERIC_MACHINE, of_machine
from checks.proofs.spyre.numeric_machine import (
    ABSENT,
    DECODING,
    GONE,
    PREFILLING,
    WAITING,
    Client,
    RequestState,
    Rule,
    SchedulerState,
    Setting,
    StepResult,
    at_the_start,
    between,
    count,
    rule_of,
    step,
)
from spec.core.arithmetic import Truth, every, implies, negate, round_up, some
from spec.spyre.padding import left_padding
from spec.spyre.variants import ADMISSIONS, Admission

REQUESTS = 3
SIZES = {"A": (64, 512), "B": (2, 4)}  # tokens of block and chunk; the first are the product's

RecordT = TypeVar("RecordT", Client, RequestState)

# --- any state ----------------------------------------------------------------------------------


@frozen
class Scene:
    """A scheduler at rest, its clients and its setting; all but the sizes may be anything."""

    setting: Setting
    clients: tuple[Client, ...]
    state: SchedulerState
    integer: Integer

    @classmethod
    def drawn(
        cls,
        integer: Integer,
        block_size: Positive,
        chunk_size: Positive,
        rule: Rule | None = None,
        judged_first: bool = False,
    ) -> Self:
        """Three requests anywhere, any limits; without a rule one that decides as it likes."""
        setting = Setting(
            block_size=block_size,
            chunk_size=chunk_size,
            interleave=integer("interleave") == 1,
            limit=integer("limit"),
            max_num_seqs=integer("max_num_seqs"),
            max_model_len=integer("max_model_len"),
            rule=rule or (lambda *_: integer("admits") == 1),
            judged_first=judged_first,
        )
        clients, requests = any_clients(integer), _one_per_request(integer, RequestState)
        state = SchedulerState(requests, integer("prefilled") == 1, integer("last_tkv"))
        return cls(setting, clients, state, integer)

    def step(self) -> StepResult:
        """One scheduler step."""
        return step(self.setting, self.clients, self.state)

    def between(self) -> SchedulerState:
        """The state after arrivals and aborts before any step."""
        return between(self.clients, self.state, self.integer("index"))

    def following(self) -> list[SchedulerState]:
        """The state after arrivals and aborts, and the one after a step."""
        after = self.step().after
        return [self.between(), after]

    @property
    def consistent(self) -> list[Truth]:
        """Everything that is always true of the requests is true of the state."""
        return consistent(self, self.state)


def any_clients(integer: Integer) -> tuple[Client, ...]:
    """Three clients."""
    return _one_per_request(integer, Client)


def _one_per_request(integer: Integer, record: type[RecordT]) -> tuple[RecordT, ...]:
    """Records of integers named by their field and the request's place."""
    names = [field.name for field in fields(record)]
    return tuple(
        record(*(integer(f"{name}_{index}") for name in names)) for index in range(REQUESTS)
    )


# --- the invariant: what is true between any two steps ------------------------------------------


def servable(setting: Setting, client: Client) -> Truth:
    """Some scheduler could serve the client alone; it samples a token, and not too many."""
    total = client.prompt_len + client.max_tokens
    return every(
        [
            client.prompt_len >= 1,
            client.output_len >= 1,
            client.output_len <= client.max_tokens,
            total <= setting.max_model_len,
            total - 1 <= setting.limit,
        ]
    )


def in_order_of_arrival(clients: Sequence[Client]) -> list[Truth]:
    """The clients are numbered so."""
    return [one.arrival <= other.arrival for one, other in pairwise(clients)]


def clients_are_servable(setting: Setting, clients: Sequence[Client]) -> list[Truth]:
    """There is a slot, and every client could be served alone."""
    servables = [servable(setting, one) for one in clients]
    return [setting.max_num_seqs >= 1, *in_order_of_arrival(clients), *servables]


def has_a_phase(request: RequestState) -> Truth:
    """The request is in one of the five phases."""
    return every([request.phase >= ABSENT, request.phase <= GONE])


def tokens_fit_the_phase(setting: Setting, client: Client, request: RequestState) -> Truth:
    """Whole chunks are computed in a prefill, all but the last sampled token in the batch."""
    computed, generated = request.computed, request.generated
    padding = left_padding(client.prompt_len, setting.block_size, setting.chunk_size)
    prefilling, decoding = request.phase == PREFILLING, request.phase == DECODING
    nothing_yet = every([computed == 0, generated == 0])
    chunks = [computed > 0, computed < client.prompt_len, generated == 0]
    rows = [generated >= 1, generated < client.output_len]
    return every(
        [
            has_a_phase(request),
            some([prefilling, decoding, nothing_yet]),
            implies(prefilling, every([*chunks, (padding + computed) % setting.chunk_size == 0])),
            implies(decoding, every([*rows, computed == client.prompt_len + generated - 1])),
        ]
    )


def queue_is_in_order(state: SchedulerState) -> Truth:
    """No request has come before an earlier client's, none that waits was overtaken."""

    def behind(earlier: RequestState, later: RequestState) -> Truth:
        come, admitted = later.phase >= WAITING, later.phase >= PREFILLING
        left = later.phase == GONE
        return every(
            [
                implies(earlier.phase == ABSENT, some([negate(come), left])),
                implies(earlier.phase == WAITING, some([negate(admitted), left])),
            ]
        )

    return every(behind(*pair) for pair in combinations(state.requests, 2))


def at_most_one_prefill(state: SchedulerState) -> Truth:
    """The prefill slot is one slot."""
    return count(state.are(PREFILLING)) <= 1


def slots_suffice(setting: Setting, state: SchedulerState) -> Truth:
    """Prefill and batch take no more slots than there are."""
    running = [*state.are(PREFILLING), *state.are(DECODING)]
    return count(running) <= setting.max_num_seqs


def last_tkv_is_bounded(setting: Setting, state: SchedulerState) -> Truth:
    """What the step before returned is no more than the whole blocks of a longest request."""
    most = round_up(setting.max_model_len, setting.block_size)
    return every([state.last_tkv >= 0, state.last_tkv <= most])


def consistent(scene: Scene, state: SchedulerState) -> list[Truth]:
    """Everything that is always true of the requests."""
    of_clients = zip(scene.clients, state.requests, strict=True)
    return [
        *clients_are_servable(scene.setting, scene.clients),
        at_most_one_prefill(state),
        queue_is_in_order(state),
        slots_suffice(scene.setting, state),
        every(tokens_fit_the_phase(scene.setting, *one) for one in of_clients),
        last_tkv_is_bounded(scene.setting, state),
    ]


# --- obligations ---------------------------------------------------------------------------------

ANY_STEP = (
    "every step of 3 requests that are not paused, blocks enough, all lengths, limits, arrivals, "
    "early ends and aborts"
)
_ANY_RULE = f"{ANY_STEP}, whatever the admission rule decides"
_of_any_sizes = partial(of_machine, bounds=f"{_ANY_RULE}, every block and chunk")


def _kept(
    scene: Scene, holds: Callable[[SchedulerState], Truth], given: Sequence[Truth] = ()
) -> Statement:
    """What holds of the state, and is given, holds of what follows."""
    following = scene.following()
    return Statement([holds(one) for one in following], [holds(scene.state), *given])


@_of_any_sizes("PRV-MAC-1", rules=["SPY-PRI-1", "SPY-PRI-2", "SPY-ADM-2"])
def one_prefill_is_kept(scene: Scene) -> Statement:
    """There is never more than one prefill at a time."""
    return _kept(scene, at_most_one_prefill)


@_of_any_sizes("PRV-MAC-2", where=f"interleave=true, {OF_NUMERIC_MACHINE}", rules=["SPY-PRI-3"])
def prefills_are_interleaved(scene: Scene) -> Statement:
    """With interleaving no two prefill steps follow each other while requests decode."""
    # And what is remembered of the step before is whether it was a prefill, whatever arrives.
    before = scene.between()
    result = step(scene.setting, scene.clients, before)
    waits = [scene.setting.interleave, scene.state.prefilled, some(before.are(DECODING))]
    remembered = result.after.prefilled == result.is_prefill
    return Statement([implies(every(waits), negate(result.is_prefill)), remembered])


@_of_any_sizes("PRV-MAC-3", rules=["SPY-ADM-1", "SPY-ADM-3"])
def slots_are_kept(scene: Scene) -> Statement:
    """Prefill and batch never take more slots than there are."""
    suffice = partial(slots_suffice, scene.setting)
    return _kept(scene, suffice, [at_most_one_prefill(scene.state)])  # PRV-MAC-1


@_of_any_sizes("PRV-MAC-4", rules=["SPY-PRI-5"])
def order_of_arrival_is_kept(scene: Scene) -> Statement:
    """Requests are admitted in the order of their arrival: no waiting request is overtaken."""
    given = [at_most_one_prefill(scene.state), *in_order_of_arrival(scene.clients)]
    phases = [has_a_phase(request) for request in scene.state.requests]
    return _kept(scene, queue_is_in_order, [*given, *phases])


def tokens_keep_fitting(scene: Scene, index: int) -> Statement:
    """The tokens of request {number} fit its phase: none before its admission, whole chunks in its
    prefill, all but the last sampled one in the batch.
    """
    # Inductive with all the invariants before; one request at a time, that is less to solve.
    client = scene.clients[index]
    following = [state.requests[index] for state in scene.following()]
    fit = [tokens_fit_the_phase(scene.setting, client, request) for request in following]
    return Statement(fit, scene.consistent)


def tkv_stays_bounded(scene: Scene) -> Statement:
    """No step's tkv exceeds the model length rounded up to a block, so none exceeds a model length
    that is whole blocks.
    """
    # What the invariants before say of the tokens is enough.
    bounded = [last_tkv_is_bounded(scene.setting, state) for state in scene.following()]
    return Statement(bounded, scene.consistent)


def true_at_the_start(scene: Scene) -> Statement:
    """All that every step keeps (PRV-MAC-1 to 6) is true when no request has arrived."""
    # So whatever a step and the clients keep is true for ever.
    claim = consistent(scene, at_the_start(scene.clients))
    return Statement(claim, clients_are_servable(scene.setting, scene.clients))


def no_step_is_idle(scene: Scene) -> Statement:
    """No step is idle while a request is pending (admission {admission}): a request that is alone
    is never refused.
    """
    result = scene.step()
    phases = (WAITING, PREFILLING, DECODING)
    pending = some(one for phase in phases for one in scene.state.are(phase))
    runs = some([result.is_prefill, result.is_decode])
    return Statement(implies(pending, runs), scene.consistent)


_JUDGES = [
    {
        "rule": rule_of(one),
        "judged_first": first,
        "admission": f"{one}{words}",
        "variant": f"{one}, interleave={str(not first).lower()}"
        if ADMISSIONS[one].judged_once
        else str(one),
    }
    for first, words in (
        (False, ""),
        (True, ", judged before the first chunk as with interleaving off"),
    )
    for one in Admission
    if ADMISSIONS[one].judged_once or not first
]

for _letter, (_block, _chunk) in SIZES.items():
    _words = f"block {_block}, chunk {_chunk}"
    _of_sizes = partial(of_machine, block_size=_block, chunk_size=_chunk)
    for _index in range(REQUESTS):
        _of_sizes(
            f"PRV-MAC-5{_letter}{_index + 1}",
            bounds=f"{_ANY_RULE}; {_words}",
            rules=["SPY-CHK-4"],
            index=_index,
            number=_index + 1,
        )(tokens_keep_fitting)
    _of_sizes(
        f"PRV-MAC-6{_letter}",
        bounds=f"{_ANY_RULE}, model lengths of whole blocks; {_words}",
        rules=["SPY-LEN-1"],
    )(tkv_stays_bounded)
    _of_sizes(
        f"PRV-MAC-7{_letter}",
        bounds=f"3 requests, all lengths, limits and arrivals; {_words}",
        rules=[],
    )(true_at_the_start)
    for _number, _judge in enumerate(_JUDGES, start=1):
        _of_sizes(
            f"PRV-MAC-8{_letter}{_number}",
            where="admission={variant}, " + OF_NUMERIC_MACHINE,
            bounds=f"{ANY_STEP}; {_words}",
            rules=["SPY-PRI-4"],
            **_judge,
        )(no_step_is_idle)
