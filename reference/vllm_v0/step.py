"""One scheduler step: what is decided under either strategy, then what comes of it.

Source: vllm-v0, "General Scheduling Strategy", "Optimized Prefill & Decode Scheduling" and
"Detailed Breakdown of schedule".
"""

from collections.abc import Callable, Iterable
from functools import partial

from attrs import define, evolve, field, frozen

from reference.core.run import Run
from reference.vllm_v0 import block_manager, transitions
from reference.vllm_v0.block_manager import EngineEnds, Fit
from reference.vllm_v0.transitions import rank
from spec.core.sharing import FrozenMap
from spec.vllm_v0.config import (
    PreemptionMode,
    Scheduling,
    VllmV0Config,
    chunk_of,
    lookahead_slots,
    uncached_tokens,
)
from spec.vllm_v0.records import Budget, Context, Group, Pairs, Sequence, State, Step
from spec.vllm_v0.variants import Strategy


@frozen
class Environment:
    """What the scheduler does not decide.

    `ends`: does the sequence sample end-of-sequence as its last token? `accepted`: how many of the
    tokens that a group speculates on are right? `preempts`: does the check for free slots fail
    without a reason, as long as the configuration has such failures left?
    """

    ends: Callable[[Sequence], bool]
    accepted: Callable[[Group, int], int] = lambda _group, _slots: 0
    preempts: Callable[[Group], bool] = lambda _group: False


@define
class Decisions(Run[Context, State]):
    """A step while it is being decided.

    `scheduled`: tokens of each group with those that are cached, in the order of the decisions.
    `new`, `swapped_in`, `running`: where these came from. `chunked`: those that compute a prompt.
    `loras`: adapters in the batch. `slots_taken`: prompts that may still begin, and long ones under
    way, see `Partial`. `refusal`: the rule that ended the walk over the waiting queue.
    """

    env: Environment
    budget: Budget
    scheduled: dict[str, int] = field(factory=dict)
    new: list[str] = field(factory=list)
    swapped_in: list[str] = field(factory=list)
    running: list[str] = field(factory=list)
    chunked: set[str] = field(factory=set)
    loras: set[int] = field(factory=set)
    preempted: list[str] = field(factory=list)
    swapped_out: list[str] = field(factory=list)
    by_priority: list[str] = field(factory=list)
    ignored: list[str] = field(factory=list)
    swaps_out: Pairs = ()
    swaps_in: Pairs = ()
    copies: Pairs = ()
    refusal: str | None = None

    @property
    def config(self) -> VllmV0Config:
        """The configuration."""
        return self.ctx.config

    @property
    def preempts(self) -> bool:
        """True if a running group gave its blocks up for want of slots."""
        return len(self.preempted) + len(self.swapped_out) > len(self.by_priority)

    def group(self, request_id: str) -> Group:
        """The running group of this name."""
        return next(one for one in self.state.running if one.id == request_id)

    def schedule(self, group: Group, tokens: int, cached: int = 0) -> None:
        """Note that a group computes so many tokens beyond those that are cached."""
        self.scheduled[group.id] = tokens + cached
        if group.is_prefill:
            self.chunked.add(group.id)
        self.budget = self.budget.counted(group.id, seqs_of(self.ctx, group), tokens, cached)
        self.loras.add(self.ctx.requests[group.id].lora)


