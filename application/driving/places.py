"""The places for agents of one process: who has one, who rests beside them, and who is next."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from ..ports.effect_state import PlaceHolder

#: How many agents' processes there may be for each place: most of them rest until somebody answers them. A choice of ours:
#: one that rests costs memory and no processor.
PROCESSES_A_PLACE = 8


#: `working`: an agent is at work in it; `free`: none is. Beside the places: `resting` agents that wait for a person, and what
#: is `waiting` for a place.
PlaceState = Literal["working", "free", "resting", "waiting"]


class Seeker(msgspec.Struct, frozen=True, kw_only=True):
    """An effect whose agent needs a place to work."""

    effect_id: str
    run_id: str
    project_id: str
    #: The effect that begins when there is a place: mostly itself.
    asked_by: str
    #: Whether its turn had begun already, so that it goes before what is new.
    under_way: bool = False
    #: Whether its agent's process is here.
    has_process: bool = False


def next_in_line(
    line: Iterable[Seeker], held: Mapping[str, int], free: int, room: int | None = None
) -> Sequence[Seeker]:
    """
    Return who gets the free places: first those whose turn had begun, then whoever's project holds the fewest places,
    then whoever has waited longest.

    *line* is in the order of asking, *held* counts each project's places, and *room* is for how many more processes
    there is room: whoever has one already needs none.
    """
    left, chosen, counts = list(line), list[Seeker](), Counter(held)
    while len(chosen) < free:
        fitting = (seeker for seeker in left if seeker.has_process or room is None or room > 0)
        # The first of equals is the oldest.
        found = min(fitting, key=lambda seeker: (not seeker.under_way, counts[seeker.project_id]), default=None)
        if found is None:
            break
        left.remove(found)
        chosen.append(found)
        counts[found.project_id] += 1
        room = room if room is None or found.has_process else room - 1
    return chosen


class Places:
    """As many agents at work as there are places. Used under the lock of whoever has it."""

    def __init__(self, places: int, processes: int | None = None) -> None:
        self._places = places
        self._processes = max(places, processes or places * PROCESSES_A_PLACE)
        self._at_work: dict[str, Seeker] = {}
        #: Whose agents wait for a person's word: they keep their processes and hold no place.
        self._resting: dict[str, Seeker] = {}
        #: In the order in which they asked.
        self._line: dict[str, Seeker] = {}

    def take(self, seeker: Seeker) -> bool:
        """Return whether this one's agent may work now; if not, it waits in line from then on."""
        if seeker.effect_id in self._at_work:
            return True
        seeker = self._line.setdefault(seeker.effect_id, seeker)
        if seeker not in self._next():
            return False
        self.leave(seeker.effect_id)
        self._at_work[seeker.effect_id] = seeker
        return True

    def take_again(self, effect_id: str, asked_by: str | None = None) -> bool:
        """Return whether one that may have rested has its place again; if not, it waits in line from then on."""
        seeker = self._resting.get(effect_id)
        if seeker is None:
            return True
        return self.take(msgspec.structs.replace(seeker, asked_by=asked_by or effect_id))

    def rest(self, effect_id: str) -> bool:
        """Let a place go, for as long as only a person can say how this one's work goes on; return whether it had one."""
        seeker = self._at_work.pop(effect_id, None)
        if seeker is not None:
            self._resting[effect_id] = msgspec.structs.replace(seeker, under_way=True, has_process=True)
        return seeker is not None

    def rests(self, effect_id: str) -> bool:
        """Return whether this one's agent is here and holds no place."""
        return effect_id in self._resting

    def leave(self, effect_id: str) -> None:
        """Take note that nothing is left of this one here."""
        for held in (self._at_work, self._resting, self._line):
            held.pop(effect_id, None)

    def leave_line(self, asked_by: Collection[str]) -> bool:
        """Let these wait for no place any more; return whether one of them did."""
        gone = [i for i, seeker in self._line.items() if seeker.asked_by in asked_by]
        for effect_id in gone:
            del self._line[effect_id]
        return bool(gone)

    def line(self) -> Sequence[Seeker]:
        """Return who waits for a place, whoever asked first in front."""
        return list(self._line.values())

    def counts(self) -> Mapping[PlaceState, int]:
        """Return how many are in which state."""
        working = len(self._at_work)
        return {
            "working": working,
            "free": self._places - working,
            "resting": len(self._resting),
            "waiting": len(self._line),
        }

    def next_runs(self) -> list[str]:
        """Return the runs of those who come next, as many as there are free places."""
        return [seeker.run_id for seeker in self._next()]

    def in_the_way_of(self, seeker: Seeker) -> Sequence[PlaceHolder]:
        """Return for whom what this one waits for is taken: a place, or room for one more process."""
        held = list(self._at_work.values())
        if self._room() <= 0 and not seeker.has_process:
            held += self._resting.values()
        return [PlaceHolder(run_id=holder.run_id, project_id=holder.project_id) for holder in held]

    def _next(self) -> Sequence[Seeker]:
        free = self._places - len(self._at_work)
        held = Counter(seeker.project_id for seeker in self._at_work.values())
        return next_in_line(self._line.values(), held, free, self._room())

    def _room(self) -> int:
        return self._processes - len(self._at_work) - len(self._resting)
