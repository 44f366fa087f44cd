"""What a run's agents have used, in tokens. Key: the run's id; group: its coordinator's."""

from collections.abc import Mapping

import msgspec

from ..domain.event import Fact
from ..domain.facts.agent_output import TurnUsage
from ..domain.facts.child_run import RunStarted
from ..domain.facts.run import CoordinatorStarted
from .view import Rows, View, deleted_run

VERSION = 1


class TokenUsage(msgspec.Struct, frozen=True, kw_only=True):
    """One run's tokens: input and output of each of its turns. A later report of a turn takes the earlier one's place."""

    run_id: str
    root: str
    #: The position of the run's first fact.
    position: int
    agent_name: str
    model_id: str
    turns: dict[str, tuple[int, int]] = {}

    @property
    def input_tokens(self) -> int:
        """What went in, over all turns."""
        return sum(used for used, _ in self.turns.values())

    @property
    def output_tokens(self) -> int:
        """What came out, over all turns."""
        return sum(used for _, used in self.turns.values())


def apply(rows: Rows[TokenUsage], fact: Fact) -> Mapping[str, TokenUsage | None]:
    """Fold one fact."""
    if (deleted := deleted_run(fact)) is not None:
        return {deleted: None, **dict.fromkeys(rows.group(deleted))}
    run_id, event = fact.run or "", fact.event
    match event:
        case CoordinatorStarted():
            return {run_id: _started(fact, "Coordinator", event.model_id)}
        case RunStarted():
            return {run_id: _started(fact, event.agent_name, event.model_id)}
        case TurnUsage() if (row := rows.get(run_id)) is not None:
            turns = {**row.turns, event.turn_id: (event.input_tokens, event.output_tokens)}
            return {run_id: msgspec.structs.replace(row, turns=turns)}
        case _:
            return {}


def _started(fact: Fact, agent_name: str, model_id: str) -> TokenUsage:
    run_id = fact.run or ""
    return TokenUsage(
        run_id=run_id, root=fact.root or run_id, position=fact.position, agent_name=agent_name, model_id=model_id
    )


VIEW = View("token_usage", VERSION, TokenUsage, apply=apply, place=lambda row: (row.root, row.position))