def scheduler_step(
    ctx: Context, state: State, env: Environment, index: int = 0, time: float = 0
) -> Step:
    """What the scheduler does next, and the state that it leaves; `time` is only noted."""
    run = Decisions(
        ctx, state, env=env, budget=Budget(ctx.config.token_budget, ctx.config.max_num_seqs)
    )
    try:
        if not state.failure:
            schedule(run)
    except EngineEnds as end:
        dead = evolve(state, failure=end.reason)
        return Step(
            index=index, time=time, before=state, planned=dead, after=dead, budget=run.budget
        )
    planned, order = run.state, batch_order(run)
    sampling = tuple(one for one in order if samples(ctx, run.group(one), run.scheduled[one]))
    results = Run(ctx, accessed(ctx, planned, run.scheduled))
    sampled, forked, ended = _computed(results, run, order, sampling)
    return Step(
        index=index,
        time=time,
        before=state,
        planned=planned,
        after=aged(ctx, compressed(ctx, results.state), bool(run.chunked)),
        scheduled={one: run.scheduled[one] for one in order},
        prefills=tuple(one for one in order if one in run.chunked),
        sampling=sampling,
        budget=run.budget,
        admitted=tuple(run.new),
        swapped_in=tuple(run.swapped_in),
        preempted=tuple(run.preempted),
        swapped_out=tuple(run.swapped_out),
        by_priority=tuple(run.by_priority),
        ignored=tuple(run.ignored),
        swaps_out=run.swaps_out,
        swaps_in=run.swaps_in,
        copies=run.copies,
        lookahead_slots=_reported_lookahead(run),
        is_async=ctx.config.async_output and all(ctx.requests[one].n == 1 for one in order),
        refusal=run.refusal,
        forked=forked,
        sampled=sampled,
        outputs=_by_request(order, sampled),
        finished=results.ids_of("finish"),
        ended=ended,
        events=(*run.events, *results.events),
    )


def schedule(run: Decisions) -> None:
    """The decisions of a step (vllm-v0, "Deciding Which Scheduling Strategy to Use")."""
    # both strategies leave the queues in their final order
    (schedule_chunked_prefill if run.config.chunked_prefill else schedule_default)(run)
    # what was scheduled counts as in the cache from now on
    run.state = block_manager.mark_computed(run.ctx, run.state, run.scheduled)


# --- the two strategies ---------------------------------------------------------------------


def schedule_default(run: Decisions) -> None:
    """Prefills, else decodes and swapped groups; `combined`: one after the other in one step.

    Source: vllm-v0, "General Scheduling Strategy", whose example has them in one step.
    """
    exclusive = run.config.strategy is Strategy.EXCLUSIVE
    # running sequences take their places before any prompt does
    for one in run.state.running:
        run.budget = run.budget.counted(one.id, seqs_of(run.ctx, one))
        run.loras.add(run.ctx.requests[one.id].lora)
    # prefills, where no swapped group goes before them
    if not exclusive or not run.state.swapped or _urgent_goes_first(run):
        schedule_prefills(run, share=None)
    if not run.new and run.config.scheduling is Scheduling.PRIORITY:
        preempt_by_priority(run)
    # decodes, and swapped groups where there was memory for all decodes
    if not exclusive or not run.new:
        schedule_running(run, share=None)
        if not run.preempts and not _keeps_out(run):
            schedule_swapped(run)
    held_to_limits(run)
    ids = (*run.new, *run.running, *run.swapped_in)
    run.state = evolve(run.state, running=_requeued(run.state, ids))


def schedule_chunked_prefill(run: Decisions) -> None:
    """Decodes and prompts under way, then swapped groups, then new prompts.

    Source: vllm-v0, "Optimized Prefill & Decode Scheduling".
    """
    share = Partial.of(run.ctx, run.state)
    # decodes and prompts under way, in queue order
    schedule_running(run, share)
    # swapped groups, where no running one had to give way
    if not run.preempts:
        schedule_swapped(run)
    # new prompts
    schedule_prefills(run, share)
    held_to_limits(run)
    # decodes first; of the prompts under way those that end in this step before the others
    order = (
        *_those(run, run.swapped_in, prefill=False),
        *_those(run, run.swapped_in, prefill=True),
        *_those(run, run.running, prefill=False),
        *finishing_first(run, _those(run, run.running, prefill=True)),
        *run.new,
    )
    run.state = evolve(run.state, running=_requeued(run.state, order))


def finishing_first(run: Decisions, prefills: list[str]) -> list[str]:
    """Prompts that end in this step, then the others (vllm-v0, "Prioritizing Prefill Completion").

    [B, A, C] becomes [A, C, B] if A and C end.
    """

    def goes_on(request_id: str) -> bool:
        group = run.group(request_id)
        return group.tokens - group.computed != run.scheduled[request_id]

    return sorted(prefills, key=goes_on)


def _those(run: Decisions, ids: Iterable[str], *, prefill: bool) -> list[str]:
    return [one for one in ids if (one in run.chunked) == prefill]


