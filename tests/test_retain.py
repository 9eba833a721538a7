"""Retain: a put of a numbered name deletes all but the newest n."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import hoplite
from support import SOON, eventually, numbers

if TYPE_CHECKING:
    from contract import Crew

pytest_plugins = ["contract"]

# Elements of float32: one object that is sent inside messages, and one in its own memory.
SIZES = pytest.mark.parametrize("size", [10, 50_000], ids=["small", "large"])


def remaining(crew: Crew, *texts: object) -> list[object]:
    """Returns those of these names that can be got."""

    def is_alive(text: object) -> bool:
        try:
            crew.getter.get(crew.name(text), timeout=0.5)
        except (hoplite.ObjectDeleted, hoplite.Timeout):
            return False
        return True

    return [text for text in texts if is_alive(text)]


def assert_remaining(crew: Crew, *texts: object, on: list[object]) -> None:
    """Asserts which of these names remain. The put does not wait until all holders have deleted the older ones."""
    eventually(lambda: remaining(crew, *texts) == on)
    assert remaining(crew, *texts) == on


@SIZES
def test_retain_keeps_the_newest(crew: Crew, size: int) -> None:
    for number in range(5):
        crew.clients[number % 3].put(numbers(size), name=crew.name(number), retain=2)
        assert crew.putter.latest(crew.name(""), timeout=SOON).number == number
    assert_remaining(crew, *range(5), on=[3, 4])


def test_retain_1_keeps_only_the_newest(crew: Crew) -> None:
    for number in range(3):
        crew.putter.put(numbers(10), name=crew.name(number), retain=1)
    assert_remaining(crew, 0, 1, 2, on=[2])


def test_retain_counts_objects_and_not_numbers(crew: Crew) -> None:
    """The numbers have gaps: the newest n remain, however far apart."""
    for number in (1, 10, 500, 501):
        crew.putter.put(numbers(10), name=crew.name(number), retain=3)
    assert_remaining(crew, 1, 10, 500, 501, on=[10, 500, 501])


def test_higher_numbers_are_never_deleted(crew: Crew) -> None:
    """Put out of order: only lower numbers are older, and the object itself counts."""
    for number in (9, 8, 3):
        crew.putter.put(numbers(10), name=crew.name(number))
    crew.reducer.put(numbers(10), name=crew.name(5), retain=1)
    assert_remaining(crew, 3, 5, 8, 9, on=[5, 8, 9])


def test_only_numbers_under_the_same_prefix_are_deleted(crew: Crew) -> None:
    others = ("best", "old/1", "1x")
    for text in others:
        crew.putter.put(numbers(10), name=crew.name(text))
    other = f"{crew.prefix}-other/1"
    crew.putter.put(numbers(10), name=other)
    for number in (1, 2):
        crew.putter.put(numbers(10), name=crew.name(number), retain=1)
    assert_remaining(crew, 1, 2, *others, on=[2, *others])
    crew.getter.get(other, timeout=SOON)


def test_a_put_without_retain_deletes_nothing(crew: Crew) -> None:
    for number in range(4):
        crew.putter.put(numbers(10), name=crew.name(number))
    assert_remaining(crew, *range(4), on=[0, 1, 2, 3])


def test_views_of_a_pruned_object_stay_valid(crew: Crew) -> None:
    crew.putter.put(numbers(50_000), name=crew.name(0))
    value = crew.getter.get(crew.name(0), timeout=SOON)
    crew.putter.put(numbers(50_000, seed=1), name=crew.name(1), retain=1)
    assert (value == numbers(50_000)).all()
    del value
    eventually(lambda: [row["ref"] for row in crew.getter.objects() if row["ref"] == crew.name(0)] == [])


def test_a_put_that_fails_prunes_nothing(crew: Crew) -> None:
    for number in (1, 2):
        crew.putter.put(numbers(10), name=crew.name(number))
    with pytest.raises(hoplite.NameTaken):
        crew.putter.put(numbers(10), name=crew.name(2), retain=1)
    crew.putter.put(numbers(10), name=crew.name(2), retain=1, exist_ok=True)
    assert_remaining(crew, 1, 2, on=[1, 2])


def test_retain_takes_a_name_with_a_number(crew: Crew) -> None:
    for name in (None, "plain", "17", crew.name("x"), crew.name("")):
        with pytest.raises(hoplite.InvalidArgument, match="retain needs a name"):
            crew.putter.put(b"", name=name, retain=2)
    for retain in (0, -1, 1.5, "2"):
        with pytest.raises(hoplite.InvalidArgument, match=r"^retain "):
            crew.putter.put(b"", name=crew.name(1), retain=retain)  # type: ignore[arg-type]
    assert crew.putter.objects() == []
