"""Tables as every command prints them."""

from rich.table import Table


def plain_table(*columns: str) -> Table:
    """A table without lines; a column whose name begins with ">" is aligned to the right.

    Cells that do not fit are folded, so that nothing is cut off.
    """
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in columns:
        right = name.startswith(">")
        table.add_column(
            name.removeprefix(">"), justify="right" if right else "left", overflow="fold"
        )
    return table