def _requeued(state: State, ids: Iterable[str]) -> tuple[Group, ...]:
    """Running groups that were not scheduled, then the others in the order of `ids`."""
    place = {one: index for index, one in enumerate(ids)}
    return tuple(sorted(state.running, key=lambda one: place.get(one.id, -1)))


def batch_order(run: Decisions) -> list[str]:
    """The groups as the model gets them: those that compute a prompt first."""
    prompts = (*run.new, *_those(run, run.running, prefill=True))
    swapped = _those(run, run.swapped_in, prefill=True)
    decodes = _those(run, run.running, prefill=False)
    return [*prompts, *swapped, *decodes, *_those(run, run.swapped_in, prefill=False)]


def held_to_limits(run: Decisions) -> None:
    """The engine ends where more is scheduled than may be ("Ensures no overcommitment").

    Raises:
        EngineEnds: more tokens or sequences than the budget has.
    """
    if not run.budget.admits(0, 0):
        raise EngineEnds("more is scheduled than the budget allows")


# --- running groups -------------------------------------------------------------------------


def schedule_running(run: Decisions, share: "Partial | None") -> None:
    """Each running group goes on, in queue order; the last one gives way where slots are lacking.

    Source: vllm-v0, "Scheduling Active Sequences".
    """
    for request_id in [one.id for one in run.state.running if one.id not in run.scheduled]:
        if request_id not in {one.id for one in run.state.running}:
            break  # it and all behind it have given way
        group = run.group(request_id)
        tokens, _ = new_tokens(run, group, share)
        if tokens == 0:
            break
        if not make_room(run, group):
            break
        take_slots(run, group)
        run.schedule(run.group(request_id), tokens)
        run.running.append(request_id)


def make_room(run: Decisions, group: Group) -> bool:
    """Preempt from the end of the queue until the group finds its slots; False: it is a victim."""
    while not can_append(run, group):
        victim = [one for one in run.state.running if one.id not in run.scheduled][-1]
        preempt(run, victim)
        if victim.id == group.id:
            return False
    return True


def can_append(run: Decisions, group: Group) -> bool:
    """True if slots can be had for the group, unless it is preempted for a test."""
    if run.state.artificial and run.env.preempts(group):
        run.state = evolve(run.state, artificial=run.state.artificial - 1)
        return False
    lookahead = lookahead_slots(group.is_prefill, run.config)
    return block_manager.can_append_slots(run.ctx, run.state, group, lookahead)


def take_slots(run: Decisions, group: Group) -> None:
    """The group's unseen tokens and its lookahead get slots."""
    lookahead = lookahead_slots(group.is_prefill, run.config)
    run.copies += run.make(transitions.append, group, lookahead)


# --- preemption -----------------------------------------------------------------------------


def preempt(run: Decisions, victim: Group) -> None:
    """A running group gives its blocks up (vllm-v0, "Preempting Sequences").

    Raises:
        EngineEnds: under the release, it can neither be recomputed nor swapped out.
    """
    run.budget = run.budget.refunded(victim.id)
    if preemption_mode(run, victim) is PreemptionMode.RECOMPUTE:
        run.take(transitions.recompute, victim)
        run.preempted.append(victim.id)
    elif block_manager.can_swap_out(run.ctx, run.state, victim):
        run.swaps_out += run.make(transitions.swap_out, victim)
        run.swapped_out.append(victim.id)
    elif run.config.choices.needs_cpu_space:
        raise EngineEnds("the CPU has no space for a victim")
    else:
        run.take(transitions.ignore, victim, "V0-SWP-2")
        run.ignored.append(victim.id)


def preemption_mode(run: Decisions, victim: Group) -> PreemptionMode:
    """How a group gives way: recompute takes a single sequence ("Decision Logic")."""
    mode, is_single = run.config.preemption_mode, len(victim.unfinished) == 1
    if mode is PreemptionMode.RECOMPUTE and not is_single and run.config.choices.recomputes_by_word:
        raise EngineEnds("a group of several sequences cannot be recomputed")
    if mode is PreemptionMode.SWAP and is_single and not run.config.choices.needs_cpu_space:
        has_space = block_manager.can_swap_out(run.ctx, run.state, victim)
        return PreemptionMode.SWAP if has_space else PreemptionMode.RECOMPUTE
    if mode is PreemptionMode.SWAP or not is_single:
        return PreemptionMode.SWAP
    return PreemptionMode.RECOMPUTE


