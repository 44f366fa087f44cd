"""When a notice that did not get there is sent again, and when no more."""

#: Standard Webhooks' own: five seconds to a day, about three days in all.
SCHEDULE_SECONDS = (5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
#: So much of a wait is left to chance, so that receivers that came back are not overrun.
JITTER = 0.2
#: Nobody is left alone for longer because they ask for it.
MOST_RETRY_AFTER_SECONDS = 86_400.0
#: A command of our own is never given up; after a while it is tried this often.
COMMAND_SECONDS = 300


def gives_up(failures: int) -> bool:
    """Return whether so many failures in a row are too many."""
    return failures > len(SCHEDULE_SECONDS)


def wait_seconds(failures: int, draw: float, retry_after: float | None = None) -> float:
    """Return how long to wait after so many failures in a row. *draw* is from 0 up to 1."""
    due = SCHEDULE_SECONDS[min(failures, len(SCHEDULE_SECONDS)) - 1] * (1 + JITTER * draw)
    return max(due, min(retry_after or 0.0, MOST_RETRY_AFTER_SECONDS))


def command_wait_seconds(failures: int, draw: float) -> float:
    """Return the same for a command of this installation's own."""
    return min(wait_seconds(failures, draw), COMMAND_SECONDS)
