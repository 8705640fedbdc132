"""What a store tells of the directory entries it holds tensors of."""

from __future__ import annotations

from lookout.runtime.store.announcing import Announcements


class Heard:
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []

    def held(self, entry: str) -> None:
        self.said.append(("held", entry))

    def dropped(self, entry: str) -> None:
        self.said.append(("dropped", entry))


def test_an_entry_lasts_as_long_as_its_last_tensor() -> None:
    heard = Heard()
    told = Announcements(heard)
    for _ in range(2):
        told.add("a")
        told.tell("a")
    told.remove("a")
    told.tell()
    assert (told.entries(), heard.said) == (["a"], [("held", "a")] * 2)
    told.remove("a")
    assert heard.said == [("held", "a")] * 2  # it only counts
    told.tell()
    assert (told.entries(), heard.said[2:]) == ([], [("dropped", "a")])
    told.tell()
    assert len(heard.said) == 3


def test_what_came_again_is_not_taken_back() -> None:
    heard = Heard()
    told = Announcements(heard)
    told.add("a")
    told.remove("a")
    told.add("a")
    told.tell("a")
    assert heard.said == [("held", "a")]


def test_what_is_not_held_is_not_announced() -> None:
    heard = Heard()
    told = Announcements(heard)
    told.tell("a")
    told.add("b")
    told.remove("b")
    told.tell("b")
    assert heard.said == [("dropped", "b")]


def test_without_a_listener_nothing_is_kept_for_one_that_comes_later() -> None:
    told = Announcements()
    told.add("a")
    told.add("b")
    told.remove("b")
    told.tell("a")
    told.holdings = heard = Heard()
    told.tell()
    assert heard.said == []
    assert told.entries() == ["a"]