def preempt_by_priority(run: Decisions) -> None:
    """The least urgent running groups give way to the front of the waiting queue if that does not
    fit; then both queues are sorted (vllm-v0, "Handling High-Priority Requests").
    """
    by_rank = partial(rank, run.ctx)
    run.state = evolve(run.state, running=tuple(sorted(run.state.running, key=by_rank)))
    if run.state.waiting:
        front = run.state.waiting[0]
        tokens, _ = new_tokens(run, front, share=None)
        while run.state.running and by_rank(run.state.running[-1]) > by_rank(front):
            if front.is_swapped:
                raise EngineEnds("a waiting group has no waiting sequence")
            fits = block_manager.can_allocate(run.ctx, run.state, front, 0) is Fit.NOW
            if fits and tokens and run.budget.admits(tokens, seqs_of(run.ctx, front)):
                break
            _give_way(run, run.state.running[-1])
    run.state = evolve(run.state, waiting=tuple(sorted(run.state.waiting, key=by_rank)))


def _give_way(run: Decisions, victim: Group) -> None:
    """A group is preempted for a more urgent one; the release mislays it if it is swapped out."""
    swaps = run.swaps_out
    preempt(run, victim)
    run.by_priority.append(victim.id)
    if victim.id in run.swapped_out and not run.config.choices.keeps_victims_apart:
        run.swaps_out = swaps
        *swapped, mislaid = run.state.swapped
        waiting = (mislaid, *run.state.waiting)
        run.state = evolve(run.state, swapped=tuple(swapped), waiting=waiting)


def _urgent_goes_first(run: Decisions) -> bool:
    """True if the front of the waiting queue is more urgent than all swapped groups.

    Only where victims of priority are swapped out in order: what they gave way to comes first.
    """
    if run.config.scheduling is not Scheduling.PRIORITY or not run.state.waiting:
        return False
    front = rank(run.ctx, run.state.waiting[0])
    outranked = all(front < rank(run.ctx, one) for one in run.state.swapped)
    return run.config.choices.keeps_victims_apart and outranked


def _keeps_out(run: Decisions) -> bool:
    """True if swapped groups wait because others gave way, or will, to a more urgent one."""
    gave_way = bool(run.by_priority) and run.config.choices.keeps_victims_apart
    return gave_way or _urgent_goes_first(run)


# --- swapped groups -------------------------------------------------------------------------


def schedule_swapped(run: Decisions) -> None:
    """Swapped groups come back from the front of their queue until one does not fit.

    Source: vllm-v0, "Managing Swapped-Out Sequences". One whose adapter is one too many is passed
    over, one that will never fit leaves.
    """
    for group in run.state.swapped:
        chunks = run.config.chunked_prefill and run.config.choices.swaps_in_chunks
        lookahead = lookahead_slots(group.is_prefill, run.config)
        fit = block_manager.can_swap_in(run.ctx, run.state, group, lookahead)
        if fit is Fit.NEVER:
            frees = run.config.choices.frees_infeasible
            run.take(transitions.ignore, group, "V0-SWP-5", frees)
            run.ignored.append(group.id)
            continue
        if fit is Fit.LATER:
            break
        if _lora_is_one_too_many(run, group):
            continue
        tokens, cached = new_tokens(run, group, share=None, chunks=chunks)
        if tokens == 0 or not run.budget.admits(tokens, seqs_of(run.ctx, group)):
            break
        run.swaps_in += run.make(transitions.swap_in, group)
        take_slots(run, run.group(group.id))
        run.schedule(run.group(group.id), tokens, cached)
        run.swapped_in.append(group.id)


def _lora_is_one_too_many(run: Decisions, group: Group) -> bool:
    """True if the group's adapter does not fit beside those of the batch; 0 is no adapter."""
    lora, batched = run.ctx.requests[group.id].lora, run.loras - {0}
    is_new = lora > 0 and lora not in batched
    return run.config.max_loras > 0 and is_new and len(batched) >= run.config.max_loras


# --- waiting groups -------------------------------------------------------------------------


