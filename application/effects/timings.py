"""How long effects and the driver wait for what; the service has the defaults, tests hand in shorter ones."""

import msgspec


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Waits, in seconds. All are our choice; none is part of a contract."""

    #: How long an agent that is being started is waited for: much longer than it may take.
    open: float = 60.0
    #: How long a paused agent may take to end its turn before its processes are stopped in the middle of it.
    pause: float = 10.0
    #: How long an agent may take to end a cancelled turn before its processes are killed and its session is loaded anew.
    end_turn: float = 30.0
    #: The first of the waits between the tries of a commit that fails; each is twice the one before.
    commit_again: float = 1.0
    #: How long words that may be the beginning of a secret wait for the rest of it.
    hold_words: float = 3.0
    #: How soon the driver looks again although nobody has called it: a wake-up may be lost.
    poll: float = 1.0
    #: How often the driver goes over every open run.
    sweep: float = 30.0
