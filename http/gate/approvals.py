"""What agents wait for: tool and command approvals, questions, and what a run does by itself."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import msgspec
from litestar import Response, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, JSONBody
from msgspec import Meta

from ...application.commands.answer_agent import Resolved, WantedAnswer, resolve_request, set_option
from ...application.writer.caller import Answer
from ...domain.event import Draft, Fact
from ...domain.facts.asking import Scope
from ...domain.facts.run import CoordinatorRun
from ...domain.work.answers import find_command, find_request
from ..request.access import RunPlace
from ..request.idempotency import Asking, Asks, Command
from ..request.one_run import UseCoordinator
from ..request.problems import refusals

Id = Annotated[str, Meta(min_length=1, max_length=200)]


class ToolApproval(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Let a tool call pass, once or for more than this call; turning auto-approval off takes the latter back."""

    request_id: Id
    scope: Annotated[
        Scope,
        Meta(
            description="once: this call. run: the same tool and address, in the run that asks. tool: the same tool "
            "with any address, in the run that asks. always: every tool, in every run of the orchestration."
        ),
    ] = "once"


class ToolDenial(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Deny a tool call."""

    request_id: Id


class CommandDecision(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A destructive command, by the digest that its request carries."""

    command_hash: Id


class AnswerRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The answer to a question."""

    answer: Annotated[str, Meta(min_length=1, max_length=65_536)]


class Toggle(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Turn something on or off."""

    enabled: bool


class Decided(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of a request. `run_id` is the run whose agent asked."""

    run_id: str
    request_id: str | None = None
    command_hash: str | None = None
    approved: bool | None = None
    denied: bool | None = None
    answered: bool | None = None
    resolved: bool | None = None
    expired: bool | None = None
    state: str | None = None


class Options(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a run does by itself."""

    run_id: str
    auto_approve_tools: bool | None = None
    autopilot: bool | None = None


DECIDED = {200: ResponseSpec(Decided, description="What became of it", generate_examples=False)}
OPTIONS = {200: ResponseSpec(Options, description="The options", generate_examples=False)}
REFUSALS = refusals(403, 404, 409, 413, 422)


@post("/api/runs/{run_id:str}/tool-approvals", status_code=200, sync_to_thread=True, responses=DECIDED | REFUSALS)
def approve_tool(run_id: FromPath[str], data: JSONBody[ToolApproval], asking: Asks) -> Response[bytes]:
    """Let a tool call pass. A request that was decided before is answered with what was decided."""
    wanted = WantedAnswer(request_id=data.request_id, state="approved", scope=data.scope)
    return _decide(asking, run_id, wanted, _tool_told)


@post("/api/runs/{run_id:str}/tool-denials", status_code=200, sync_to_thread=True, responses=DECIDED | REFUSALS)
def deny_tool(run_id: FromPath[str], data: JSONBody[ToolDenial], asking: Asks) -> Response[bytes]:
    """Deny a tool call. A request that was decided before is answered with what was decided."""
    return _decide(asking, run_id, WantedAnswer(request_id=data.request_id, state="denied"), _tool_told)


@post("/api/runs/{run_id:str}/shell-approvals", status_code=200, sync_to_thread=True, responses=DECIDED | REFUSALS)
def approve_command(run_id: FromPath[str], data: JSONBody[CommandDecision], asking: Asks) -> Response[bytes]:
    """Let a destructive command run."""
    return _command(asking, run_id, data.command_hash, "approved")


@post("/api/runs/{run_id:str}/shell-denials", status_code=200, sync_to_thread=True, responses=DECIDED | REFUSALS)
def deny_command(run_id: FromPath[str], data: JSONBody[CommandDecision], asking: Asks) -> Response[bytes]:
    """Keep a destructive command from running."""
    return _command(asking, run_id, data.command_hash, "denied")


@post(
    "/api/runs/{run_id:str}/questions/{request_id:str}/answer",
    status_code=200,
    sync_to_thread=True,
    responses=DECIDED | REFUSALS,
)
def answer(
    run_id: FromPath[str], request_id: FromPath[str], data: JSONBody[AnswerRequest], asking: Asks
) -> Response[bytes]:
    """Answer an agent's question; the first answer stands."""
    wanted = WantedAnswer(request_id=request_id, state="answered", words=data.answer)

    def told(found: Resolved, _: WantedAnswer) -> Decided:
        return Decided(run_id=found.run_id, request_id=found.request_id, answered=True)

    return _decide(asking, run_id, wanted, told)


@post("/api/runs/{run_id:str}/auto-approve", status_code=200, sync_to_thread=True, responses=OPTIONS | REFUSALS)
def auto_approve(run_id: FromPath[str], data: JSONBody[Toggle], asking: Asks) -> Response[bytes]:
    """Let tools pass without asking, or ask about each again; what is destructive is asked about all the same."""
    return _option(
        asking,
        run_id,
        data.enabled,
        lambda run, place: Options(run_id=place.run_id, auto_approve_tools=run.auto_approve_tools),
        "auto_approve_tools",
    )


@post("/api/runs/{run_id:str}/autopilot", status_code=200, sync_to_thread=True, responses=OPTIONS | REFUSALS)
def autopilot(run_id: FromPath[str], data: JSONBody[Toggle], asking: Asks) -> Response[bytes]:
    """Let the coordinator answer its agents' questions by itself, or leave them to people."""
    return _option(
        asking,
        run_id,
        data.enabled,
        lambda run, place: Options(run_id=place.run_id, autopilot=run.autopilot),
        "autopilot",
    )


def _command(asking: Asking, run_id: str, digest: str, state: Literal["approved", "denied"]) -> Response[bytes]:
    place = asking.access.run(asking.principal, run_id, change=True)
    _, request = find_command(asking.services.runs.run(place.root), digest, _child(place))

    def told(found: Resolved, wanted: WantedAnswer) -> Decided:
        return _named(Decided(run_id=found.run_id, command_hash=digest), found, wanted)

    return _decide(asking, run_id, WantedAnswer(request_id=request.request_id, state=state), told)


def _child(place: RunPlace) -> str | None:
    return None if place.is_coordinator else place.run_id


def _tool_told(found: Resolved, wanted: WantedAnswer) -> Decided:
    decided = Decided(
        run_id=found.run_id,
        request_id=found.request_id,
        resolved=True,
        expired=found.state == "expired",
        state=found.state,
    )
    return _named(decided, found, wanted)


def _named(decided: Decided, found: Resolved, wanted: WantedAnswer) -> Decided:
    """Return the answer with the member that says whether it came as it was wanted."""
    return msgspec.structs.replace(decided, **{wanted.state: found.state == wanted.state})


def _decide(
    asking: Asking, run_id: str, wanted: WantedAnswer, shown: Callable[[Resolved, WantedAnswer], Decided]
) -> Response[bytes]:
    """Carry a decision out, and tell what became of the request: whoever asks again is told the same."""
    place = asking.access.run(asking.principal, run_id, change=True)
    wanted = msgspec.structs.replace(wanted, asked_by=_child(place))
    runs = asking.services.runs

    def carry_out(command: Command) -> Sequence[Fact]:
        def told(run: CoordinatorRun, _: Sequence[Draft]) -> Answer:
            child, request = find_request(run, wanted.request_id)
            decided = Resolved(run_id=child.run_id, request_id=request.request_id, state=wanted.state)
            return command.tell(200, shown(decided, wanted))

        found = resolve_request(place.root, wanted, command.by, runs, told)
        command.tell(200, shown(found, wanted))
        return ()

    return asking.once(carry_out)


def _option(
    asking: Asking,
    run_id: str,
    enabled: bool,
    shown: Callable[[CoordinatorRun, RunPlace], Options],
    option: Literal["auto_approve_tools", "autopilot"],
) -> Response[bytes]:
    place = asking.access.run(asking.principal, run_id, change=True)
    if not place.is_coordinator:
        # A child does what its run does: an answer for one of them alone would be none.
        raise UseCoordinator(coordinator_run_id=place.root)

    def carry_out(command: Command) -> Sequence[Fact]:
        def told(run: CoordinatorRun, _: Sequence[Draft]) -> Any:
            return command.tell(200, {"run_id": place.run_id, option: enabled})

        run = set_option(place.root, option, enabled, command.by, asking.services.runs, told)
        command.tell(200, shown(run, place))
        return ()

    return asking.once(carry_out)
