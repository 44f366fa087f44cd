"""Verify a store: the rows of its tables, and the file of checkpoints beside it."""

import json
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .facts import COLUMNS, Log, Row, Tampered
from .notes import Checkpoint, Key, Unreadable, from_base64, key_id, read_checkpoint
from .trust import Trust, Verdict, WholeLog, check_signed, judge, read_end

TABLES = ("events", "texts", "nodes", "head")
Rows = list[dict[str, Any]]
OPENED, ROTATED = "log.opened", "log.key_rotated"


def verify_folder(folder: Path, trust: Trust) -> Verdict:
    """The verdict on a SQLite store. It is read from a copy, so that nothing in the folder changes."""
    with tempfile.TemporaryDirectory() as copies:
        for file in folder.glob("log.db*"):
            shutil.copy(file, copies)
        database = sqlite3.connect(Path(copies, "log.db"))
        database.row_factory = sqlite3.Row
        try:
            tables = {name: [dict(row) for row in database.execute(f"SELECT * FROM {name}")] for name in TABLES}
        except sqlite3.Error as error:
            raise Unreadable(f"no store: {error}") from error
        finally:
            database.close()
    file = folder / "checkpoints.log"
    return verify_tables(tables, file.read_text(encoding="utf-8").splitlines() if file.exists() else [], trust)


def verify_tables(tables: dict[str, Rows], lines: list[str], trust: Trust) -> Verdict:
    """The verdict on the rows of a store, and the lines of the file of checkpoints."""
    if len(tables["head"]) != 1 or type(tables["head"][0]["position"]) is not int:
        raise Tampered(None, "a store with no head, or with several")
    head = tables["head"][0]
    told: list[str] = []
    points = read_points(lines, told)
    newest = read_end(head["note"])
    largest = largest_points(points, tables["events"], trust, told)
    end = max([newest, *largest], key=lambda point: point.size)
    log = Log(topics=trust.topics, hmac_keys=trust.hmac_keys, end=end.size)
    whole = WholeLog(log, trust.pins)
    for row in read_rows(tables):
        if type(row.position) is int and not 1 <= row.position <= head["position"]:
            continue  # found when all the others are known to be sound
        log.take(row)
        whole.pass_fact()
        for point in points.get(log.last, ()):
            if not whole.pass_point(point):
                told.append(f"a checkpoint of {point.size} facts that nobody signed")
    check_tree(tables, log)
    check_places(tables["events"], head["position"])
    whole.finish(end, trust)
    check_head(head, newest, log)
    return judge(log, trust, told)


def read_points(lines: list[str], told: list[str]) -> dict[int, list[Checkpoint]]:
    """The checkpoints of the file by their sizes; what is none is told."""
    points: dict[int, list[Checkpoint]] = {}
    for number, line in enumerate(lines, 1):
        try:
            point = read_checkpoint(json.loads(line))
        except (ValueError, RecursionError, Unreadable):
            told.append(f"line {number} of the file is no checkpoint")
        else:
            points.setdefault(point.size, []).append(point)
    return points


def largest_points(
    points: dict[int, list[Checkpoint]], events: Rows, trust: Trust, told: list[str]
) -> list[Checkpoint]:
    """The largest valid checkpoint of each origin that is in force, or another one's if a key shows that it was here."""
    said = [payload for payload in map(payload_about_log, events) if payload is not None]
    public = {key.public for key in trust.keys}
    for payload in said:
        try:
            public.add(from_base64(payload.get("publicKey")))
        except Unreadable:
            continue
    origins = {payload.get("origin") for payload in said}
    left = {payload.get("priorOrigin") for payload in said}
    found: list[Checkpoint] = []
    for origin in {point.origin for same in points.values() for point in same}:
        ordered = sorted((p for same in points.values() for p in same if p.origin == origin), key=lambda p: p.size)
        valid = [point for point in ordered if any(point.note.signers({Key(origin, key)}) for key in public)]
        told.extend(f"a checkpoint of {p.size} facts that nobody signed" for p in ordered if p not in valid)
        if valid and origin not in origins | left:
            raise Tampered(None, f"another log was here: {origin}")
        if valid and origin not in left:
            found.append(valid[-1])
    return found


def payload_about_log(event: dict[str, Any]) -> dict[str, Any] | None:
    """What a fact says about the log's keys, nothing of it checked."""
    if event["stream"] != "log":
        return None
    try:
        fact = json.loads(event["state"])
        return fact["payload"] if fact["topic"] in (OPENED, ROTATED) and isinstance(fact["payload"], dict) else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def read_rows(tables: dict[str, Rows]) -> Iterator[Row]:
    """The facts by position; what is no position stands last, as SQLite has it."""
    events = sorted(
        tables["events"],
        key=lambda row: (type(row["position"]) is not int, str(type(row["position"])), row["position"]),
    )
    texts: dict[Any, list[tuple[Any, Any, Any]]] = {}
    for text in tables["texts"]:
        texts.setdefault(text["position"], []).append((text["digest"], text["salt"], text["words"]))
    for event in events:
        is_output = event["is_output"]
        yield Row(
            position=event["position"],
            columns={name: event[name] for name in COLUMNS},
            is_output=bool(is_output) if type(is_output) in (int, bool) and is_output in (0, 1) else None,
            envelope=event["state"],
            leaf_hash=event["leaf_hash"],
            mac=event["mac"],
            texts=texts.get(event["position"], []),
        )


def check_tree(tables: dict[str, Rows], log: Log) -> None:
    """The kept roots are those of the leaves, if all leaves are there."""
    (head,) = tables["head"]
    kept = {(node["level"], node["number"]): node["hash"] for node in tables["nodes"]}
    for place, root in sorted(log.tree.nodes().items()):
        if kept.get(place) != root:
            raise Tampered((place[1] + 1) << place[0], "a kept root is not that of its leaves")
    if log.last == head["position"]:
        if head["edge"] != b"".join(log.tree.edge(log.last)):
            raise Tampered(None, "the edge of the head is not that of the leaves")
        if any(number >= log.last >> level for level, number in kept if level % 4 == 0):
            raise Tampered(None, "a kept root stands where the tree has none yet")
        if head["mac"] != log.mac:
            raise Tampered(log.last, "the head has another MAC than the last fact")


def check_places(events: Rows, head: int) -> None:
    """No fact stands outside of what the head vouches for."""
    for event in events:
        position = event["position"]
        if type(position) is not int or not 1 <= position <= head:
            raise Tampered(position if type(position) is int else None, "a fact outside of the log")


def check_head(head: dict[str, Any], note: Checkpoint, log: Log) -> None:
    """The head names who signs, and its note is that signer's on all it holds."""
    try:
        said = json.loads(head["signer"])
        kept = (said["origin"], said["signing_id"], said["hmac_id"], from_base64(said["public_key"]))
    except (ValueError, TypeError, KeyError, Unreadable) as error:
        raise Tampered(None, "the head names no signer") from error
    if log.key is None or kept != (log.key.name, key_id(log.key.public), log.hmac_id, log.key.public):
        raise Tampered(None, "the head names another signer than the log")
    check_signed(log, note)
    if (note.size, note.root) != (log.last, log.tree.root(log.last)):
        raise Tampered(None, "the note of the head is not on what the head holds")
