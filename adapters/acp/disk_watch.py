"""A watch on an agent's disk: it ends an agent whose workplace and home grow too large, and says so."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import structlog

from ...application.ports.agents import AgentFailed
from ..processes.box import Box, CommandTooLong, Inside, Mount, run

#: Asking how much room is left costs nothing; how much somebody uses is only asked when there is less of it.
LOOK_SECONDS = 5.0
MEASURE_SECONDS = 300.0
LEAST_STEP_BYTES = 1024 * 1024
MOST_STEP_BYTES = 256 * 1024 * 1024
#: The smaller the limit, the smaller the step at which is looked.
STEPS_IN_LIMIT = 8
DU = "/usr/bin/du"

log = structlog.get_logger(__name__)


async def watch_disk(
    box: Box, places: tuple[Path, ...], limit_bytes: int, too_much: Callable[[AgentFailed], None]
) -> None:
    """Look until this is cancelled, or the places hold too much; then say so, once."""
    step = min(MOST_STEP_BYTES, max(LEAST_STEP_BYTES, limit_bytes // STEPS_IN_LIMIT))
    # In what it finds it may have no part; so the first look is at everything.
    left = free(places) + step
    while True:
        now = free(places)
        if now <= left - step:
            left = now
            used = await asyncio.to_thread(held_by, box, places)
            if used is not None and used > limit_bytes:
                message = f"its workplace and its home hold {used >> 20} MiB, and {limit_bytes >> 20} may be"
                too_much(AgentFailed("agent_disk_limit", message, retryable=False))
                return
        left = max(left, now)
        await asyncio.sleep(LOOK_SECONDS)


def free(places: tuple[Path, ...]) -> int:
    """Return how much room is left where that is the least."""
    return min(status.f_bavail * status.f_frsize for status in map(os.statvfs, places))


def held_by(box: Box, places: tuple[Path, ...]) -> int | None:
    """Return how many bytes of the disk the places hold, as seen from inside a box; None if that cannot be told."""
    inside = Inside(cwd=places[0], env={"LC_ALL": "C"}, mounts=tuple(Mount(source=place) for place in places))
    try:
        ended = run(box, [DU, "-scxk", *map(str, places)], inside, timeout_seconds=MEASURE_SECONDS)
        return int(ended.output.split()[-2]) * 1024
    except (OSError, CommandTooLong, ValueError, IndexError) as error:
        log.warning("what an agent holds of the disk could not be measured", error=str(error))
        return None
