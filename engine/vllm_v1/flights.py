"""Steps in flight: planned, their decisions applied, and their results not known.

The device does a step when its results are waited for: only then is it known which tokens the steps
before it sampled. Source: vLLM 0.28.0, `EngineCore.step_with_batch_queue`.
"""

from attrs import define, evolve, field

from engine.vllm_v1.plan import Blocks, Plan, Turn


@define(eq=False)
class Flight:
    """A step in flight.

    - `plan`: its turns have the lengths that were expected when it was planned. `tokens`: that it
      computes, by request.
    - `awaited`: the requests that it samples tokens for; one that has left stays named.
    - `void`: the requests that read what turned out not to be there, before or in this step.
    - `frees`: requests that gave their blocks back, and these: free once its results have come.
    """

    plan: Plan
    awaited: list[str]
    void: set[str] = field(factory=set)
    frees: list[tuple[str, Blocks]] = field(factory=list)
    tokens: dict[str, int] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.tokens = {turn.row.id: turn.new for turn in self.plan.turns}

    @staticmethod
    def of(plan: Plan) -> "Flight":
        """The step of this plan takes off."""
        return Flight(plan, [turn.row.id for turn in plan.turns if turn.samples])

    def no_longer_awaits(self, request_id: str) -> None:
        """What it samples for the request is not wanted any more."""
        if request_id in self.awaited:
            self.awaited.remove(request_id)

    def settled(self) -> Plan:
        """The plan as the device does it, once the results of all steps before it are known.

        Left out is what goes on behind a token that its request, which has left, never got.
        """
        turns = (turn for turn in self.plan.turns if turn.row.id not in self.void)
        known = [_settled(turn) for turn in turns if turn.row.placeholders or not turn.awaited]
        return evolve(self.plan, own_turns=known)


def _settled(turn: Turn) -> Turn:
    """The turn behind the tokens that its row has now: rejected drafts before it do not count."""
    if not turn.awaited:
        return turn
    row = turn.row
    return evolve(turn, tokens=row.tokens, computed=row.computed - turn.new, awaited=0)
