"""Signed logs on a SQLite file, a PostgreSQL table and in a bundle, and an attacker who can write each of them."""

import json
import sqlite3
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest
from psycopg.rows import dict_row

from steersman.adapters.audit.bundle import Bundle, write_bundle
from steersman.adapters.audit.log import audit
from steersman.adapters.audit.store import RunFacts, WholeLog
from steersman.adapters.log.opening import sealed_by
from steersman.adapters.log.sealing import chain
from steersman.adapters.log.sequenced_log import SequencedLog
from steersman.adapters.log_format.checkpoint_file import CheckpointFile
from steersman.adapters.log_format.entry import ENTRY_COLUMNS
from steersman.adapters.log_format.head import FIRST_MAC, edge_bytes
from steersman.adapters.log_format.keys import Keyring
from steersman.adapters.log_format.merkle import Edge, grow, leaf_hash
from steersman.adapters.stores.postgres_log import LogDatastore, PostgresLog, PostgresRecorder
from steersman.adapters.stores.sqlite_log import SqliteLog, SqliteRecorder, open_datastore
from steersman.application.ports.verdict import AuditVerdict
from steersman.domain.kinds.catalogue import CATALOGUE
from steersman.tests.audit.outsider.tables import TABLES, Tables
from steersman.tests.audit.outsider.verifier.bundles import verify_bundle
from steersman.tests.audit.outsider.verifier.notes import read_checkpoint, verifier_key
from steersman.tests.audit.outsider.verifier.stores import verify_tables
from steersman.tests.audit.outsider.verifier.trust import Trust
from steersman.tests.audit.outsider.verifier.trust import Verdict as Theirs
from steersman.tests.audit.outsider.verifier.verify import judged

COLUMNS = ENTRY_COLUMNS.split(", ")


