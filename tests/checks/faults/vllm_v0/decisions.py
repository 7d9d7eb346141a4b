"""Faults of what a step decides: strategies, queues, victims, tokens and the budget."""

from typing import Any

from attrs import evolve

from reference.vllm_v0 import block_manager, decisions, preemption, queues, step, tokens
from reference.vllm_v0.decisions import Decisions, Spending
from reference.vllm_v0.tokens import Partial
from spec.vllm_v0.config import PreemptionMode
from spec.vllm_v0.records import Group
from spec.vllm_v0.variants import Strategy
from tests.checks.faults.patches import Wrong, always, backwards, changed, plus, result, with_config
from tests.checks.faults.vllm_v0.table import fault


def under(**fields: Any) -> Wrong:
    """The right function, in a run under other values in the configuration."""

    def wrong(right: Wrong, run: Decisions, *given: Any) -> Any:
        ctx, run.ctx = run.ctx, with_config(run.ctx, **fields)
        done = right(run, *given)
        run.ctx = ctx
        return done

    return wrong


def nothing(_right: Wrong, *_given: Any, **_more: Any) -> None:
    """Nothing is done."""


# --- the budget -----------------------------------------------------------------------------------

fault(decisions, "seqs_of", of="count", on="outgrows the GPU", rules="V0-BUD-5")(
    always(1), "a group counts for one sequence"
)
fault(decisions, "seqs_of", of="count", on="forks, several", rules="V0-BUD-5")(
    lambda _right, ctx, group: ctx.requests[group.id].n, "finished sequences count"
)
fault(decisions, "seqs_of", of="count", on="outgrows the GPU", rules="V0-BUD-5")(
    lambda _right, _ctx, group: len(group.unfinished), "sequences to come do not count"
)
fault(Spending, "count", on="outgrows the GPU", rules="V0-BUD-3")(
    lambda right, self, budget, seqs, tokens=0, cached=0: right(self, budget, seqs, 0, cached),
    "tokens are not counted",
)
fault(Spending, "count", on="whole hit", rules="V0-BUD-3, V0-BUD-4")(
    lambda right, self, budget, seqs, tokens=0, cached=0: right(
        self, budget, seqs, tokens + cached, 0
    ),
    "cached tokens count like others",
)
fault(Spending, "count", on="outgrows the GPU", rules="V0-BUD-5")(
    lambda right, self, budget, seqs, tokens=0, cached=0: right(self, budget, 0, tokens, cached),
    "sequences are not counted",
)
fault(Spending, "refund", on="outgrows the GPU", rules="V0-PRG-1")(nothing, "nothing is refunded")


fault(Spending, "admits", on="too long", rules="V0-PRG-1")(
    lambda right, self, _tokens, seqs: right(self, 0, seqs), "tokens are always left"
)
fault(Spending, "admits", on="whole hit", rules="V0-PRG-1")(
    lambda right, self, tokens, _seqs: right(self, tokens, 0), "sequences are always left"
)
fault(Spending, "admits", on="too long", rules="V0-ADM-7, V0-PRG-2")(
    lambda right, self, tokens, seqs: right(self, tokens + bool(tokens), seqs),
    "last token is kept back",
)
fault(Spending, "admits", on="forks, recompute", rules="V0-ADM-7")(
    lambda right, self, tokens, seqs: right(self, tokens, seqs + bool(seqs)),
    "last place is kept free",
)
fault(
    Decisions,
    "preempts",
    of="schedule_swapped",
    on="outgrows the GPU",
    rules="V0-BLK-10, V0-LIF-8, V0-SWP-11, V0-SWP-2, V0-SWP-4",
)(always(False), "swaps in beside a preemption")
fault(Decisions, "preempts", of="schedule_swapped", on="swap, watermark", rules="V0-SWP-6")(
    lambda right, run: right(run) or bool(run.running), "no swaps in beside a decode"
)


@fault(Decisions, "count", on="adapters", rules="V0-ADM-5")
def adapters_are_not_counted(right: Wrong, run: Decisions, *given: Any) -> None:
    right(run, *given)
    run.loras.clear()


