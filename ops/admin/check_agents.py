"""Agents tried out: each is started as for a run, says hello, is logged in and opens a session; no model is asked."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import msgspec

from ...adapters.acp.agents import AcpAgents
from ...adapters.processes.homes import Homes
from ...application.ports.agents import AgentFailed, SessionRequest
from ..serving.data_dir import prepare_data_dir
from ..serving.wiring import check_box, known_agents, open_box
from ..settings import Settings


class AgentChecked(msgspec.Struct, frozen=True, kw_only=True):
    """What came of trying an agent out: whether it starts, in a word if not, and in words."""

    name: str
    ok: bool
    code: str = ""
    detail: str


def check_agents(settings: Settings, agents_file: Path | None, names: Sequence[str]) -> Iterator[AgentChecked]:
    """Try each agent out in its box, one after the other; what it had there is gone afterwards. Raises Refused."""
    known = known_agents(settings, agents_file)
    box = open_box(settings, known)
    check_box(box)
    data = prepare_data_dir(settings.data)
    homes = Homes(data / "homes", box)
    with closing(AcpAgents(known, data, box=box)) as agents:
        for name in names:
            run_id = f"check-{uuid4()}"
            workplace = homes.make(f"{run_id}-workplace")
            try:
                yield _checked(agents, name, SessionRequest(model_id=name, run_id=run_id, cwd=workplace))
            finally:
                homes.forget((run_id, workplace.name))


def _checked(agents: AcpAgents, name: str, request: SessionRequest) -> AgentChecked:
    try:
        with closing(agents.open(request)) as session:
            can = ", ".join(session.capabilities) or "nothing beyond a session"
    except AgentFailed as failed:
        return AgentChecked(name=name, ok=False, code=failed.code, detail=str(failed))
    return AgentChecked(name=name, ok=True, detail=f"opened a session; it can: {can}")
