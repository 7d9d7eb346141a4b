"""A decode batch drawn cell by cell, without any formula."""

from collections.abc import Sequence


def drawn_batch(lengths: Sequence[int], block_size: int) -> list[list[str]]:
    """Rows of equally many blocks: `.` left padding, `t` a token, `_` right padding."""
    rows = [["t"] * length for length in lengths]
    for row in rows:
        while len(row) % block_size:
            row.append("_")
    width = max(map(len, rows))
    return [["."] * (width - len(row)) + row for row in rows]


def last_token(row: list[str]) -> int:
    """Padded position after the last token."""
    return max(index for index, cell in enumerate(row) if cell == "t") + 1


def drawn_tkvs(lengths: Sequence[int], block_size: int) -> list[int]:
    """Where each row's last token stands when all rows are padded to equally many blocks."""
    return [last_token(row) for row in drawn_batch(lengths, block_size)]