@dataclass
class Loot:
    """What an attacker finds: rows as maps, the words beside them, and the head."""

    rows: list[dict[str, Any]]
    #: Each: position, digest, salt, words.
    texts: list[tuple[Any, ...]]
    head: dict[str, Any] = field(default_factory=dict[str, Any])

    def row(self, position: int) -> dict[str, Any]:
        """Return the row at a position."""
        return next(row for row in self.rows if row["position"] == position)

    def envelope(self, position: int, /, **changes: Any) -> None:
        """Write other members into an envelope, in the bytes that the codec would have written."""
        row = self.row(position)
        members = {**json.loads(row["state"]), **changes}
        row["state"] = json.dumps(members, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()

    def cut(self, position: int) -> None:
        """Leave nothing behind a position."""
        self.rows = [row for row in self.rows if row["position"] <= position]
        self.texts = [text for text in self.texts if text[0] <= position]

    def rehash(self, hmac_key: bytes | None = None) -> None:
        """Make every hash anew, and with the key the chain: all but the signature then fits what is there now."""
        self.rows.sort(key=lambda row: row["position"])
        leaves = [leaf_hash(row["state"]) for row in self.rows]
        for row, leaf in zip(self.rows, leaves, strict=True):
            row["leaf_hash"] = leaf
        if hmac_key is not None:
            for row, mac in zip(self.rows, chain(FIRST_MAC, leaves, hmac_key), strict=True):
                row["mac"] = mac


class World:
    """One signed log and its keys."""

    def __init__(self, kind: str, place: Any, home: Path, stack: ExitStack) -> None:
        self.kind = kind
        self.place = place
        self.home = home
        self.ring = Keyring(home / "keys")
        self.checkpoints = home / "checkpoints.log"
        self.bundle = home / "log.bundle"
        self._stack = stack

    @property
    def hmac_keys(self) -> dict[str, bytes]:
        """Every HMAC key that the log ever had."""
        keys = [self.ring._read(file.stem) for file in (self.home / "keys").glob("*.pem")]
        return {each.hmac_id: each.hmac for each in keys}

    def open(self, checkpoints: Path | None = None) -> SequencedLog:
        """Return the log, to be written."""
        seal = sealed_by(self.ring, CheckpointFile(checkpoints or self.checkpoints))
        log: SequencedLog
        if self.kind == "postgres":
            log = PostgresLog(self.place, CATALOGUE, seal=seal)
        else:
            log = SqliteLog(self.place, CATALOGUE, seal=seal)
        self._stack.callback(log.close)
        return log

    def recorder(self) -> SqliteRecorder | PostgresRecorder:
        """Return the bare store."""
        made: SqliteRecorder | PostgresRecorder
        if self.kind == "postgres":
            made = PostgresRecorder(LogDatastore(self.place))
        else:
            made = SqliteRecorder(open_datastore(self.place))
        self._stack.callback(made.close)
        return made

    def audit(self, **more: Any) -> AuditVerdict:
        """Audit what is attacked: the store, or the bundle. The outsider's verifier has to come to the same."""
        if self.kind == "bundle":
            ours = audit(Bundle(self.bundle), **more)
        else:
            ours = audit(WholeLog(self.recorder(), self.checkpoints), **more)
        assert_the_outsider_agrees(ours, self._outsider(trust_of(**more)))
        return ours

    def _outsider(self, trust: Trust) -> Theirs:
        if self.kind == "bundle":
            return judged(verify_bundle, self.bundle, trust)
        lines = (
            self.checkpoints.read_text(encoding="utf-8", errors="replace").splitlines()
            if self.checkpoints.exists()
            else []
        )
        if self.kind == "sqlite":
            with closing(sqlite3.connect(self.place)) as connection:
                connection.row_factory = sqlite3.Row
                return judged(verify_tables, read_tables(connection), lines, trust)
        with psycopg.connect(self.place, row_factory=dict_row) as postgres:
            return judged(verify_tables, read_tables(postgres), lines, trust)

    def export(self, run: str | None = None, path: Path | None = None, pin: str | None = None) -> Path:
        """Write a bundle of the log as it is in the store."""
        path = path or self.bundle
        recorder = self.recorder()
        with path.open("wb") as file:
            whole = WholeLog(recorder, self.checkpoints)
            write_bundle(whole if run is None else RunFacts(recorder, run, pin, ring=self.ring), file)
        return path

    def attack(self, change: Callable[[Loot], object]) -> None:
        """Let an attacker change what is stored, as they like."""
        if self.kind == "bundle":
            attack_bundle(self.bundle, change)
        elif self.kind == "sqlite":
            with sqlite3.connect(self.place) as connection:
                attack_tables(connection.cursor(), "?", change)
            connection.close()
        else:
            with psycopg.connect(self.place) as connection:
                attack_tables(connection.cursor(), "%s", change)


#: Where the texts that a reader finds in `texts` are written, by the mark that a value has in the store's SQL.
TEXTS = {"?": "kept_texts", "%s": "texts"}


def read_tables(connection: Any) -> Tables:
    """Return the rows of every table."""
    return {name: [dict(row) for row in connection.execute(f"SELECT * FROM {name}").fetchall()] for name in TABLES}


def trust_of(
    pins: Iterable[str] = (), keys: Iterable[str] = (), hmac_keys: Mapping[str, bytes] | None = None, **_: object
) -> Trust:
    """Return what an auditor has, as the outsider takes it."""
    return Trust(
        keys=[verifier_key(key) for key in keys],
        pins=[read_checkpoint(pin) for pin in pins],
        hmac_keys=dict(hmac_keys or {}),
        topics={topic: kind.OUTPUT for topic, kind in CATALOGUE.items()},
    )


def assert_the_outsider_agrees(ours: AuditVerdict, theirs: Theirs) -> None:
    """Both come to the same verdict, and name the same place."""
    place = ours.finding.position if ours.finding is not None else None
    assert (ours.verdict, place) == (theirs.verdict, theirs.position), (ours.finding, theirs)


def attack_tables(cursor: Any, mark: str, change: Callable[[Loot], object]) -> None:
    """Read all of the log's tables, and write them anew as *change* leaves them."""
    rows = cursor.execute(f"SELECT {ENTRY_COLUMNS} FROM events ORDER BY position").fetchall()
    texts = cursor.execute("SELECT position, digest, salt, words FROM texts").fetchall()
    head = dict(zip(("position", "note"), cursor.execute("SELECT position, note FROM head").fetchone(), strict=True))
    loot = Loot([dict(zip(COLUMNS, row, strict=True)) for row in rows], list(texts), head)
    change(loot)
    cursor.execute("DELETE FROM events")
    cursor.execute(f"DELETE FROM {TEXTS[mark]}")
    marks = ", ".join([mark] * len(COLUMNS))
    for row in loot.rows:
        cursor.execute(f"INSERT INTO events ({ENTRY_COLUMNS}) VALUES ({marks})", [row[name] for name in COLUMNS])
    for position, digest, salt, words in loot.texts:
        kept = (position, digest, False, salt, words)
        cursor.execute(
            f"INSERT INTO {TEXTS[mark]} (position, digest, is_output, salt, words) VALUES ({', '.join([mark] * 5)})",
            kept,
        )
    rewrite_tree(cursor, mark, loot)


def rewrite_tree(cursor: Any, mark: str, loot: Loot) -> None:
    """Write the inner nodes and the head that fit the leaf hashes; the note is what the loot says."""
    leaves = [row["leaf_hash"] for row in sorted(loot.rows, key=lambda row: row["position"])]
    edge, nodes = grow(Edge(), leaves) if all(isinstance(leaf, bytes) for leaf in leaves) else (Edge(), [])
    cursor.execute("DELETE FROM nodes")
    for node in nodes:
        cursor.execute(
            f"INSERT INTO nodes (level, number, hash) VALUES ({mark}, {mark}, {mark})",
            (node.level, node.index, node.hash),
        )
    mac = max(loot.rows, key=lambda row: row["position"])["mac"] if loot.rows else FIRST_MAC
    cursor.execute(
        f"UPDATE head SET position = {mark}, edge = {mark}, mac = {mark}, note = {mark}",
        (edge.size, edge_bytes(edge), mac, loot.head["note"]),
    )


def attack_bundle(path: Path, change: Callable[[Loot], object]) -> None:
    """Read a bundle, and write it anew as *change* leaves it, with a last line that fits."""
    header, *lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    entries = [line for line in lines if "envelope" in line]
    rows = [
        {**line, "state": b64decode(line["envelope"]), "leaf_hash": b64decode(line["leaf_hash"])}
        | {"mac": b64decode(line["mac"])}
        for line in entries
    ]
    texts = [
        (line["position"], text["digest"], b64decode(text["salt"]), b64decode(text["words"]))
        for line in entries
        for text in line["texts"]
    ]
    loot = Loot(rows, texts, {"note": header["opening"]["checkpoint"], "position": len(rows)})
    change(loot)
    header["opening"]["checkpoint"] = loot.head["note"]
    out: list[Any] = [header]
    for row in loot.rows:
        row = dict(row)
        state = row.pop("state")
        row["envelope"] = b64encode(state).decode()
        row["texts"] = [
            {"digest": digest, "salt": b64encode(salt).decode(), "words": b64encode(words).decode()}
            for position, digest, salt, words in loot.texts
            if position == row["position"]
        ]
        row |= {name: b64encode(cast("bytes", row[name])).decode() for name in ("leaf_hash", "mac")}
        out.append(row)
        out += [line for line in lines if "checkpoint" in line and _size(line) == row["position"]]
    out.append({"facts": len(loot.rows)})
    path.write_bytes(b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in out))


def _size(line: dict[str, Any]) -> int:
    return int(line["checkpoint"].split("\n")[1])


@pytest.fixture(params=["sqlite", "postgres", "bundle"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """An empty signed log of each kind; a bundle is written from a SQLite log."""
    place = request.getfixturevalue("postgres_url") if request.param == "postgres" else tmp_path / "log.db"
    with ExitStack() as stack:
        yield World(request.param, place, tmp_path, stack)


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """An empty signed log on each store."""
    place = request.getfixturevalue("postgres_url") if request.param == "postgres" else tmp_path / "log.db"
    with ExitStack() as stack:
        yield World(request.param, place, tmp_path, stack)
