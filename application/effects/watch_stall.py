"""Notice an agent that shows no sign of work, and end it."""

import time
from collections.abc import Callable
from threading import Event as Flag
from threading import Thread
from typing import Self

from ..ports.agents import AgentFailed, AgentSession
from ..ports.log import LogUnavailable
from .record_turn import TurnRecorder


class StallWatch:
    """
    Watches one turn while its block runs. An agent that stays silent for too long is killed, so that the turn ends.

    Waiting for a person, or being paused, is no stall: that time does not count.
    """

    def __init__(
        self, session: AgentSession, recorder: TurnRecorder, seconds: float, is_paused: Callable[[], bool]
    ) -> None:
        self._session = session
        self._recorder = recorder
        self._seconds = seconds
        self._is_paused = is_paused
        self._over = Flag()
        self._thread = Thread(target=self._watch, daemon=True, name="stall-watch")
        #: Whether the agent was ended for its silence.
        self.stalled = False

    def __enter__(self) -> Self:
        self._recorder.touch()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        left = self._seconds
        while not self._over.wait(left):
            last = self._recorder.last_sign
            if last is None or self._paused():
                self._recorder.last_sign = None if last is None else time.monotonic()
                left = self._seconds
                continue
            left = self._seconds - (time.monotonic() - last)
            if left <= 0:
                self.stalled = True
                self._kill()
                return

    def _paused(self) -> bool:
        try:
            return self._is_paused()
        except LogUnavailable:
            # While the log is away nobody can tell; nobody is given up on a guess.
            return True

    def _kill(self) -> None:
        try:
            self._session.kill()
        except AgentFailed:
            # It cannot be killed, or has just gone: either way the turn's own thread is told by its end.
            return
