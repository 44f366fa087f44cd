"""Verify a bundle: of a whole log, or of one run."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .facts import COLUMNS, Log, Row, Tampered
from .notes import Checkpoint, Unreadable, from_base64, read_checkpoint, read_tree_head
from .tree import goes_on
from .trust import Trust, Verdict, WholeLog, check_keys, check_pin, check_signed, judge, read_end

FORMAT = "steersman-audit@v1"
LONGEST_LINE = 32 * 1024 * 1024
NEEDED = {"position", *COLUMNS, "is_output", "envelope", "leaf_hash", "mac"}
ALLOWED = NEEDED | {"texts", "previous_mac", "proof"}


def verify_bundle(path: Path, trust: Trust) -> Verdict:
    """The verdict on a bundle."""
    lines = read_lines(path)
    first = next(lines, {})
    opening = first.get("opening")
    if first.get("format") != FORMAT or not isinstance(opening, dict):
        raise Unreadable("no bundle")
    end, run = read_end(opening.get("checkpoint")), opening.get("run")
    log = Log(run=run, topics=trust.topics, hmac_keys=trust.hmac_keys, end=end.size, checkpoint_root=end.root)
    whole = WholeLog(log, trust.pins if run is None else [])
    told: list[str] = []
    for line in facts_and_points(lines, log):
        if isinstance(line, Row):
            log.take(line)
            whole.pass_fact()
        elif not whole.pass_point(line):
            told.append(f"a checkpoint of {line.size} facts that nobody signed")
    if run is None:
        whole.finish(end, trust)
        return judge(log, trust, told)
    if not log.run_facts:
        raise Unreadable("there are no facts of the run")
    check_signed(log, end)
    check_keys(log, trust)
    is_open = check_pins(log, opening, end, trust.pins)
    return judge(log, trust, told, is_open=not is_vouched_for(log, opening, end) or is_open)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a file, each an object."""
    with path.open("rb") as file:
        while line := file.readline(LONGEST_LINE + 1):
            try:
                value = json.loads(line) if len(line) <= LONGEST_LINE else None
            except (ValueError, RecursionError) as error:
                raise Unreadable("a line that is no JSON") from error
            if not isinstance(value, dict):
                raise Unreadable("a line that is no object, or too long")
            yield value


def facts_and_points(lines: Iterator[dict[str, Any]], log: Log) -> Iterator[Row | Checkpoint]:
    """What stands between the first line and the last, which has to be there and to count the facts."""
    facts = 0
    for line in lines:
        if line.keys() == {"facts"}:
            if line["facts"] != facts or next(lines, None) is not None:
                raise Tampered(log.last + 1, "the last line counts other facts")
            return
        if line.keys() == {"checkpoint"}:
            yield read_checkpoint(line["checkpoint"])
            continue
        facts += 1
        yield read_row(line)
    raise Tampered(log.last + 1, "the bundle was cut off")


def read_row(line: dict[str, Any]) -> Row:
    """The fact of a line."""
    if not NEEDED <= line.keys() <= ALLOWED:
        raise Unreadable("a fact with other members")
    try:
        texts = [
            (text["digest"], from_base64(text["salt"]), from_base64(text["words"])) for text in line.get("texts", ())
        ]
        proof = [from_base64(step) for step in line.get("proof") or ()]
    except (TypeError, KeyError) as error:
        raise Unreadable("a fact with other members") from error
    mac, previous = line["mac"], line.get("previous_mac")
    return Row(
        position=line["position"],
        columns={name: line[name] for name in COLUMNS},
        is_output=line["is_output"],
        envelope=from_base64(line["envelope"]),
        leaf_hash=from_base64(line["leaf_hash"]),
        mac=None if mac is None else from_base64(mac),
        texts=texts,
        previous_mac=None if previous is None else from_base64(previous),
        proof=proof,
    )


def check_pins(log: Log, opening: dict[str, Any], end: Checkpoint, pins: list[Checkpoint]) -> bool:
    """Each pin is a tree that the one of the bundle goes on from; True where one is larger than that."""
    is_open = False
    for pin in pins:
        check_pin(log, pin)
        kept = log.kept.get(pin.origin, end.size)
        if pin.size > kept and log.key is not None and pin.origin != log.key.name:
            raise Tampered(kept + 1, "facts that were pinned are missing")
        if pin.size > kept:
            is_open = True
            continue
        proof: list[bytes] = []
        if pin.size != end.size:
            if opening.get("consistent_from") != pin.size:
                raise Unreadable(f"the bundle does not show that the log goes on from {pin.size} facts")
            proof = [from_base64(step) for step in opening.get("consistency") or ()]
        if not goes_on(pin.size, pin.root, end.size, end.root, proof):
            raise Tampered(None, "the log does not go on from a pin")
    return is_open


def is_vouched_for(log: Log, opening: dict[str, Any], end: Checkpoint) -> bool:
    """Whether a tree head says that the run has no more facts than the bundle."""
    if opening.get("tree_head") is None:
        return False
    try:
        head = read_tree_head(opening["tree_head"])
    except Unreadable as error:
        raise Tampered(None, "what is kept as a tree head is none") from error
    check_signed(log, head)
    if (head.run, head.size, head.root) != (log.run, end.size, end.root):
        return False
    if head.facts != log.run_facts:
        raise Tampered(None, "facts of the run were left out at the end")
    return True
