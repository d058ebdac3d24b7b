"""How often, and until when, the units of a process may move on."""

from workflow.executor.moving import Mover


class Clock:
    """A clock that stands still until it is set."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_unit_may_move_as_often_as_there_are_jobs_to_be_taken_within_its_slice():
    clock = Clock()
    mover = Mover(lambda: 3, lambda count: None, slice=2.0, rest=5.0, now=clock)
    assert mover.allows(100.0) == 3
    clock.now = 101.9
    assert mover.allows(100.0) == 3
    clock.now = 102.0
    assert (mover.allows(100.0), mover.allows(101.0)) == (0, 3)


def test_a_process_that_has_taken_more_than_it_may_takes_nothing():
    assert Mover(lambda: -1, lambda count: None).allows(0.0) == 0


def test_after_a_refusal_no_unit_moves_for_a_while():
    clock = Clock()
    mover = Mover(lambda: 3, lambda count: None, slice=60.0, rest=5.0, now=clock)
    mover.refused()
    clock.now = 104.9
    assert mover.allows(104.0) == 0
    clock.now = 105.0
    assert mover.allows(104.0) == 3