def schedule_prefills(run: Decisions, share: "Partial | None") -> None:
    """Waiting groups are admitted in queue order until one does not fit.

    Source: vllm-v0, "Managing Prompt Prefill Requests". Groups that gave way in this step are not
    looked at.
    """
    if run.budget.remaining <= 0:
        return
    for group in run.state.waiting:
        if not passed_delay(run):
            break
        if group.id in run.preempted or (share is not None and not share.admits(run, group)):
            continue
        if group.is_swapped:
            raise EngineEnds("a waiting group has no waiting sequence")
        refusal = _refusal(run, group, share)
        if refusal is None:
            _admit(run, group, share)
        elif refusal in ("V0-ADM-4", "V0-ADM-5"):
            run.take(transitions.ignore, group, refusal)
            run.ignored.append(group.id)
        elif refusal != "V0-LRA-1":
            run.refusal = run.refusal or refusal
            if run.config.choices.blocked_by_long:
                break


def _refusal(run: Decisions, group: Group, share: "Partial | None") -> str | None:
    """The rule that keeps a waiting group from being admitted."""
    tokens, cached = new_tokens(run, group, share)
    chunked = run.config.chunked_prefill
    by_chunk = chunked and run.config.choices.limits_chunks
    whole = tokens + cached if by_chunk else group.tokens
    if whole > run.config.prompt_limit:
        return "V0-ADM-4"
    lookahead = lookahead_slots(True, run.config)
    fit = block_manager.can_allocate(run.ctx, run.state, group, lookahead)
    if fit is not Fit.NOW:
        return "V0-ADM-5" if fit is Fit.NEVER else "V0-ADM-1"
    if _lora_is_one_too_many(run, group):
        return "V0-LRA-1"
    admits = run.budget.admits(tokens, seqs_of(run.ctx, group))
    return None if tokens and admits else "V0-BUD-1"


def _admit(run: Decisions, group: Group, share: "Partial | None") -> None:
    """The group gets its blocks and its first chunk."""
    tokens, cached = new_tokens(run, group, share)
    known = cached_tokens(run, group) if run.config.prefix_caching else None
    run.take(transitions.admit, evolve(group, cached=known), tokens + cached)
    if lookahead_slots(True, run.config):
        take_slots(run, run.group(group.id))
    if share is not None:
        share.note(run, group)
    run.schedule(run.group(group.id), tokens, cached)
    run.new.append(group.id)


def passed_delay(run: Decisions) -> bool:
    """True if prompts have waited long enough for others (vllm-v0, "Delaying Scheduling").

    Where nothing is left to run there is nothing to wait for.
    """
    config, waiting = run.config, run.state.waiting
    if config.delay_factor == 0 or not waiting:
        return True
    last_prefill = config.prefill_time if run.state.has_prefilled else 0.0
    is_late = max(one.waited for one in waiting) > config.delay_factor * last_prefill
    return is_late or not any(one.id not in run.scheduled for one in run.state.running)


@define
class Partial:
    """Prompts that share a step's budget, and how many long ones are under way.

    `slots`: prompts that the budget is divided by. `long`: those above the threshold. Source: vLLM
    0.9.2; the text has no more than the keys.
    """

    slots: int
    long: int

    @classmethod
    def of(cls, ctx: Context, state: State) -> "Partial":
        """As a step finds them: those under way, and those that may begin."""
        config = ctx.config
        under_way = [one for one in state.running if one.is_prefill]
        slots, long = len(under_way), sum(is_long(ctx, one) for one in under_way)
        begun = 0
        for one in state.waiting:
            if slots >= config.max_num_partial_prefills:
                break
            if is_long(ctx, one):
                if long + begun >= config.max_long_partial_prefills:
                    continue
                begun += 1
            slots += 1
        return cls(min(slots, config.max_num_partial_prefills), long)

    def admits(self, run: Decisions, group: Group) -> bool:
        """False for a long prompt where enough of them are under way."""
        config = run.config
        is_full = self.long >= config.max_long_partial_prefills
        return not (config.max_num_partial_prefills > 1 and is_full and is_long(run.ctx, group))

    def note(self, run: Decisions, group: Group) -> None:
        """A prompt begins."""
        self.long += is_long(run.ctx, group)


def is_long(ctx: Context, group: Group) -> bool:
    """True if what is left of the prompt is longer than the threshold."""
    return group.tokens - group.computed > ctx.config.long_threshold