@fault(Decisions, "schedule", on="whole hit", rules="V0-BUD-4, V0-CHK-1, V0-PFX-5")
def cached_tokens_are_not_scheduled(
    right: Wrong, run: Decisions, group: Group, count: int, cached: int = 0
) -> None:
    right(run, group, count, cached)
    run.scheduled[group.id] = count


@fault(Decisions, "schedule", on="outgrows the GPU", rules="V0-CHK-9, V0-LIF-8, V0-SEQ-6")
def prompts_pass_for_decodes(right: Wrong, run: Decisions, *given: Any) -> None:
    right(run, *given)
    run.chunked.clear()


fault(Decisions, "spent", on="outgrows the GPU", rules="V0-BUD-8")(
    result(token_budget=plus(1)), "budget of a token more"
)
fault(Decisions, "spent", on="whole hit", rules="V0-BUD-4")(
    result(cached={}), "cached tokens are not reported"
)

# --- giving way -----------------------------------------------------------------------------------


@fault(
    preemption,
    "preempt",
    on="outgrows the GPU",
    rules="V0-BLK-10, V0-BUD-7, V0-CHK-9, V0-LIF-8, V0-LIF-9, V0-ORD-11, V0-ORD-8, "
    "V0-PRE-5, V0-PRG-2, V0-SWP-2",
)
def victims_are_not_reported(right: Wrong, run: Decisions, victim: Group) -> None:
    right(run, victim)
    run.preempted.clear()
    run.swapped_out.clear()


@fault(queues, "preempt", on="chunked, priority", rules="V0-PRE-3")
def next_to_last_gives_way(right: Wrong, run: Decisions, victim: Group) -> None:
    others = [
        request for request in run.state.running if request.id not in {*run.scheduled, victim.id}
    ]
    right(run, others[-1] if len(others) > 1 else victim)


fault(preemption, "preemption_mode", of="preempt", on="outgrows the GPU", rules="guard V0-PRE-6")(
    always(PreemptionMode.RECOMPUTE), "victims are recomputed"
)
fault(preemption, "preemption_mode", of="preempt", on="outgrows the GPU", rules="V0-PRE-5")(
    always(PreemptionMode.SWAP), "victims are swapped out"
)
fault(preemption, "preempt_by_priority", on="priority, one at a time", rules="V0-PRI-4")(
    nothing, "none gives way to others"
)
fault(preemption, "preempt_by_priority", on="priority, one at a time", rules="V0-PRI-4")(
    lambda _right, run: preemption.sort_waiting(run), "no room is made for the urgent"
)


@fault(preemption, "preempt_by_priority", on="priority, swap", rules="V0-PRI-2, V0-PRI-3")
def one_more_gives_way(right: Wrong, run: Decisions) -> None:
    right(run)
    if run.by_priority and run.state.running:
        preemption._give_way(run, run.state.running[-1])


fault(preemption, "sort_running", on="combined, priority", rules="V0-ORD-11, V0-ORD-7, V0-PRI-1")(
    nothing, "running queue is not sorted"
)
fault(preemption, "sort_waiting", on="combined, priority", rules="V0-ORD-11")(
    nothing, "waiting queue is not sorted"
)
fault(
    preemption,
    "_give_way",
    of="preempt_by_priority",
    on="priority, swap",
    rules="V0-PRE-4, V0-PRI-2",
)(lambda right, run, _victim: right(run, run.state.running[0]), "most urgent gives way")


@fault(
    preemption,
    "_give_way",
    of="preempt_by_priority",
    on="priority, one at a time",
    rules="V0-PRE-1, V0-PRE-2, V0-PRE-8, V0-PRE-9, V0-PRI-4",
)
def giving_way_to_the_urgent_is_not_noted(right: Wrong, run: Decisions, victim: Group) -> None:
    right(run, victim)
    run.by_priority.clear()


