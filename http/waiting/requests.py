"""What ends each kind of waiting: the requests to send, and the waiting itself in a sentence."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ...projections.money import micros, money
from ...projections.one_line import in_one_line
from ...projections.waiting import LostPart, WaitingDetail, WaitingItem, WaitingRun

#: How much of an agent's or a person's words stands in a sentence.
MAX_WORDS = 200
#: How many files a sentence names.
MAX_NAMED = 3


class RequestToSend(msgspec.Struct, frozen=True, kw_only=True):
    """A request that ends the waiting. Empty words in its body are to be filled in."""

    method: str
    path: str
    body: dict[str, Any] | None
    means: str


def requests_for(row: WaitingRun, item: WaitingItem) -> Sequence[RequestToSend]:
    """Return the requests that end this waiting, what is meant most often first."""
    return [
        RequestToSend(method="POST", path=path, body=body, means=means) for path, body, means in _requests(row, item)
    ]


def _requests(row: WaitingRun, item: WaitingItem) -> Iterator[tuple[str, dict[str, Any] | None, str]]:
    run, child = f"/api/runs/{row.run_id}", f"/api/runs/{item.child_run_id}"
    detail = item.detail
    if item.waits_for != "person":
        yield f"{run}/retry", None, "try it again at once, once what stands in its way is mended"
        return
    match item.kind:
        case "gate":
            seen = {"tree_hash": detail.tree_hash}
            review = f"{run}/assembly/review"
            lands = f"merge it into {row.branch}" if row.delivered_to is None else f"put it onto {row.delivered_to}"
            yield review, {"approved": True, **seen}, f"approve exactly this tree, and {lands}"
            again = {"approved": False, "request_changes": True, "feedback": "", **seen}
            yield review, again, "ask for changes: say in `feedback` which"
            yield review, {"approved": False, **seen}, "decline it: nothing is merged, and the run ends"
        case "outcome_spec":
            yield f"{run}/outcome-spec/confirm", None, "confirm it: planning begins"
            yield (
                f"{run}/outcome-spec/revise",
                {"feedback": ""},
                "have it written anew: say in `feedback` what it lacks",
            )
        case "tool":
            yield f"{child}/tool-approvals", {"request_id": item.id, "scope": "once"}, "let this call pass"
            yield f"{child}/tool-approvals", {"request_id": item.id, "scope": "run"}, "and the same ones of this agent"
            yield f"{child}/tool-denials", {"request_id": item.id}, "deny it: the agent goes on without"
        case "shell":
            yield f"{child}/shell-approvals", {"command_hash": detail.command_hash}, "let this command run"
            yield f"{child}/shell-denials", {"command_hash": detail.command_hash}, "deny it: the agent goes on without"
        case "question":
            yield f"{child}/questions/{item.id}/answer", {"answer": ""}, "answer it"
        case "needs_attention":
            resolve = f"{run}/steering/{detail.directive_id}/resolve"
            yield resolve, {"action": "retry"}, "try it again"
            yield resolve, {"action": "abandon"}, "give it up"
        case "budget":
            limit = detail.limit or ""
            of = run if detail.limit_of == "run" else f"/api/projects/{row.project_id}"
            if detail.reason == "reached":
                more = _twice(detail)
                yield (
                    f"{of}/budget",
                    {limit: more},
                    f"let them use more: say in `{limit}` how much in all",
                )
            yield f"{of}/budget", {limit: None}, f"let them go on without a limit of {limit}"
            yield f"{run}/cancel", None, "stop the run"
        case "blocked":
            redirect = {"kind": "redirect", "instruction": ""}
            yield f"{run}/steer", redirect, "have the parts without a result done again: say in `instruction` how"
            yield (
                f"{run}/cancel",
                None,
                "stop the run; tried again it is a new one that goes on from what was committed",
            )


def _twice(detail: WaitingDetail) -> int | str:
    """Return twice what is allowed, in the form of the request: a proposal."""
    if detail.limit == "money":
        return money(2 * micros(detail.allowed or "0"))
    return 2 * int(detail.allowed or "0")


def summary_of(row: WaitingRun, item: WaitingItem) -> str:
    """Return in one sentence what waits."""
    detail = item.detail
    match item.kind:
        case "gate":
            return _gate(row, detail)
        case "outcome_spec":
            return (
                f"What the goal is taken to mean is to be confirmed: {in_one_line(detail.desired_outcome, MAX_WORDS)}"
            )
        case "tool":
            where = f" at {detail.url}" if detail.url else ""
            return f"The agent wants to use {in_one_line(detail.tool_name, MAX_WORDS)}{where}: {in_one_line(detail.arguments, MAX_WORDS)}"
        case "shell":
            return in_one_line(detail.command, MAX_WORDS)
        case "question":
            return f"The agent asks: {in_one_line(detail.question, MAX_WORDS)}"
        case "needs_attention":
            return f"A correction ({detail.verb}) could not be carried out: {detail.reason or 'it failed too often'}."
        case "budget":
            return _budget(detail)
        case "blocked" if detail.effect is not None:
            return f"{detail.effect} fails time and again ({detail.reason}): {in_one_line(detail.message, MAX_WORDS)}"
        case "blocked":
            lost = [_lost(part) for part in detail.parts[:MAX_NAMED]]
            more = [f"and {len(detail.parts) - MAX_NAMED} more"] if len(detail.parts) > MAX_NAMED else []
            return " ".join([f"The plan stands still ({detail.reason}).", *lost, *more])


def _budget(detail: WaitingDetail) -> str:
    whose, unit = f"the {detail.limit_of}'s budget", detail.currency if detail.limit == "money" else detail.limit
    match detail.reason:
        case "not_reported":
            what = "what it costs" if detail.limit == "money" else "how many tokens it uses"
            return f"No new turn begins: {whose} limits {detail.limit}, and {detail.model_id} does not report {what}."
        case "other_currency":
            return f"No new turn begins: {whose} is in another currency than the agent's report ({detail.currency})."
        case _:
            return f"No new turn begins: {detail.spent} of {detail.allowed} {unit} of {whose} are used."


def _gate(row: WaitingRun, detail: WaitingDetail) -> str:
    said = ["The assembled work is to be reviewed."]
    if detail.has_changes is False:
        said = ["The agents have changed nothing: there is nothing to merge."]
    if detail.reason:
        said.append(f"Why it is here: {detail.reason}.")
    if detail.conflicting_files:
        said.append(f"{_listed(detail.conflicting_files)} was changed in two places.")
    if detail.moved_files:
        said.append(f"{row.branch} has meanwhile changed {_listed(detail.moved_files)}, too.")
    return " ".join(said)


def _lost(part: LostPart) -> str:
    cause = ": ".join(filter(None, (part.error_code, in_one_line(part.message, MAX_WORDS)))) or "without a result"
    return f"{in_one_line(part.title, MAX_WORDS) or f'Subtask {part.subtask_id}'} ({part.agent}): {cause}"


def _listed(paths: Sequence[str]) -> str:
    named = ", ".join(paths[:MAX_NAMED])
    return f"{named} and {len(paths) - MAX_NAMED} more" if len(paths) > MAX_NAMED else named
