"""A request inside the scheduler, and the queue of those that wait."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping

from attrs import define

from engine.device.inputs import Tensor
from engine.tokens import NO_TOKENS
from spec.requests import BlockKey, Request
from spec.reservation import worst_case_blocks


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
    - `hits`, `hits_at`: what the last lookup found, and the pool's evictions by then.
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
    hits: tuple[int, ...] = ()
    hits_at: int = -1

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

    def worst_case_blocks(self, block_size: int) -> int:
        """Blocks of everything that the request may ever hold; asked before each admission."""
        if not self.worst_case:
            self.worst_case = int(worst_case_blocks(self.prefill_len, self.remaining, block_size))
        return self.worst_case

    def again(self, outputs: Tensor) -> "Tracked":
        """The request without anything that it held, to compute its prompt and `outputs` anew."""
        length = self.request.prompt_len + len(outputs)
        return Tracked(self.request, length, outputs, keys=self.keys)


class WaitingQueue:
    """Who waits, first to last; adding, removing and the first cost the same however many wait.

    `changes` counts what happened to it, so that an observer sees whether anything did.
    """

    def __init__(self) -> None:
        self._requests: OrderedDict[str, Tracked] = OrderedDict()
        self.changes = 0

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Tracked]:
        return iter(self._requests.values())

    def copy(self, copies: Mapping[Tracked, Tracked]) -> "WaitingQueue":
        """The same queue of the requests' copies."""
        twin = WaitingQueue()
        for one in self:
            twin.put_back(copies[one])
        return twin

    def find(self, request_id: str) -> Tracked | None:
        """The request of this name, if it waits."""
        return self._requests.get(request_id)

    def put_back(self, request: Tracked) -> None:
        """A new request goes to the end."""
        self._requests[request.id] = request
        self.changes += 1

    def put_front(self, request: Tracked) -> None:
        """A preempted request goes before all others."""
        self.put_back(request)
        self._requests.move_to_end(request.id, last=False)

    def remove(self, request: Tracked) -> None:
        """The request waits no longer."""
        del self._requests[request.id]
        self.changes += 1