fault(
    preemption, "swapped_go_first", of="schedule_prefills", on="outgrows the GPU", rules="V0-ORD-3"
)(always(False), "prompts pass the swapped")
fault(
    preemption,
    "swapped_go_first",
    of="schedule_prefills",
    on="swap, little room on the CPU",
    rules="V0-ADM-7",
)(
    lambda right, run, group: right(run, group) or bool(run.state.running),
    "prompts wait for what runs",
)
fault(
    preemption,
    "keeps_swapped_out",
    of="schedule_swapped",
    on="priority, swap",
    rules="V0-BLK-10, V0-LIF-8, V0-PRI-6, V0-SEQ-7, V0-SWP-1, V0-SWP-11, V0-SWP-15, "
    "V0-SWP-2, V0-SWP-3, V0-SWP-4, V0-SWP-5",
)(always(False), "swapped pass the urgent")
fault(
    preemption,
    "keeps_swapped_out",
    of="schedule_swapped",
    on="priority, swap, four",
    rules="V0-SWP-14",
)(lambda _right, run: bool(run.by_priority), "swapped pass the urgent that wait")
fault(
    preemption, "keeps_swapped_out", of="schedule_swapped", on="outgrows the GPU", rules="V0-PRG-2"
)(always(True), "swapped stay for the urgent")

# --- the running queue ----------------------------------------------------------------------------

fault(queues, "schedule_running", on="outgrows the GPU", rules="V0-BUD-7, V0-PRG-2")(
    nothing, "what runs is left out"
)


@fault(queues, "schedule_running", on="swap, little room on the CPU", rules="V0-ORD-11, V0-ORD-7")
def last_of_the_queue_goes_first(right: Wrong, run: Decisions, share: Any = None) -> None:
    run.state = changed(running=backwards)(run.state)
    right(run, share)


@fault(
    queues,
    "make_room",
    of="schedule_running",
    on="swap, little room on the CPU",
    rules="V0-BUD-7, V0-PRE-3",
)
def first_of_the_queue_gives_way(right: Wrong, run: Decisions, group: Group) -> Any:
    if queues.can_append(run, group):
        return right(run, group)
    queues.refund(run, group, group)
    preemption.preempt(run, group)
    return False


@fault(queues, "make_room", of="schedule_running", on="delay", rules="V0-PRE-9")
def one_victim_too_many(right: Wrong, run: Decisions, group: Group) -> Any:
    count = len(run.state.running)
    found = right(run, group)
    last = run.state.running[-1] if run.state.running else group
    if len(run.state.running) < count and last.id not in {*run.scheduled, group.id}:
        queues.refund(run, group, last)
        preemption.preempt(run, last)
    return found


fault(queues, "refund", of="schedule_running", on="chunked, forks", rules="V0-ADM-7")(
    nothing, "victim counts on"
)


@fault(queues, "can_append", of="schedule_running", on="swap, watermark", rules="V0-PRE-2")
def artificial_preemptions_are_unlimited(right: Wrong, run: Decisions, group: Group) -> Any:
    artificial = run.state.artificial
    found = right(run, group)
    run.state = evolve(run.state, artificial=artificial)
    return found


fault(queues, "can_append", of="schedule_running", on="lookahead, swap", rules="V0-PRG-1")(
    lambda right, run, group: right(run, evolve(group, is_prefill=True)),
    "lookahead slots are not asked for",
)
fault(
    queues,
    "take_slots",
    of="schedule_running",
    on="outgrows the GPU",
    rules="V0-LKA-1, V0-LKA-6, V0-SEQ-3",
)(nothing, "no slots are taken")

# --- the swapped queue ----------------------------------------------------------------------------

fault(queues, "schedule_swapped", on="outgrows the GPU", rules="V0-PRG-2")(
    nothing, "swapped groups stay out"
)


@fault(queues, "schedule_swapped", on="combined", rules="V0-BLK-10, V0-SWP-15, V0-SWP-6")
def last_of_the_swapped_goes_first(right: Wrong, run: Decisions) -> None:
    run.state = changed(swapped=backwards)(run.state)
    right(run)
    run.state = changed(swapped=backwards)(run.state)