# --- tokens ---------------------------------------------------------------------------------


def seqs_of(ctx: Context, group: Group) -> int:
    """Sequences that the group counts for: those that it will have, or those that it has."""
    is_forked = len(group.sequences) > 1
    will_fork = ctx.config.choices.counts_siblings and group.generated == 0
    return ctx.requests[group.id].n if will_fork and not is_forked else len(group.unfinished)


def cached_tokens(run: Decisions, group: Group) -> int:
    """Tokens that the cache has of the group, as they were when this was first asked."""
    if group.cached is not None:
        return group.cached
    return block_manager.cached_tokens(run.ctx, run.state, group)


def new_tokens(
    run: Decisions, group: Group, share: Partial | None, chunks: bool | None = None
) -> tuple[int, int]:
    """Uncached and cached tokens that the group would compute in this step.

    Source: vllm-v0, "Calculating New Cached & Uncached Tokens" and "Chunking New Tokens Based on
    Budget". `chunks`: prompts are cut, by default where the strategy cuts them.

    Raises:
        EngineEnds: under the release, a prompt comes back from the CPU with more computed tokens
            than the cache had of it.
    """
    cuts = run.config.chunked_prefill if chunks is None else chunks
    if not group.is_prefill:
        return _decoding(run, len(group.unfinished), share) if cuts else len(group.unfinished), 0
    missing = group.tokens - group.computed
    known = cached_tokens(run, group)
    if group.is_swapped and known < group.computed and not run.config.choices.swaps_in_chunks:
        raise EngineEnds("fewer tokens are cached than computed")
    hit = max(known - group.computed, 0)
    uncached = int(uncached_tokens(missing, hit))
    cached = missing - uncached if hit >= missing else hit
    return (_cut(run, uncached, share) if cuts else uncached), cached


def _decoding(run: Decisions, count: int, share: Partial | None) -> int:
    """Tokens of a group of `count` decoding sequences: all of them, or none."""
    choices = run.config.choices
    if count == 1 and choices.rounds_decodes:
        return _cut(run, 1, share)
    return count if count <= run.budget.remaining or (count > 1 and choices.overdraws) else 0


