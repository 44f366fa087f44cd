"""How many agents this machine can have at once, held against how many it is asked for."""

import resource
from pathlib import Path

from ...application.driving.places import PROCESSES_A_PLACE
from ..refused import Refused
from ..settings import Settings

#: What the service holds open for one agent: five pipes, the two ends of its proxy's door, and connections through it.
FILES_AN_AGENT = 16
#: A keeper of two, the box's two, the forwarder, and an agent with some threads and tools.
PROCESSES_AN_AGENT = 24
#: Files, sockets and pipes that are open besides those of feeds and agents.
OTHER_FILES = 1_024
#: Without anybody who follows a feed.
LEAST_FILES = 256
OTHER_PROCESSES = 256


def files_wanted(settings: Settings) -> int:
    """Return how many files the service may have to have open."""
    return settings.max_feeds + processes(settings) * FILES_AN_AGENT + OTHER_FILES


def processes(settings: Settings) -> int:
    """Return how many agents may be here at once: those at work, and beside them those that wait for a person."""
    return max(settings.max_agents, min(_room()[1], settings.max_agents * PROCESSES_A_PLACE))


def room_for_agents(settings: Settings) -> str:
    """Return how many agents there may be, if this machine has room for them. Raises Refused, with the number that fits."""
    what, least = _room()
    if least < settings.max_agents:
        raise Refused(
            f"STEERSMAN_MAX_AGENTS is {settings.max_agents}, and this machine has room for {max(least, 0)}: "
            f"what bounds it are the {what}."
        )
    return f"{settings.max_agents} agents at once, of {least} that this machine has room for"


def _room() -> tuple[str, int]:
    """Return how many agents this machine has room for, and what bounds them."""
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = {"processes of the machine (kernel.pid_max)": _number("/proc/sys/kernel/pid_max")}
    limits["threads of the machine (kernel.threads-max)"] = _number("/proc/sys/kernel/threads-max")
    limits["tasks of this service (its control group)"] = _control_group()
    own, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    limits["processes of this user (ulimit -u)"] = None if own == resource.RLIM_INFINITY else own
    fits = {what: (most - OTHER_PROCESSES) // PROCESSES_AN_AGENT for what, most in limits.items() if most is not None}
    if files != resource.RLIM_INFINITY:
        fits["open files (ulimit -n)"] = (files - LEAST_FILES) // FILES_AN_AGENT
    return min(fits.items(), key=lambda item: item[1])


def _number(path: str) -> int | None:
    try:
        return int(Path(path).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _control_group() -> int | None:
    try:
        own = Path("/proc/self/cgroup").read_text(encoding="ascii").rpartition("0::")[2].strip()
    except OSError:
        return None
    return _number(f"/sys/fs/cgroup{own}/pids.max")
