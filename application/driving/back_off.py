"""How long a failed try is rested from."""

import msgspec

#: However much processor time a try took, its next one comes within this.
LONGEST_REST_SECONDS = 900.0


class BackOff(msgspec.Struct, frozen=True, kw_only=True):
    """Each time longer, up to a bound, and never for all at the same moment."""

    first_seconds: float = 0.5
    longest_seconds: float = 60.0
    #: After so many failures in a row what stands in the way is told.
    tries: int = 3
    #: After so many faults of the program in a row an assembly ends with its cause. Our choice: about a quarter of an hour.
    faults: int = 20
    #: For how many times as long as a try kept a processor busy nothing is tried after it.
    rest: float = 9.0

    def wait(self, failures: int, draw: float, busy_seconds: float = 0.0) -> float:
        """Return how long to wait after so many failures in a row. *draw* is from 0 up to 1: a quarter is left to chance."""
        due = min(self.first_seconds * 2 ** min(failures - 1, 10), self.longest_seconds)
        return max(due * (1 - draw / 4), min(busy_seconds * self.rest, LONGEST_REST_SECONDS))