def _cut(run: Decisions, tokens: int, share: Partial | None) -> int:
    """So many of a prompt's tokens as fit this step; all or none under multi-step."""
    config, left = run.config, max(run.budget.remaining, 0)
    if config.is_multi_step:
        return tokens if tokens > config.prompt_limit or tokens <= left else 0
    slots = 1 if share is None else max(share.slots, 1)
    size = config.block_size if config.prefix_caching else 1
    return int(chunk_of(tokens, left, config.token_budget // slots, size))


def samples(ctx: Context, group: Group, tokens: int) -> bool:
    """True if the group samples: its prompt is complete ("Managing Prefill Sequences & Sampling").

    The text has the first chunk sample, too.
    """
    is_first = group.is_prefill and group.computed == 0
    complete = not group.is_prefill or group.computed + tokens >= group.tokens
    return complete or (is_first and ctx.config.choices.samples_first_chunk)


# --- what comes of it -----------------------------------------------------------------------


def _computed(
    results: Run[Context, State], run: Decisions, order: list[str], sampling: tuple[str, ...]
) -> tuple[dict[str, tuple[int, ...]], dict[str, str], tuple[str, ...]]:
    """All scheduled tokens are computed; groups fork, sample and finish.

    Returns tokens by sequence, each fork with its parent, and the sequences that ended.
    """
    ctx, sampled, forked, ended = run.ctx, {}, {}, []
    for one in order:
        was_prefill = one in run.chunked
        tokens = run.scheduled[one] if was_prefill else 1  # of each sequence
        results.take(transitions.compute, one, tokens, one in sampling)
        if one not in sampling:
            continue
        group = _row(results, one)
        if group.generated == 0 and ctx.requests[one].n > 1:
            results.take(transitions.fork, one)
            group = _row(results, one)
            forked |= {child.id: one for child in group.sequences[1:]}
        given = {seq.id: _tokens(run, group, seq, was_prefill) for seq in group.unfinished}
        over = [seq.id for seq in group.unfinished if _is_over(run, seq, len(given[seq.id]))]
        lengths = {name: len(tokens_of) for name, tokens_of in given.items()}
        results.take(transitions.sample, one, lengths, over)
        sampled |= given
        ended += over
    for one in order:
        over = [seq.id for seq in _row(results, one).sequences if seq.id in ended]
        if over:
            results.take(transitions.finish, one, over)
    return sampled, forked, tuple(ended)


def _row(results: Run[Context, State], request_id: str) -> Group:
    return next(one for one in results.state.running if one.id == request_id)


def _tokens(run: Decisions, group: Group, seq: Sequence, was_prefill: bool) -> tuple[int, ...]:
    """What a sequence samples: one token, and those that its lookahead slots have room for.

    Several steps follow one decision, or so many speculated tokens are right as the environment
    says; none behind the sequence's end ("Use or Discard the Lookahead Slots").
    """
    config = run.config
    has_slots = not was_prefill or (config.is_multi_step and config.chunked_prefill)
    slots = config.num_lookahead_slots if has_slots else 0
    more = slots if config.is_multi_step else run.env.accepted(group, slots)
    request = run.ctx.sequences[seq.id]
    count = 1
    while count <= more and not _is_over(run, seq, count):
        count += 1
    return tuple(request.output_token(seq.generated + index) for index in range(count))


def _is_over(run: Decisions, seq: Sequence, count: int) -> bool:
    """True if the sequence has all its tokens with the next `count`."""
    after = evolve(seq, generated=seq.generated + count)
    return after.generated >= run.ctx.sequences[seq.id].max_tokens or run.env.ends(after)


def _by_request(
    order: list[str], sampled: dict[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Tokens of each request, those of its sequences one after the other."""
    outputs: dict[str, tuple[int, ...]] = {}
    for one, tokens in sampled.items():
        request_id = one.split("/")[0]
        outputs[request_id] = (*outputs.get(request_id, ()), *tokens)
    return {one: outputs[one] for one in order if one in outputs}


def _reported_lookahead(run: Decisions) -> int:
    """Lookahead slots of the step as the workers get them: none if all compute prompts."""
    config = run.config
    all_prompts = len(run.chunked) == len(run.scheduled)
    if config.chunked_prefill:
        return 0 if all_prompts and not config.is_multi_step else config.num_lookahead_slots
    return config.num_lookahead_slots if not run.new else 0


# --- marks and waiting times ----------------------------------------------------------------


def accessed(ctx: Context, state: State, scheduled: Iterable[str]) -> State:
    """The blocks of scheduled groups are used now ("Marks blocks as accessed")."""
    if not ctx.config.prefix_caching:
        return state
    names = set(scheduled)
    now = 1 + max((0, *state.marks.values(), *(one.mark for one in state.present)))
    running = tuple(evolve(one, mark=now) if one.id in names else one for one in state.running)
    return evolve(state, running=running)


def compressed(ctx: Context, state: State) -> State:
    """The same order of last uses in the smallest numbers, so that states repeat."""
    if not ctx.config.prefix_caching:
        return state
    known = sorted({0, *state.marks.values(), *(one.mark for one in state.present)})
    ranks = {mark: index for index, mark in enumerate(known)}

    def ranked(queue: tuple[Group, ...]) -> tuple[Group, ...]:
        return tuple(evolve(one, mark=ranks[one.mark]) for one in queue)

    return evolve(
        state,
        marks=FrozenMap({block: ranks[mark] for block, mark in state.marks.items()}),
        waiting=ranked(state.waiting),
        running=ranked(state.running),
        swapped=ranked(state.swapped),
    )


def aged(ctx: Context, state: State, is_prefill: bool) -> State:
    """Waiting groups have waited a step longer, as far as the delay can tell."""
    config = ctx.config
    if config.delay_factor == 0:
        return state
    step = config.prefill_time if is_prefill else config.decode_time
    most = config.delay_factor * config.prefill_time + 1

    def older(queue: tuple[Group, ...]) -> tuple[Group, ...]:
        return tuple(evolve(one, waited=min(one.waited + step, most)) for one in queue)

    return evolve(
        state,
        has_prefilled=state.has_prefilled or is_prefill,
        waiting=older(state.waiting),
        running=older(state.running),
        swapped=older(state.swapped),
    )
