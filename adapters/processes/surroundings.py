"""A command with everything that it finds around it, ready to be started in a box or without one."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from ...application.ports.agents import AgentFailed
from .agent_process import Launch
from .agents_file import Surroundings
from .box import Box, Inside, Mount
from .bubblewrap import PROXY_PORT
from .programs import mounts_of
from .proxy import Door, near_ports

#: Variables that name files which a program reads, wherever these are.
CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS")


class Surrounded(msgspec.Struct, frozen=True, kw_only=True):
    """A command, and what it finds inside."""

    argv: tuple[str, ...]
    inside: Inside
    around: Surroundings
    home: Path

    async def open_door(self, box: Box) -> Door | None:
        """Return the proxy that the command needs, which whoever starts it ends afterwards."""
        if box.isolation == "none" or self.around.network != "proxy":
            return None
        door = await Door(self.around.ways_out()).begin()
        box.give(door.path)
        return door

    def launch(self, box: Box, door: Door | None) -> Launch:
        """Return how it is started. Raises AgentFailed."""
        cwd = self.inside.cwd
        if box.isolation == "none":
            return Launch(argv=self.argv, cwd=cwd, env=self.inside.env)
        if not cwd.is_dir():
            message = f"the working directory cannot be entered: {cwd}"
            raise AgentFailed("agent_exited", message, retryable=True)
        inside = msgspec.structs.replace(self.inside, proxy=door.path if door else None)
        return Launch(argv=box.command(self.argv, inside), cwd=Path("/"), env=inside.env, is_boxed=True)


def surrounded(
    argv: Sequence[str],
    env: Mapping[str, str],
    around: Surroundings,
    *,
    cwd: Path,
    home: Path,
    reads: Sequence[Path] = (),
) -> Surrounded:
    """Return a command with its working directory and home to write to, and whatever else it may see."""
    # With every link on the way to it resolved, so that the way exists inside.
    program = os.path.join(os.path.realpath(os.path.dirname(argv[0])), os.path.basename(argv[0]))
    words = (program, *argv[1:])
    certificates = [Path(env[name]) for name in CERTIFICATES if env.get(name)]
    mounts = (
        *mounts_of(words, env.get("PATH")),
        *(Mount(source=path.resolve(), target=path) for path in certificates),
        *(Mount(source=shown.source, target=shown.place) for shown in around.mounts if shown.mode == "read"),
        *(Mount(source=path) for path in reads),
        Mount(source=home, writable=True),
        Mount(source=cwd, writable=True),
    )
    inside = Inside(
        cwd=cwd,
        env=env,
        mounts=mounts,
        network=around.network,
        reach=near_ports(around.ways_out().reach, PROXY_PORT) if around.network == "proxy" else (),
        limits=around.limits,
    )
    return Surrounded(argv=words, inside=inside, around=around, home=home)
