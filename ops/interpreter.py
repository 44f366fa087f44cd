"""The interpreter's settings in a service: it looks for reference cycles seldom, and changes threads soon."""

import gc
import sys

#: After how many new objects the youngest are looked at, and after how many such looks the older and all of them.
#: A batch makes some thousands of objects, all of which are gone after it by themselves.
COLLECTED_AFTER = (50_000, 20, 100)
#: How long a thread that computes keeps the others waiting, in seconds; the interpreter's own choice is 0.005. The event
#: loop waits so long each time that it has something to do while the writer decides or a view is folded.
TURN_SECONDS = 0.0005


def tune() -> None:
    """On return what has been made so far is never looked at again by the collector, and what is new seldom."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTED_AFTER)
    sys.setswitchinterval(TURN_SECONDS)
