"""What a campaign's history is worth: everything is collected, every check is made, each violation gets its log."""

import random
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from . import check_agents, check_feeds, check_runs, check_steering
from .campaign import Campaign
from .client import ReplicaClient
from .facts import SeenFact, Violation, smallest
from .faults import at_work_in
from .scene import events_of, git, steersman, whole_log

#: What the auditor's exit code may be: clean, or steered.
UNTAMPERED = (0, 10)
FINISH_SECONDS = 90.0
TURN_LINE = "Steersman-Turn: "
CONTINUES = "You were interrupted. Continue exactly where you stopped"


def judge(
    campaign: Campaign, client: ReplicaClient, note: Callable[[str], None]
) -> tuple[list[SeenFact], list[Violation]]:
    """End a campaign that is at rest, and return its facts and whatever is wrong with them."""
    chance = random.Random(f"{campaign.seed}/judge")
    note("comparing what everybody was shown")
    logs = {url: whole_log(client, url, chance) for url in campaign.urls}
    facts = msgspec.convert(next(iter(logs.values())), list[SeenFact])
    found = check_feeds.replicas_show_one_log(logs)
    found += _feeds(campaign, client, chance)
    client.close()
    note("ending the replicas")
    campaign.replicas.close()
    note("checking the history")
    found += check_agents.nobody_is_left(at_work_in(campaign.data / "worktrees"))
    found += check_agents.one_agent_in_each_workplace(facts)
    found += check_steering.acknowledged_is_stored_once(facts, campaign.acknowledged, campaign.sent)
    found += check_steering.every_directive_ends_once(facts)
    found += check_steering.effects_follow_receipts_once(facts)
    found += check_steering.no_turn_repeats_a_directive(facts)
    found += check_steering.budgets_are_kept(facts)
    found += check_steering.prompted_once(campaign.histories.prompts(), TURN_LINE, CONTINUES)
    found += check_runs.every_run_is_started_once(facts, campaign.runs, campaign.goals)
    found += check_runs.every_gate_is_decided_once(facts)
    found += check_runs.acknowledged_decisions_are_stored(facts, campaign.decisions)
    found += check_runs.every_run_comes_to_rest(facts)
    found += check_runs.numbers_have_no_gap(facts)
    found += _audit(campaign)
    found += _repositories(campaign, facts)
    found += _answers(campaign, client)
    return facts, found


def write_logs(home: Path, seed: int, facts: Sequence[SeenFact], violations: Iterable[Violation]) -> list[Path]:
    """Write for each violation the smallest log that shows it, as JSON lines under a line that says what it is."""
    written: list[Path] = []
    for number, violation in enumerate(violations, 1):
        path = home / f"seed-{seed}-violation-{number}.jsonl"
        shown = smallest(facts, violation) if violation.root or violation.about else []
        lines = [msgspec.json.encode(violation), *(msgspec.json.encode(fact) for fact in shown)]
        path.write_bytes(b"\n".join(lines) + b"\n")
        written.append(path)
    return written


def _feeds(campaign: Campaign, client: ReplicaClient, chance: random.Random) -> list[Violation]:
    by_run: dict[tuple[str, str], list[Any]] = {}
    for subscriber in campaign.subscribers:
        by_run.setdefault((subscriber.run_id, subscriber.root), []).append(subscriber)
    events = {run_id: events_of(client, run_id, chance) for run_id, _ in by_run}
    for subscriber in campaign.subscribers:
        subscriber.finish(len(events[subscriber.run_id]))
    for subscriber in campaign.subscribers:
        subscriber.join(FINISH_SECONDS)
    found: list[Violation] = []
    for (run_id, root), subscribers in by_run.items():
        seen = {s.name: s.frames for s in subscribers}
        found += check_feeds.subscribers_saw_the_log(run_id, root, events[run_id], seen)
    return found


def _audit(campaign: Campaign) -> list[Violation]:
    verify = ("audit", "verify", "--data", campaign.data, "--pin", campaign.pin, "--json")
    audited = steersman(*verify, variables=campaign.variables)
    if audited.returncode in UNTAMPERED:
        return []
    return [Violation(invariant="untampered", message=f"{audited.stdout}{audited.stderr}"[:2_000])]


def _repositories(campaign: Campaign, facts: Sequence[SeenFact]) -> list[Violation]:
    found: list[Violation] = []

    def wrong(message: str, root: str | None = None) -> None:
        found.append(Violation(invariant="merged once", message=message, root=root))

    for repository in campaign.repositories:
        if changed := git(repository, "status", "--porcelain").stdout:
            wrong(f"{repository.name} is not clean: {changed[:500]}")
        if broken := git(repository, "fsck", "--connectivity-only", "--no-dangling").stderr:
            wrong(f"{repository.name} is broken: {broken[:500]}")
    where = {fact.run: fact.payload["repositoryPath"] for fact in facts if fact.type == "coordinator.started"}
    for fact in facts:
        if fact.type == "coordinator.assembly_merge_completed":
            commit = fact.payload["commitHash"]
            if git(Path(where[fact.run]), "merge-base", "--is-ancestor", commit, "main").returncode:
                wrong(f"{fact.root} says that it was merged as {commit}, which main does not hold", fact.root)
    return found


def _answers(campaign: Campaign, client: ReplicaClient) -> list[Violation]:
    wrong = [*client.wrong, *(answer for s in campaign.subscribers for answer in s.wrong)]
    found = [
        Violation(invariant="answers", message=f"{request} was answered {status}: {body}", about=tuple(_ids(request)))
        for request, status, body in wrong
    ]
    for name, code in campaign.replicas.died:
        found.append(Violation(invariant="replicas live", message=f"{name} ended by itself with {code}"))
    found += [
        Violation(invariant="comes to rest", message=t, root=next(iter(_ids(t)), None)) for t in campaign.troubles
    ]
    return found


def _ids(words: str) -> list[str]:
    return re.findall(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", words)
