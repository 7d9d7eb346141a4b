"""Obligations about every step of the machine: what it keeps, whatever came before.

The situation before the step is any that the invariant allows, so what is kept by a step and by
what happens between two steps, and true at the start, is true for ever. There are three requests;
fewer are covered, since a request need never arrive. Lengths, limits, slots, arrivals, early ends
and aborts are numbers of any size. What is kept about volume stands in
`checks.proofs.spyre.to_come`; that reservation keeps its promises is proven for any number of
requests in PRV-RES-1 to 5.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations, pairwise

from attrs import frozen

from checks.proofs.registry import Integer, Statement, obligation
from checks.proofs.spyre.machine import (
    ABSENT,
    DECODING,
    GONE,
    PREFILLING,
    WAITING,
    Client,
    Machine,
    Place,
    Rule,
    Setting,
    Situation,
    count,
    documented,
    exact,
    nobody_yet,
    shipped,
)
from checks.proofs.spyre.symbolic import MACHINE
from spec.core.arithmetic import Number, Truth, every, implies, negate, round_up, some
from spec.spyre.padding import left_padding

REQUESTS = 3
SIZES = ((64, 512), (2, 4))  # tokens of block and chunk; the first are the product's

# --- any situation ------------------------------------------------------------------------------


@frozen
class Scene:
    """A scheduler at rest, its clients and its setting."""

    setting: Setting
    clients: tuple[Client, ...]
    situation: Situation


def any_scene(
    integer: Integer,
    block_size: Number,
    chunk_size: Number,
    rule: Rule,
    judged_first: bool = False,
) -> Scene:
    """Three requests anywhere, any limits."""
    setting = Setting(
        block_size=block_size,
        chunk_size=chunk_size,
        interleave=integer("interleave") == 1,
        limit=integer("limit"),
        max_num_seqs=integer("max_num_seqs"),
        max_model_len=integer("max_model_len"),
        rule=rule,
        judged_first=judged_first,
    )
    return Scene(setting, any_clients(integer), any_situation(integer))


def any_clients(integer: Integer) -> tuple[Client, ...]:
    """Three clients."""
    return tuple(
        Client(
            prompt_len=integer(f"prompt_len_{index}"),
            max_tokens=integer(f"max_tokens_{index}"),
            output_len=integer(f"output_len_{index}"),
            arrival=integer(f"arrival_{index}"),
            abort_at=integer(f"abort_at_{index}"),
        )
        for index in range(REQUESTS)
    )


def any_situation(integer: Integer) -> Situation:
    """Three places and what is kept of the step before."""
    places = tuple(
        Place(
            phase=integer(f"phase_{index}"),
            computed=integer(f"computed_{index}"),
            generated=integer(f"generated_{index}"),
        )
        for index in range(REQUESTS)
    )
    return Situation(places, integer("prefilled") == 1, integer("last_tkv"))


def any_rule(integer: Integer) -> Rule:
    """An admission rule that decides as it likes."""
    return lambda _setting, _batch, _candidate, _last_tkv: integer("admits") == 1


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
    """There is a slot, and everybody could be served alone."""
    servables = [servable(setting, one) for one in clients]
    return [setting.max_num_seqs >= 1, *in_order_of_arrival(clients), *servables]


def has_a_phase(place: Place) -> Truth:
    """The request is in one of the five phases."""
    return every([place.phase >= ABSENT, place.phase <= GONE])


def tokens_fit_the_phase(setting: Setting, client: Client, place: Place) -> Truth:
    """Whole chunks are computed in a prefill, all but the last sampled token in the batch."""
    computed, generated = place.computed, place.generated
    padding = left_padding(client.prompt_len, setting.block_size, setting.chunk_size)
    prefilling, decoding = place.phase == PREFILLING, place.phase == DECODING
    nothing_yet = every([computed == 0, generated == 0])
    chunks = [computed > 0, computed < client.prompt_len, generated == 0]
    rows = [generated >= 1, generated < client.output_len]
    return every(
        [
            has_a_phase(place),
            some([prefilling, decoding, nothing_yet]),
            implies(prefilling, every([*chunks, (padding + computed) % setting.chunk_size == 0])),
            implies(decoding, every([*rows, computed == client.prompt_len + generated - 1])),
        ]
    )


def queue_is_in_order(situation: Situation) -> Truth:
    """Nobody has come before an earlier client, nobody who waits was overtaken."""

    def behind(earlier: Place, later: Place) -> Truth:
        come, admitted = later.phase >= WAITING, later.phase >= PREFILLING
        left = later.phase == GONE
        return every(
            [
                implies(earlier.phase == ABSENT, some([negate(come), left])),
                implies(earlier.phase == WAITING, some([negate(admitted), left])),
            ]
        )

    pairs = combinations(situation.places, 2)
    return every(behind(earlier, later) for earlier, later in pairs)


def at_most_one_prefill(situation: Situation) -> Truth:
    """The prefill slot is one slot."""
    return count(situation.are(PREFILLING)) <= 1


def slots_suffice(setting: Setting, situation: Situation) -> Truth:
    """Prefill and batch take no more slots than there are."""
    running = [*situation.are(PREFILLING), *situation.are(DECODING)]
    return count(running) <= setting.max_num_seqs


def all_tokens_fit(scene: Scene, situation: Situation) -> Truth:
    """`tokens_fit_the_phase` of everybody."""
    placed = zip(scene.clients, situation.places, strict=True)
    return every(tokens_fit_the_phase(scene.setting, client, place) for client, place in placed)


def last_tkv_is_bounded(setting: Setting, situation: Situation) -> Truth:
    """What the step before returned is no more than the whole blocks of a longest request."""
    most = round_up(setting.max_model_len, setting.block_size)
    return every([situation.last_tkv >= 0, situation.last_tkv <= most])


def consistent(scene: Scene, situation: Situation) -> list[Truth]:
    """Everything that is always true of the places."""
    return [
        *clients_are_servable(scene.setting, scene.clients),
        at_most_one_prefill(situation),
        queue_is_in_order(situation),
        slots_suffice(scene.setting, situation),
        all_tokens_fit(scene, situation),
        last_tkv_is_bounded(scene.setting, situation),
    ]


# --- obligations ---------------------------------------------------------------------------------

ANY_STEP = "every step of 3 requests, all lengths, limits, arrivals, early ends and aborts"
_ANY_RULE = f"{ANY_STEP}, whatever the admission rule decides"


def what_follows(scene: Scene, integer: Integer, machine: Machine) -> list[Situation]:
    """The situation after arrivals and aborts, and the one after a step."""
    move = machine.step(scene.setting, scene.clients, scene.situation)
    return [machine.between(scene.clients, scene.situation, integer("index")), move.after]


def _any_sizes(integer: Integer) -> tuple[Scene, list[Truth]]:
    """Any block and chunk, any admission rule; the sizes are one or more."""
    block_size, chunk_size = integer("block_size"), integer("chunk_size")
    scene = any_scene(integer, block_size, chunk_size, any_rule(integer))
    return scene, [block_size >= 1, chunk_size >= 1]


def _kept(
    scene: Scene,
    holds: Callable[[Situation], Truth],
    given: Sequence[Truth],
    following: Sequence[Situation],
) -> Statement:
    """What holds of the situation, and is given, holds of what follows."""
    return Statement(
        given=[holds(scene.situation), *given], claim=every(holds(one) for one in following)
    )


@obligation(
    "PRV-MAC-1",
    "There is never more than one prefill at a time.",
    bounds=f"{_ANY_RULE}, every block and chunk",
    rules=["SPY-PRI-1", "SPY-ADM-2"],
)
def one_prefill_is_kept(integer: Integer, machine: Machine = MACHINE) -> Statement:
    """Inductive alone."""
    scene, given = _any_sizes(integer)
    return _kept(scene, at_most_one_prefill, given, what_follows(scene, integer, machine))


@obligation(
    "PRV-MAC-2",
    "With interleaving no two prefill steps follow each other while requests decode.",
    bounds=f"{_ANY_RULE}, every block and chunk",
    rules=["SPY-PRI-3"],
)
def prefills_are_interleaved(integer: Integer, machine: Machine = MACHINE) -> Statement:
    """And what is remembered of the step before is whether it was a prefill, whoever comes."""
    scene, given = _any_sizes(integer)
    before = machine.between(scene.clients, scene.situation, integer("index"))
    move = machine.step(scene.setting, scene.clients, before)
    waits = [scene.setting.interleave, scene.situation.prefilled, some(before.are(DECODING))]
    remembered = move.after.prefilled == move.is_prefill
    return Statement(
        given=given, claim=every([implies(every(waits), negate(move.is_prefill)), remembered])
    )


@obligation(
    "PRV-MAC-3",
    "Prefill and batch never take more slots than there are.",
    bounds=f"{_ANY_RULE}, every block and chunk",
    rules=["SPY-ADM-1", "SPY-ADM-3"],
)
def slots_are_kept(integer: Integer, machine: Machine = MACHINE) -> Statement:
    """Inductive with the one prefill of PRV-MAC-1."""
    scene, given = _any_sizes(integer)
    return _kept(
        scene,
        lambda situation: slots_suffice(scene.setting, situation),
        [*given, at_most_one_prefill(scene.situation)],
        what_follows(scene, integer, machine),
    )


@obligation(
    "PRV-MAC-4",
    "Requests are admitted in the order of their arrival: nobody who waits is overtaken.",
    bounds=f"{_ANY_RULE}, every block and chunk",
    rules=["SPY-PRI-5", "SPY-PRI-2"],
)
def order_of_arrival_is_kept(integer: Integer, machine: Machine = MACHINE) -> Statement:
    """Inductive with the phases and the one prefill."""
    scene, given = _any_sizes(integer)
    given += [at_most_one_prefill(scene.situation), *in_order_of_arrival(scene.clients)]
    phases = [has_a_phase(place) for place in scene.situation.places]
    following = what_follows(scene, integer, machine)
    return _kept(scene, queue_is_in_order, [*given, *phases], following)


def tokens_keep_fitting(
    integer: Integer, block_size: int, chunk_size: int, who: int, machine: Machine = MACHINE
) -> Statement:
    """Inductive with all the invariants before; one request at a time, that is less to solve."""
    scene = any_scene(integer, block_size, chunk_size, any_rule(integer))
    client, following = scene.clients[who], what_follows(scene, integer, machine)
    return Statement(
        given=consistent(scene, scene.situation),
        claim=every(
            tokens_fit_the_phase(scene.setting, client, one.places[who]) for one in following
        ),
    )


def tkv_stays_bounded(
    integer: Integer, block_size: int, chunk_size: int, machine: Machine = MACHINE
) -> Statement:
    """What the invariants before say of the tokens is enough."""
    scene = any_scene(integer, block_size, chunk_size, any_rule(integer))
    following = what_follows(scene, integer, machine)
    return Statement(
        given=consistent(scene, scene.situation),
        claim=every(last_tkv_is_bounded(scene.setting, one) for one in following),
    )


def true_at_the_start(integer: Integer, block_size: int, chunk_size: int) -> Statement:
    """So whatever a step and the clients keep is true for ever."""
    scene = any_scene(integer, block_size, chunk_size, any_rule(integer))
    return Statement(
        given=clients_are_servable(scene.setting, scene.clients),
        claim=every(consistent(scene, nobody_yet(scene.clients))),
    )


def no_step_is_idle(
    integer: Integer,
    block_size: int,
    chunk_size: int,
    rule: Rule,
    judged_first: bool = False,
    machine: Machine = MACHINE,
) -> Statement:
    """Whoever is alone is never refused: nobody waits for ever for a step."""
    scene = any_scene(integer, block_size, chunk_size, rule, judged_first)
    move = machine.step(scene.setting, scene.clients, scene.situation)
    phases = (WAITING, PREFILLING, DECODING)
    pending = some(one for phase in phases for one in scene.situation.are(phase))
    return Statement(
        given=consistent(scene, scene.situation),
        claim=implies(pending, some([move.is_prefill, move.is_decode])),
    )


_JUDGES: tuple[tuple[str, Rule, bool], ...] = (
    ("exact", exact, False),
    ("documented", documented, False),
    ("shipped", shipped, False),
    ("shipped, judged before the first chunk as with interleaving off", shipped, True),
)

for _letter, (_block, _chunk) in zip("AB", SIZES, strict=True):
    _sizes = f"block {_block}, chunk {_chunk}"
    for _who in range(REQUESTS):
        obligation(
            f"PRV-MAC-5{_letter}{_who + 1}",
            f"The tokens of request {_who + 1} fit its phase: none before its admission, whole "
            "chunks in its prefill, all but the last sampled one in the batch.",
            bounds=f"{_ANY_RULE}; {_sizes}",
            rules=["SPY-CHK-1", "SPY-CHK-3", "SPY-CHK-4", "SPY-DEC-1", "LIF-3"],
        )(partial(tokens_keep_fitting, block_size=_block, chunk_size=_chunk, who=_who))
    obligation(
        f"PRV-MAC-6{_letter}",
        "No step's tkv exceeds the model length rounded up to a block, so none exceeds a model "
        "length that is whole blocks.",
        bounds=f"{_ANY_RULE}; {_sizes}",
        rules=["SPY-LEN-1", "SPY-TKV-2"],
    )(partial(tkv_stays_bounded, block_size=_block, chunk_size=_chunk))
    obligation(
        f"PRV-MAC-7{_letter}",
        "All that every step keeps (PRV-MAC-1 to 6) is true when nobody has arrived.",
        bounds=f"3 requests, all lengths, limits and arrivals; {_sizes}",
        rules=["LIF-1"],
    )(partial(true_at_the_start, block_size=_block, chunk_size=_chunk))
    for _number, (_name, _rule, _first) in enumerate(_JUDGES, start=1):
        obligation(
            f"PRV-MAC-8{_letter}{_number}",
            f"No step is idle while a request is pending (admission {_name}): whoever is alone is "
            "never refused.",
            bounds=f"{ANY_STEP}; {_sizes}",
            rules=["SPY-PRI-4"],
        )(
            partial(
                no_step_is_idle,
                block_size=_block,
                chunk_size=_chunk,
                rule=_rule,
                judged_first=_first,
            )
        )
