"""A waiter sees progress that nobody here made, and is not late for progress that was made here."""

from threading import Thread

from steersman.adapters.stores.position_waiters import PositionWaiters


def test_a_waiter_looks_again_although_nobody_in_this_process_told_it_to() -> None:
    positions = iter([1, 1, 2])
    reached: list[bool] = []
    waiter = Thread(
        target=lambda: reached.append(PositionWaiters().wait(lambda: next(positions), 2, 3600)), daemon=True
    )
    waiter.start()
    waiter.join(60)
    assert reached == [True]


def test_progress_between_the_look_and_the_sleep_is_not_slept_through() -> None:
    waiters, looks = PositionWaiters(), list[int]()

    def position_now() -> int:
        looks.append(1)
        if len(looks) == 1:
            waiters.progressed()
            return 1
        return 2

    assert waiters.wait(position_now, 2, 3600)
    assert len(looks) == 2


def test_a_wait_that_is_over_says_so() -> None:
    assert not PositionWaiters().wait(lambda: 1, 2, 0)
