"""What is closed at the end of a `with` block."""

from typing import Self


class Closing:
    """Closes itself when its `with` block ends, however that is."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give back what is held."""
        raise NotImplementedError
