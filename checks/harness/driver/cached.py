"""The block pool as a driver's record tells it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import define, field

from checks.harness.driver.protocol import Json
from spec.core.blocks import BlockPool
from spec.core.requests import BlockKey, BlockKeys
from spec.core.sharing import FrozenMap


@define
class Pools:
    """Reads pools; `keys` are those of an episode's requests."""

    keys: BlockKeys
    _read_last: tuple[list[Any], BlockPool] | None = field(default=None, init=False)
    _known: dict[tuple[str, int], BlockKey] = field(factory=dict, init=False)

    def told(self, record: Json, last: BlockPool) -> BlockPool:
        """The pool; a driver that does not tell of it leaves the `last` one.

        Records that say the same give the same object, so that nobody compares it block by block.
        """
        if "free_list" not in record:
            return last
        said = [record.get(name) for name in ("free_list", "references", "cached")]
        if self._read_last is None or self._read_last[0] != said:
            self._read_last = said, self._read(record, last.size)
        return self._read_last[1]

    def _read(self, record: Json, size: int) -> BlockPool:
        references: Mapping[str, int] = record.get("references", {})
        cached = {key: tuple(blocks) for key, blocks in self._named(record.get("cached", ()))}
        return BlockPool(
            size=size,
            free=tuple(record["free_list"]),
            references=FrozenMap((int(block), count) for block, count in references.items()),
            keys=FrozenMap((block, key) for key, blocks in cached.items() for block in blocks),
            cached=FrozenMap(cached),
        )

    def _named(self, entries: Iterable[Sequence[Any]]) -> Iterator[tuple[BlockKey, Sequence[int]]]:
        """Each entry names a content as block `index` of a request, then who holds it."""
        for request_id, index, *blocks in entries:
            yield self.key(request_id, index), blocks

    def key(self, request_id: str, index: int) -> BlockKey:
        """The key of a request's block, looked up once."""
        name = (request_id, index)
        if name not in self._known:
            self._known[name] = self.keys.of(request_id, index + 1)[index]
        return self._known[name]