@fault(
    queues,
    "schedule_swapped",
    on="swap, little room on the CPU",
    rules="V0-BLK-10, V0-BUD-3, V0-LIF-8, V0-LIF-9, V0-LKA-6, V0-ORD-11, V0-PRG-2, V0-SWP-2",
)
def swapped_in_is_not_reported(right: Wrong, run: Decisions) -> None:
    right(run)
    run.swapped_in.clear()


fault(queues, "_lora_is_one_too_many", of="schedule_swapped", on="adapters", rules="V0-ADM-5")(
    always(False), "any adapter fits"
)
fault(
    queues,
    "_lora_is_one_too_many",
    of="schedule_swapped",
    on="adapters",
    rules="V0-ADM-5, V0-ADM-7",
)(
    lambda _right, run, group: run.ctx.requests[group.id].lora in run.loras - {0},
    "the adapter of the batch is one too many",
)

# --- the waiting queue ----------------------------------------------------------------------------

fault(queues, "schedule_prefills", on="outgrows the GPU", rules="V0-ADM-7, V0-PRG-2")(
    nothing, "none is admitted"
)


@fault(queues, "schedule_prefills", on="outgrows the GPU", rules="V0-ORD-1")
def last_of_the_waiting_goes_first(right: Wrong, run: Decisions, share: Any) -> None:
    run.state = changed(waiting=backwards)(run.state)
    right(run, share)
    run.state = changed(waiting=backwards)(run.state)


@fault(queues, "schedule_prefills", on="outgrows the GPU", rules="V0-ADM-7")
def one_prompt_a_step(right: Wrong, run: Decisions, share: Any) -> None:
    waiting = run.state.waiting
    run.state = evolve(run.state, waiting=waiting[:1])
    right(run, share)
    run.state = evolve(run.state, waiting=(*run.state.waiting, *waiting[1:]))


fault(queues, "_refusal", of="schedule_prefills", on="larger than the GPU", rules="V0-PRG-2")(
    lambda right, *given: "V0-BUD-1" if right(*given) == "V0-ADM-3" else right(*given),
    "too long waits",
)
fault(queues, "_refusal", of="schedule_prefills", on="too long", rules="V0-ADM-2")(
    lambda right, *given: "V0-ADM-3" if right(*given) == "V0-BUD-1" else right(*given),
    "what does not fit the step is ignored",
)
fault(queues, "_refusal", of="schedule_prefills", on="adapters", rules="V0-ADM-7")(
    lambda right, *given: "V0-ADM-1" if right(*given) == "V0-ADM-5" else right(*given),
    "none passes one with another adapter",
)
fault(queues, "_refusal", of="schedule_prefills", on="whole hit", rules="V0-ORD-1")(
    lambda right, *given: "V0-ADM-5" if right(*given) == "V0-BUD-1" else right(*given),
    "prompts pass one that does not fit",
)


@fault(
    queues,
    "_admit",
    of="schedule_prefills",
    on="outgrows the GPU",
    rules="V0-ADM-7, V0-BLK-10, V0-BUD-3, V0-LIF-8, V0-LIF-9, V0-LKA-6, V0-ORD-11, "
    "V0-ORD-8, V0-PRG-2",
)
def admitted_is_not_reported(right: Wrong, run: Decisions, *given: Any) -> None:
    right(run, *given)
    run.new.clear()


fault(
    queues,
    "cached_tokens",
    of="schedule_prefills",
    on="whole hit",
    rules="V0-BUD-3, V0-BUD-4, V0-PFX-2",
)(always(0), "what was cached is not remembered")
fault(queues, "passed_delay", of="schedule_prefills", on="chunked, delay", rules="V0-ADM-6")(
    always(True), "prompts do not wait for others"
)
fault(
    queues,
    "passed_delay",
    of="schedule_prefills",
    on="swap, little room on the CPU",
    rules="V0-ADM-7",
)(
    lambda right, run, rest: right(run, rest) and not run.state.running,
    "prompts wait for all others",
)
fault(
    queues,
    "passed_delay",
    of="schedule_prefills",
    on="outgrows the GPU",
    rules="V0-ADM-7, V0-PRG-2",
)(lambda right, run, rest: right(run, rest) and bool(run.state.has_prefilled), "first prompt waits")

