"""Rules of prefix caching: what is hashed, what a hit finds, and what the text says it saves.

Source: nano-vllm, chapter 7.
"""

from collections.abc import Iterator
from itertools import takewhile
from typing import TypeAlias

from spec.core.judging import begin_alike
from spec.core.records import PREFILL
from spec.core.requests import BlockKey
from spec.nano_vllm.block_hashes import content
from spec.nano_vllm.config import Hashing
from spec.nano_vllm.records import Context, Sequence, State, Step
from spec.nano_vllm.rules.counting import blocks_to_find
from spec.nano_vllm.rules.gates import TOKENS, refusing_gates
from spec.nano_vllm.rules.registry import always, newest, of_step, text, witness
from spec.nano_vllm.rules.replay import Candidates, candidates, final_books


def _has_hit(_ctx: Context, step: Step) -> bool:
    return bool(step.happened("prefix_hit"))


@always("NANO-PFX-1", text("With Prefix Cache: Reuse the Work"))
@witness(
    lambda ctx, step: any(
        row.computed > ctx.config.block_size and row.computed % ctx.config.block_size
        for row in step.after.running
    )
)
def full_blocks_are_hashed(ctx: Context, state: State) -> Iterator[str]:
    """Exactly the full blocks of a running sequence are hashed."""
    # A block that is not full yet carries no hash, also of a prefill that is cut.
    for row in state.present:
        full = max(row.computed // ctx.config.block_size, row.hit_blocks)
        hashed = [block in state.pool.keys for block in row.blocks]
        if hashed != [index < full for index in range(len(hashed))]:
            yield f"request {row.id}: {full} full blocks, hashed {hashed}"


@always("NANO-PFX-2", text("Hash Chaining: Position-Sensitive Fingerprinting"))
@witness(
    lambda ctx, step: any(row.computed >= 2 * ctx.config.block_size for row in step.after.running)
)
def hashes_are_chained(ctx: Context, state: State) -> Iterator[str]:
    """A block's hash stands for its tokens and all tokens before it."""
    # Each hashed block in a table has the hash of that sequence at that place.
    for row in state.present:
        keys = ctx.keys.of(row.id, row.computed // ctx.config.block_size)
        for block, key in zip(row.blocks, keys, strict=False):
            if state.pool.keys.get(block, key) != key:
                yield f"request {row.id}: block {block} has the hash of other tokens"


@of_step(
    "NANO-PFX-3",
    text("Hash Chaining: Position-Sensitive Fingerprinting"),
    given=candidates,
    witness=_has_hit,
)
def no_false_hit(ctx: Context, _step: Step, seen: Candidates) -> Iterator[str]:
    """What a hit finds was written for the same tokens and the same tokens before them."""
    # Compared with what the block was last hashed for, not with what it is hashed for now.
    for candidate in seen:
        id_ = candidate.sequence.id
        keys = ctx.keys.of(id_, len(candidate.taken))
        for block, held, key in zip(candidate.taken, candidate.held, keys, strict=True):
            if held != key:
                yield f"request {id_} found block {block}, written for other tokens"


@always("NANO-PFX-4", text("Shared Prefix Blocks: Visual"))
@witness(lambda _, step: any(count > 1 for count in step.after.pool.references.values()))
def shared_blocks_hold_equal_tokens(ctx: Context, state: State) -> Iterator[str]:
    """Sequences that share a block have the same tokens up to its end."""
    # The tokens themselves are compared, not their hashes: from the end, as what is equal up to a
    # block is equal up to all before it.
    size, requests = ctx.config.block_size, ctx.requests
    first: dict[int, tuple[str, int]] = {}
    for row in state.present:
        alike: dict[str, int] = {}  # blocks, by the sequence that has equal ones
        for place, block in reversed([*enumerate(row.blocks, start=1)]):
            if state.pool.references.get(block, 0) < 2:
                continue
            owner, other = first.setdefault(block, (row.id, place))
            if place > alike.get(owner, 0) and begin_alike(
                requests[row.id], requests[owner], place * size
            ):
                alike[owner] = place
            if place != other or place > alike.get(owner, 0):
                yield f"block {block} is shared by {owner} and {row.id}"


@of_step("NANO-PFX-5", text("With Prefix Cache: Reuse the Work"), given=candidates)
@witness(lambda _, step: any(len(event.after) > 1 for event in step.happened("prefix_hit")))
def longest_run_is_taken(_ctx: Context, _step: Step, seen: Candidates) -> Iterator[str]:
    """A new sequence takes the longest leading run of blocks that are found, and no other."""
    # The first miss ends the run.
    for candidate in seen:
        if candidate.is_admitted and candidate.taken != candidate.hits:
            taken, found = list(candidate.taken), list(candidate.hits)
            yield f"request {candidate.sequence.id} took {taken}, found {found}"


@of_step(
    "NANO-PFX-6", text("With Prefix Cache: Reuse the Work"), given=candidates, witness=_has_hit
)
def hits_are_computed(_ctx: Context, step: Step, seen: Candidates) -> Iterator[str]:
    """What a hit finds has been computed in an earlier step."""
    # As released blocks are hashed when they are handed out: one batch may share them at once.
    for candidate in seen:
        if early := sorted(candidate.uncomputed):
            yield f"request {candidate.sequence.id} found {early}, not computed yet"


@of_step("NANO-PFX-7", text("Why Prefix Caching Matters in Practice"), given=candidates)
@witness(lambda _, step: step.refusal == TOKENS and step.happened("prefix_hit"))
def cached_tokens_are_free(ctx: Context, _step: Step, seen: Candidates) -> Iterator[str]:
    """Tokens that are found in the cache do not count against max_num_batched_tokens."""
    # No sequence is refused whose new tokens fit.
    for candidate in seen:
        row, batched = candidate.sequence, candidate.batched
        new = row.prefill_len - len(candidate.hits) * ctx.config.block_size
        fits = batched + new <= ctx.config.max_num_batched_tokens
        if not candidate.is_admitted and fits and refusing_gates(ctx, candidate)[:1] == [TOKENS]:
            yield f"request {row.id} was refused, {batched} and {new} new tokens"


@of_step("NANO-PFX-8", text("Prefill: Building the KV Cache"), witness=_has_hit)
def something_is_computed(_ctx: Context, step: Step) -> Iterator[str]:
    """A sequence that gets a token has computed at least one: its last token is never skipped."""
    # A next token follows from the computation of the last one.
    for id_, count in step.scheduled.items():
        if count < 1:
            yield f"request {id_} computed {count} tokens in a {step.kind} step"


@of_step("NANO-PFX-9", text("With Prefix Cache: Reuse the Work"), given=candidates)
@witness(lambda ctx, step: step.kind == PREFILL and _has_hit(ctx, step))
def held_prefixes_are_reused(ctx: Context, step: Step, seen: Candidates) -> Iterator[str]:
    """A prefix that a running sequence holds, computed and full, is reused."""
    # Only the last block that was hashed for some tokens is found, and not after it is gone.
    admitted = [candidate for candidate in seen if candidate.is_admitted]
    if not admitted:
        return
    held = {
        key
        for row in step.before.running
        for key in ctx.keys.of(row.id, row.computed // ctx.config.block_size)
    }
    for candidate in admitted:
        row, taken = candidate.sequence, len(candidate.taken)
        keys = ctx.keys.of(row.id, blocks_to_find(ctx.config, row.prefill_len))
        run = len(list(takewhile(held.__contains__, keys)))
        if taken < run:
            yield f"request {row.id} took {taken} blocks, {run} are held"


@of_step("NANO-PFX-10", text("Hash Chaining: Position-Sensitive Fingerprinting"))
@witness(lambda _, step: step.kind == PREFILL and len(step.batch) > 1)
def fingerprints_stand_for_tokens(ctx: Context, step: Step) -> Iterator[str]:
    """Blocks have equal hashes exactly if their tokens and all tokens before them are equal, and
    pass for each other in a hit check exactly if their own tokens are.
    """
    # Compared token by token, of the sequences that filled a block in this step.
    ends: dict[tuple[int, Tokens], int] = {}  # by an end before it and the tokens of a block
    hashes: set[tuple[int, BlockKey]] = set()
    contents: set[tuple[Tokens, bytes]] = set()
    for row in step.batch:
        end = 0
        for own, key in _filled(ctx, row, row.computed - step.scheduled.get(row.id, 0)):
            end = ends.setdefault((end, own), len(ends) + 1)
            hashes.add((end, key))
            contents.add((own, content(key)))
    for pairs in (hashes, contents):
        tokens, names = {pair[0] for pair in pairs}, {pair[1] for pair in pairs}
        if not len(tokens) == len(names) == len(pairs):
            yield f"{len(hashes)} blocks of {[row.id for row in step.batch]} pass for others"


@of_step("NANO-PFX-11", text("With Prefix Cache: Reuse the Work"))
@witness(lambda _, step: step.finished and step.after.pool.keys.keys() & {*step.after.pool.free})
def hashes_stay_until_blocks_are_handed_out(ctx: Context, step: Step) -> Iterator[str]:
    """A block keeps its hash and tokens, held or free, until it is allocated again; the lookup
    table names for each hash the block that was given it last, and forgets none.
    """
    # Only what the step's events and its tokens changed is another than before. Where blocks are
    # hashed once they are computed, the table forgets those that are allocated again.
    books, before, after = final_books(ctx, step), step.before.pool, step.after.pool
    for block in {*books.keys, *before.keys, *after.keys}:
        if after.keys.get(block) != books.block_key(block):
            yield f"block {block} has another hash, or none, than it was given last"
    for key in {*books.named, *before.cached, *after.cached}:
        due = books.named_blocks(key)
        if after.cached.get(key) != due:
            yield f"blocks {after.cached.get(key)} are named for a hash, given last to {due}"


@always(
    "NANO-PFX-12",
    newest("_allocate_block"),
    applies=lambda config: config.hashing is Hashing.COMPUTED,
)
@witness(lambda _, step: step.before.pool.cached.keys() - step.after.pool.cached.keys())
def no_stale_entries(_ctx: Context, state: State) -> Iterator[str]:
    """The lookup table names only blocks that carry the hash that is looked up."""
    # So no hit is false, as long as equal hashes stand for equal tokens.
    for key, (block,) in state.pool.cached.items():
        if state.pool.keys.get(block) != key:
            yield f"block {block} is named for a hash that it does not carry"


Tokens: TypeAlias = tuple[int, ...]


def _filled(ctx: Context, row: Sequence, start: int) -> Iterator[tuple[Tokens, BlockKey]]:
    """Tokens and keys of the full blocks of a sequence, if it filled one from this token on."""
    size = ctx.config.block_size
    full = row.computed // size
    if start // size == full:
        return
    tokens = ctx.requests[row.id].first_tokens(full * size)
    for place, key in enumerate(ctx.keys.of(row.id, full)):
        yield tuple(tokens[place * size : (place + 1) * size]), key
