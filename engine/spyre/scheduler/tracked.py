"""A request inside the scheduler."""

from attrs import define

from engine.core.tensors import NO_TOKENS, Tensor
from engine.spyre.blocks import PrefixHit
from spec.core.requests import BlockKey, Request
from spec.spyre.reservation import worst_case_blocks

Shape = tuple[int, int]


@define(eq=False)
class Tracked:
    """A request from its arrival, or its last preemption, until it leaves; lengths in tokens.

    - `prefill_len`: tokens that its prefill covers: the prompt and, after a preemption, `outputs`.
    - `outputs`: tokens that it had sampled before this prefill.
    - `computed`: tokens in the KV cache while it prefills; those of a decoding row stand in the
      batch.
    - `blocks`: its block table without padding. `reserved`: blocks promised and not handed out.
    - `hit_blocks`: cached blocks found when it was admitted.
    - `keys`: of its leading full blocks, as far as somebody asked for them; hashed only once.
    - `registered`: leading blocks of its table that lookups can find.
    - `slot`: its place in the arrays of the decode batch, -1 before it has one.
    - `worst_case`: blocks of everything that it may ever hold, 0 until somebody asked.
    - `order`: where it stands in the queue, less than whoever stands behind.
    - `hit`: what the last lookup of its prompt found.
    """

    request: Request
    prefill_len: int
    outputs: Tensor = NO_TOKENS
    computed: int = 0
    blocks: tuple[int, ...] = ()
    reserved: int = 0
    hit_blocks: int = 0
    keys: tuple[BlockKey, ...] = ()
    registered: int = 0
    slot: int = -1
    worst_case: int = 0
    order: int = 0
    hit: PrefixHit | None = None

    @staticmethod
    def of(request: Request) -> "Tracked":
        """A request that has just arrived."""
        return Tracked(request, request.prompt_len)

    @property
    def id(self) -> str:
        """The request's name."""
        return self.request.id

    @property
    def remaining(self) -> int:
        """Tokens that it may still generate, as long as it does not decode."""
        return self.request.max_tokens - (self.prefill_len - self.request.prompt_len)

    @property
    def shape(self) -> Shape:
        """What the volume rules look at: tokens to prefill, tokens that it may still generate."""
        return self.prefill_len, self.remaining

    def worst_case_blocks(self, block_size: int) -> int:
        """Blocks of everything that the request may ever hold; asked before each admission."""
        if not self.worst_case:
            self.worst_case = int(worst_case_blocks(self.prefill_len, self.remaining, block_size))
        return self.worst_case

    def again(self, outputs: Tensor) -> "Tracked":
        """The request without anything that it held, to compute its prompt and `outputs` anew."""
        length = self.request.prompt_len + len(outputs)
        return Tracked(self.request, length, outputs, keys=self.keys)