# --- tokens ---------------------------------------------------------------------------------------

fault(Partial, "of", on="partial prefills", rules="V0-CHK-8")(
    lambda right, *given: evolve(right(*given), slots=1), "first prompt takes the others' share"
)
fault(Partial, "of", on="chunked, delay", rules="V0-CHK-3")(
    lambda right, ctx, state: evolve(right(ctx, state), slots=right(ctx, state).slots + 1),
    "budget is shared by one too many",
)
fault(Partial, "admits", on="partial prefills", rules="V0-CHK-5")(always(True), "any prompt begins")
fault(Partial, "note", on="partial prefills", rules="V0-CHK-5")(
    nothing, "a long prompt that begins does not count"
)
fault(tokens, "_leaves_a_place", of="admits", on="partial prefills, two long", rules="V0-CHK-4")(
    always(True), "one prompt too many begins"
)
fault(tokens, "is_long", of="admits", on="partial prefills", rules="V0-ADM-7")(
    lambda right, ctx, group: right(ctx, evolve(group, computed=0)), "long prompts stay long"
)
fault(tokens, "is_long", of="admits", on="partial prefills", rules="V0-ADM-7")(
    lambda right, ctx, group: group.tokens - group.computed >= ctx.config.long_threshold,
    "a prompt at the threshold is long",
)
fault(tokens, "new_tokens", on="outgrows the GPU", rules="V0-CHK-1")(
    lambda right, *given, **more: (max(right(*given, **more)[0] - 1, 0), right(*given, **more)[1]),
    "a token less",
)
fault(tokens, "new_tokens", on="whole hit", rules="V0-CHK-1")(
    lambda right, *given, **more: (right(*given, **more)[0], 0), "hits are not scheduled"
)
fault(
    tokens,
    "cached_tokens",
    of="new_tokens",
    on="released, chunked, caching, swap",
    rules="V0-CHK-2, V0-CHK-3",
)(
    lambda _right, run, group: block_manager.cached_tokens(run.ctx, run.state, group),
    "cached tokens are asked for anew",
)
fault(tokens, "_decoding", of="new_tokens", on="outgrows the GPU", rules="V0-BUD-3, V0-BUD-6")(
    lambda right, run, count, *given: min(count, 1), "one sequence of a group decodes"
)
fault(tokens, "_decoding", of="new_tokens", on="combined, one token short", rules="V0-PRG-1")(
    lambda _right, _run, count, *_given: count, "decodes do not ask for budget"
)
fault(tokens, "_cut", of="new_tokens", on="chunked", rules="V0-ADM-7, V0-PRG-2")(
    lambda _right, _run, count, _share: count, "prompts are not cut"
)
fault(tokens, "_cut", of="new_tokens", on="chunked, delay", rules="V0-CHK-3")(
    lambda right, run, count, share: min(right(run, count, share), 1), "a token at a time"
)
fault(tokens, "_cut", of="new_tokens", on="chunked, multi-step", rules="V0-CHK-1")(
    under(num_scheduler_steps=1), "prompts of several steps are cut"
)
fault(tokens, "samples", on="chunked, delay", rules="V0-CHK-6")(
    always(True), "unfinished prompts sample"
)
fault(tokens, "samples", on="outgrows the GPU", rules="V0-CHK-6")(
    lambda right, ctx, group, count: right(ctx, group, count - group.is_prefill),
    "the end of a prompt does not sample",
)

# --- the step -------------------------------------------------------------------------------------

