"""Work on a Dask cluster instead of this machine's cores; needs the extra `dask`."""

import logging
import re
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import Any

from attrs import frozen

from checks.cores import placed
from spec.core.errors import InputError

_ADDRESS = re.compile(r"tcp://[^/:\s]+:\d{1,5}")
_CONNECT_SECONDS = 5.0  # a running scheduler answers at once
_MOST_GREETING_BYTES = 2**20


@frozen
class Cluster:
    """The workers that a connected `distributed.Client` reaches."""

    client: Any
    addresses: tuple[str, ...]

    @property
    def size(self) -> int:
        """The number of workers, each with one thread."""
        return len(self.addresses)

    def lost(self) -> tuple[type[BaseException], ...]:
        """The exceptions raised for a piece of work that the cluster gave up."""
        from distributed import CancelledError, KilledWorker
        from distributed.comm.core import CommClosedError

        return CancelledError, KilledWorker, CommClosedError

    @contextmanager
    def pool(self, _most: int) -> Iterator[Executor]:
        """The cluster's executor; at the end waiting pieces are cancelled."""
        executor: Executor = self.client.get_executor(pure=False)
        try:
            yield executor
        finally:
            executor.shutdown(wait=False)

    def each(self, pool: Executor, _most: int, work: Callable[[], None]) -> list[Future[None]]:
        """Submit the work once for each worker, after the worker's present work."""
        options: list[dict[str, Any]] = [
            {"workers": [address], "allow_other_workers": True} for address in self.addresses
        ]
        return [pool.submit(work, **option) for option in options]


@contextmanager
def cluster_cores(address: str) -> Iterator[None]:
    """Within the block, `checks.cores` works on the cluster of the scheduler at this address.

    Raises:
        InputError: the extra is missing, no scheduler answers, it has no workers, or a worker has
            several threads or cannot import this package.
    """
    try:
        import distributed
    except ImportError:
        allowed = "installed: pip install 'lockstep-schedulers[dask]'"
        raise InputError("--on", address, f"the extra `dask` {allowed}") from None
    if not _ADDRESS.fullmatch(address):
        raise InputError("--on", address, "tcp://HOST:PORT of a Dask scheduler")
    _refuse_silent(address)
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # errors that matter are raised
    try:
        connected: Any = distributed.Client  # carries no types
        client = connected(address, timeout=_CONNECT_SECONDS, set_as_default=False)
    except OSError as error:
        raise InputError("--on", address, f"a Dask scheduler that answers ({error})") from None
    with client, placed(Cluster(client, _worker_addresses(client, address))):
        yield


def _refuse_silent(address: str) -> None:
    """Refuse an address without a Dask scheduler, whose client would wait for minutes.

    A scheduler speaks first: it sends the length of its message in 8 bytes.

    Raises:
        InputError: nothing answers at the address, or another server.
    """
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS) as connection:
            connection.settimeout(_CONNECT_SECONDS)
            said = connection.recv(8, socket.MSG_WAITALL)
    except (OSError, OverflowError) as error:  # OverflowError: no such port
        allowed = f"a Dask scheduler that answers ({error})"
        raise InputError("--on", address, allowed) from None
    if len(said) < 8 or int.from_bytes(said, "little") > _MOST_GREETING_BYTES:
        raise InputError("--on", address, "a Dask scheduler; what answers there is another server")


def _worker_addresses(client: Any, address: str) -> tuple[str, ...]:
    threads: dict[str, int] = client.nthreads()
    if not threads:
        raise InputError("--on", address, "a cluster with workers (dask worker --nthreads 1)")
    for worker, count in threads.items():
        if count != 1:  # a driver process belongs to a worker process, not to a thread
            raise InputError("--on", f"{worker} of {count} threads", "workers with --nthreads 1")
    try:
        client.run(_importable)
    except Exception as error:  # any error of the worker's Python
        allowed = f"workers with the same lockstep and Python ({type(error).__name__}: {error})"
        raise InputError("--on", address, allowed) from None
    return tuple(threads)


def _importable() -> None:
    """Unpickling this function imports this module on the worker."""
