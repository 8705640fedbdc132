"""How long a camera waits for tensors, by whose fault it is that they do not come."""

from lookout.runtime.store import TensorNotMadeError, TensorUnavailableError, WaitBudget

AWAY = TensorUnavailableError("nobody answers")
UNMADE = TensorNotMadeError("no such plane")


class World:
    """Cameras that ask in steps of a tenth of a second until they may wait no longer."""

    def __init__(self) -> None:
        self.now = 0.0
        self.patience = WaitBudget(60.0, lambda: self.now)

    def waits(self, camera: str, wanted: int, error: TensorUnavailableError) -> float:
        """Seconds of one wait."""
        since = self.now
        while not self.patience.over(camera, wanted, error):
            self.now += 0.1
        self.patience.done(camera)
        return self.now - since


def test_where_nobody_answers_each_wait_has_its_deadline() -> None:
    world = World()
    assert all(59 < world.waits("cam", wanted, AWAY) < 61 for wanted in range(3))


def test_what_makers_cannot_make_shares_a_budget_of_its_camera() -> None:
    world = World()
    waits = [world.waits("bad", wanted, UNMADE) for wanted in range(100)]
    assert 4.9 < sum(waits) < 5.3
    assert 4.9 < world.waits("other", 0, UNMADE) < 5.3


def test_a_used_budget_comes_back() -> None:
    world = World()
    world.waits("cam", 0, UNMADE)
    world.now += 30.0
    assert 2 < world.waits("cam", 1, UNMADE) < 3
    world.now += 3600.0
    assert 4.9 < world.waits("cam", 2, UNMADE) < 5.3


def test_an_absence_between_costs_no_budget() -> None:
    world = World()
    assert not world.patience.over("cam", 0, UNMADE)
    world.now += 1.0
    assert not world.patience.over("cam", 0, AWAY)  # the maker is restarted
    world.now += 30.0
    assert not world.patience.over("cam", 0, UNMADE)
    world.now += 4.0
    assert not world.patience.over("cam", 0, UNMADE)


def test_cameras_that_came_and_went_are_forgotten() -> None:
    world = World()
    for number in range(5000):
        world.waits(f"cam-{number}", 0, UNMADE)
    assert len(world.patience._waits) <= 1024
