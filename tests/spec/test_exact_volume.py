"""The rule that judges exact admission looks at few ends, and does not lean on the formula."""

from collections import Counter
from random import Random

import pytest

from spec.spyre import admission
from spec.spyre.admission import Member, worst_case_volumes
from spec.spyre.padding import max_tkv
from spec.spyre.rules import exact_volume


def peak_volume(decoding: list[Member], candidate: Member, block_size: int) -> int:
    return int(max(worst_case_volumes(decoding, candidate, block_size)))


def test_of_a_large_batch_few_ends_are_looked_at_in_detail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draw, looked_at = Random(0), Counter[int]()
    walked_volume = exact_volume.walked_volume
    monkeypatch.setattr(
        exact_volume,
        "walked_volume",
        lambda lives, steps, size: looked_at.update([steps]) or walked_volume(lives, steps, size),
    )
    for _ in range(20):
        decoding = [Member(draw.randint(1, 2_000), draw.randint(1, 500)) for _ in range(32)]
        candidate = Member(700, 400)
        tightest = peak_volume(decoding, candidate, 64)

        assert exact_volume.exact_volume_holds(decoding, candidate, tightest, 64)
        assert not exact_volume.exact_volume_holds(decoding, candidate, tightest - 1, 64)

    assert 20 <= looked_at.total() < 20 * 2 * 33 / 4


def test_a_wrong_closed_form_is_noticed_by_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peak that looks at the last step alone."""

    def of_the_last_step(rows: list[int], steps: int, block_size: int) -> int:
        return int(max_tkv([row + steps for row in rows], block_size))

    one, other = Member(1, 4), Member(2, 5)
    assert not admission.exact_volume_holds([one], other, 12, 4)
    monkeypatch.setattr(admission, "peak_tkv", of_the_last_step)
    assert admission.exact_volume_holds([one], other, 12, 4)
    assert not exact_volume.exact_volume_holds([one], other, 12, 4)
