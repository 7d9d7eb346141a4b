"""How requests leave: finished, aborted, preempted, or thrown back by a device that stopped.

Source: vllm-v1, "Request lifecycle" and "Preemption".
"""

from engine.core.tensors import Tensor
from engine.spyre.scheduler.core import Core
from engine.spyre.scheduler.tracked import Tracked
from spec.core.records import IDLE


def finish(core: Core, rows: list[int]) -> tuple[str, ...]:
    """These rows of the batch have all their tokens: they leave, in batch order."""
    if not rows:
        return ()
    leaving = [core.decoding.members[row] for row in rows]
    core.decoding = core.decoding.without(rows)
    for request in leaving:
        _give_back(core, request)
        core.finished.add(request.id)
    return tuple(request.id for request in leaving)


def abort(core: Core, request_id: str) -> bool:
    """A client goes away, in whatever phase its request is; False if it is not here."""
    present = (core.queue.find(request_id), *core.admitted)
    leaver = next((one for one in present if one is not None and one.id == request_id), None)
    if leaver is None:
        return False
    _take_out(core, leaver)
    _give_back(core, leaver)
    core.aborted.add(request_id)
    return True


def preempt(core: Core, victim: Tracked) -> None:
    """Take everything from a request: it waits first in the queue and computes all again."""
    outputs = _outputs(core, victim)
    _take_out(core, victim)
    _give_back(core, victim)
    core.queue.put_front(victim.again(outputs))


def restart(core: Core) -> None:
    """Everything cached is lost: all admitted requests wait in front, the first admitted first.

    Paused requests were admitted before they were left out and go before the batch.
    """
    ongoing = () if core.prefilling is None else (core.prefilling,)
    for request in (*ongoing, *core.decoding.members, *reversed(core.paused.members)):
        preempt(core, request)
    core.blocks.forget_contents()
    core.last_kind, core.last_tkv = IDLE, 0


def _outputs(core: Core, request: Tracked) -> Tensor:
    """All tokens that an admitted request has sampled, kept beyond its slot."""
    for rows in (core.decoding, core.paused):
        if request in rows.members:
            count = int(rows.generated()[rows.members.index(request)])
            return core.slots.outputs[request.slot, :count].copy()
    return request.outputs


def _take_out(core: Core, request: Tracked) -> None:
    """Remove the request from wherever it is."""
    if request is core.prefilling:
        core.prefilling = None
    elif request in core.decoding.members:
        core.decoding = core.decoding.without([core.decoding.members.index(request)])
    elif request in core.paused.members:
        core.paused = core.paused.without([core.paused.members.index(request)])
    else:
        core.queue.remove(request)


def _give_back(core: Core, request: Tracked) -> None:
    """Whatever the request holds is free for others."""
    core.blocks.release(request.blocks)
    core.reserved -= request.reserved
    if request.slot >= 0:
        core.slots.give_back(request.slot)
