"""Measure the simulated device alone; prints one row for each size of step.

    ./bootstrap python benchmarks/device.py [--repeat N]

Times are medians over `--repeat` steps of the device with prepared tensors. Sizes are the plugin's
defaults: blocks of 64, chunks of 512, a pool of 16,384 blocks.
"""

import argparse
import platform
from statistics import median
from time import perf_counter

import numpy as np

from engine.spyre.device import DecodeInput, PrefillInput, SpyreDevice
from spec.core.arithmetic import cdiv
from spec.spyre.config import SpyreConfig

DECODES = ((1, 64), (32, 16), (32, 64), (4, 512), (256, 8))  # rows x blocks
PREFILLS = (1, 8, 60)  # chunks of the prompt


def chunk(config: SpyreConfig, first_block: int, index: int, chunks: int) -> PrefillInput:
    """A full chunk of a prompt without padding, in consecutive blocks."""
    start, size = index * config.chunk_size, config.chunk_size
    positions = np.arange(start, start + size)
    blocks = np.arange(first_block, first_block + (index + 1) * config.blocks_per_chunk)
    return PrefillInput(
        token_ids=positions % 1_000,
        positions=positions,
        slot_mapping=first_block * config.block_size + positions,
        block_table=blocks[np.newaxis],
        left_padding=np.array([0]),
        length=np.array([start + size]),
        chunk=np.array([index]),
        is_last=np.array([int(index == chunks - 1)]),
    )


def batch(config: SpyreConfig, rows: int, width: int, offset: int) -> DecodeInput:
    """Rows of equal length; the newest token is at `offset` in their last block."""
    table = 1 + np.arange(rows * width).reshape(rows, width)
    tkv = np.full(rows, (width - 1) * config.block_size + offset + 1)
    return DecodeInput(
        token_ids=np.full(rows, 7),
        positions=tkv - 1,
        slot_mapping=table[:, -1] * config.block_size + offset,
        block_table=table,
        left_padding=np.zeros(rows, dtype=np.int64),
        tkv=tkv,
    )


def filled(config: SpyreConfig, rows: int, width: int) -> SpyreDevice:
    """A device that holds all blocks of each row except the last one."""
    device = SpyreDevice(config)
    for row in range(rows):
        for index in range(cdiv(width - 1, config.blocks_per_chunk)):
            device.prefill(chunk(config, 1 + row * width, index, 0))
    return device


def decode_times(config: SpyreConfig, rows: int, width: int, repeat: int) -> list[float]:
    """Seconds of each decode step; the steps fill the last block of each row again and again."""
    device, times = filled(config, rows, width), []
    # The chunks of a row may reach into the blocks of the next row, which wrote them later.
    for step in range(repeat):
        tensors = batch(config, rows, width, step % config.block_size)
        began = perf_counter()
        device.decode(tensors)
        times.append(perf_counter() - began)
    return times


def prefill_times(config: SpyreConfig, chunks: int, repeat: int) -> list[float]:
    """Seconds of the last chunk of a prompt."""
    device = filled(config, 1, chunks * config.blocks_per_chunk)
    tensors, times = chunk(config, 1, chunks - 1, chunks), []
    for _ in range(repeat):
        began = perf_counter()
        device.prefill(tensors)
        times.append(perf_counter() - began)
    return times


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=2_000)
    repeat = parser.parse_args().repeat
    print(f"Python {platform.python_version()}, numpy {np.__version__}, {platform.machine()}\n")
    print("| step | median | 90th percentile |\n| --- | --- | --- |")
    config = SpyreConfig(max_num_seqs=256)
    for rows, width in DECODES:
        _row(f"decode, {rows} rows x {width} blocks", decode_times(config, rows, width, repeat))
    for chunks in PREFILLS:
        _row(f"prefill, chunk {chunks} of {chunks}", prefill_times(config, chunks, repeat))


def _row(name: str, seconds: list[float]) -> None:
    ranked = sorted(seconds)
    p90 = ranked[len(ranked) * 9 // 10]
    print(f"| {name} | {median(ranked) * 1e3:.3f} ms | {p90 * 1e3:.3f} ms |")


if __name__ == "__main__":
    main()