fault(step, "schedule_default", on="outgrows the GPU", rules="V0-ORD-3")(
    lambda _right, run: step.schedule_chunked_prefill(run), "prompts are chunked"
)
fault(
    step, "schedule_chunked_prefill", on="chunked, multi-step", rules="V0-BUD-7, V0-ORD-4, V0-PRG-4"
)(lambda _right, run: step.schedule_default(run), "prompts are not chunked")
fault(step, "schedule_default", on="outgrows the GPU", rules="V0-ORD-3")(
    under(strategy=Strategy.COMBINED), "prompts beside decodes"
)
fault(step, "schedule_default", on="combined, one token short", rules="V0-ORD-9")(
    under(strategy=Strategy.EXCLUSIVE), "prompts alone"
)


@fault(step, "schedule_default", on="swap, little room on the CPU", rules="V0-ADM-7")
def decodes_go_first(right: Wrong, run: Decisions) -> None:
    queues.schedule_running(run, None)
    if not run.running:
        right(run)


@fault(step, "schedule_chunked_prefill", on="chunked, delay", rules="V0-BUD-3")
def prompts_go_first(right: Wrong, run: Decisions) -> None:
    queues.schedule_prefills(run, Partial.of(run.ctx, run.state))
    right(run)


@fault(step, "schedule_chunked_prefill", on="chunked, caching, swap", rules="V0-PRG-2, V0-SWP-6")
def swapped_go_last(right: Wrong, run: Decisions) -> None:
    swapped = run.state.swapped
    run.state = evolve(run.state, swapped=())
    right(run)
    run.state = evolve(run.state, swapped=(*swapped, *run.state.swapped))


fault(
    step,
    "all_decode",
    of="schedule_chunked_prefill",
    on="documented, chunked, forks",
    rules="V0-ORD-4, V0-PRG-4",
)(always(True), "prompts take what a decode lacks")
fault(step, "all_decode", of="schedule_chunked_prefill", on="chunked, delay", rules="V0-PRG-2")(
    always(False), "prompts wait for decodes"
)
fault(
    step,
    "sort_running",
    of="schedule_default",
    on="combined, priority",
    rules="V0-ORD-11, V0-ORD-7, V0-PRE-3, V0-PRE-4",
)(nothing, "running queue is not sorted first")
fault(step, "finishing_first", on="partial prefills", rules="V0-ORD-11, V0-ORD-5, V0-ORD-6")(
    lambda _right, _run, prefills: prefills, "finishing prompts stay behind"
)
fault(step, "finishing_first", on="chunked, delay", rules="V0-ORD-11, V0-ORD-6")(
    lambda right, *given: right(*given)[::-1], "finishing prompts last"
)
fault(
    step, "_requeued", of="schedule", on="partial prefills", rules="V0-ORD-11, V0-ORD-5, V0-ORD-6"
)(lambda _right, state, _ids: state.running, "running queue keeps its order")
fault(step, "_requeued", of="schedule", on="chunked, delay", rules="V0-ORD-11, V0-ORD-6")(
    lambda right, *given: right(*given)[::-1], "running queue is turned round"
)
fault(step, "batch_order", on="chunked, delay", rules="V0-ORD-7")(
    lambda right, run: right(run)[::-1], "decodes lead the batch"
)
fault(step, "batch_order", on="adapters in order", rules="V0-ORD-10")(
    under(max_loras=0), "adapters are mixed in the batch"
)
fault(step, "_reported_lookahead", of="schedule", on="chunked, multi-step", rules="V0-LKA-4")(
    always(0), "no lookahead is announced"
)
fault(step, "_reported_lookahead", of="schedule", on="lookahead, swap", rules="V0-LKA-4")(
    lambda _right, run: run.config.num_lookahead_slots, "lookahead of prompts is announced"
)
fault(step, "held_to_limits", on="released, chunked, forks", rules="V0-BUD-1")(
    nothing, "overcommitment is not noticed"
)
fault(step, "Step", of="scheduler_step", on="outgrows the GPU", rules="V0-PRG-7")(
    lambda right, **fields: right(**fields | {"is_async": True}), "always asynchronous"
)
fault(step, "Step", of="scheduler_step", on="outgrows the GPU", rules="V0-CHK-6, V0-SEQ-1")(
    lambda right, **fields: right(**fields | {"sampling": ()}), "sampling is not reported"
)
