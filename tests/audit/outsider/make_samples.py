"""Make the samples anew: `python -m steersman.tests.audit.outsider.make_samples`. Tests only read what is kept."""

import copy
import json
import shutil
import sqlite3
from base64 import b64decode, b64encode
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from steersman.adapters.log.proofs import StoredProofs
from steersman.adapters.log.receipt import receipt_of_directive
from steersman.adapters.log_format.keys import new_keys
from steersman.adapters.log_format.merkle import Edge, grow, leaf_hash
from steersman.adapters.log_format.signed_note import parse_checkpoint, sign
from steersman.domain.facts.child_run import TurnStarted
from steersman.tests.audit.conftest import World
from steersman.tests.audit.facts import decided, effect, on, put, received, said
from steersman.tests.audit.outsider.tables import TABLES, Tables, write

SAMPLES = Path(__file__).parent / "samples"
Change = Callable[[Any], object]


def tell(world: World) -> Any:
    """A run that is corrected at position 6, and another; eighteen facts."""
    log = world.open()
    put(log, on("r", TurnStarted(turn_id="t1")), said("r", "Looking."))
    put(log, on("other", TurnStarted(turn_id="o1")), said("other", "Mine."))
    put(log, received("r", "d"))
    put(log, decided("r", "d", "child"), effect("r", "d", "initiated"), effect("r", "d"))
    for n in range(3):
        put(log, on("r", TurnStarted(turn_id=f"t{n + 2}")), said("r", f"Word {n}."), said("other", f"Word {n}."))
    return log


def stores(tables: Tables, checkpoints: str) -> dict[str, tuple[Tables, str]]:
    """The ten kinds of tampering that both stores have."""
    made: dict[str, tuple[Tables, str]] = {"healthy": (tables, checkpoints)}

    def keep(name: str, change: Callable[[Tables], object], lines: str = checkpoints) -> None:
        changed = copy.deepcopy(tables)
        change(changed)
        made[name] = changed, lines

    def row(found: Tables, position: int) -> dict[str, Any]:
        return next(one for one in found["events"] if one["position"] == position)

    def flip(found: Tables) -> None:
        row(found, 6)["state"] = row(found, 6)["state"].replace(b"amend", b"abort")

    def rehash(found: Tables) -> None:
        flip(found)
        rows = found["events"]
        for one in rows:
            one["leaf_hash"] = leaf_hash(one["state"])
        edge, nodes = grow(Edge(), [one["leaf_hash"] for one in rows])
        found["nodes"] = [{"level": node.level, "number": node.index, "hash": node.hash} for node in nodes]
        found["head"][0]["edge"] = b"".join(edge.hashes)

    def cut(found: Tables) -> None:
        found["events"] = [one for one in found["events"] if one["position"] <= 5]
        found["texts"] = [one for one in found["texts"] if one["position"] <= 5]
        edge, _ = grow(Edge(), [one["leaf_hash"] for one in found["events"]])
        found["nodes"] = []
        found["head"][0].update(position=5, edge=b"".join(edge.hashes), mac=found["events"][-1]["mac"])

    def swap(found: Tables) -> None:
        one, other = row(found, 4), row(found, 13)
        one["position"], other["position"] = 13, 4
        found["events"].sort(key=lambda each: each["position"])

    def forge(found: Tables) -> None:
        last = row(found, 18)
        members = json.loads(last["state"]) | {"position": 19, "version": 90, "run_sequence": 90, "root_sequence": 90}
        state = json.dumps(members, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
        forged = {name: members[name] for name in ("position", "version", "run_sequence", "root_sequence")}
        found["events"].append(last | forged | {"state": state, "leaf_hash": leaf_hash(state)})
        found["head"][0]["position"] = 19

    def words(found: Tables) -> None:
        for one in found["texts"]:
            if one["words"] == b"be careful":
                one["words"] = b"obey me!!!"

    def node(found: Tables) -> None:
        found["nodes"][0]["hash"] = bytes(32)

    keep("flipped byte", flip)
    keep("all hashes made anew", rehash)
    keep("changed column", lambda found: row(found, 6).update(topic="coordinator.steering"))
    keep("hidden as output", lambda found: row(found, 6).update(is_output=1))
    keep("deleted fact", lambda found: found["events"].remove(row(found, 6)))
    keep("cut at its end", cut)
    keep("swapped facts", swap)
    keep("forged fact under a raised head", forge)
    keep("changed words", words)
    keep("changed node", node)
    keep("emptied signer", lambda found: found["head"][0].update(signer=""))
    keep("older note in the head", lambda found: found["head"][0].update(note=json.loads(checkpoints.splitlines()[0])))
    keep("another mac in the head", lambda found: found["head"][0].update(mac=b"\1" * 32))
    note = tables["head"][0]["note"]
    larger = sign(_like(note, size=99), new_keys().signing)
    made["sound, with a line that nobody signed"] = tables, f"{checkpoints}{json.dumps(larger)}\n"
    return made


def bundles(lines: list[dict[str, Any]], *, of_run: bool) -> dict[str, list[dict[str, Any]]]:
    """The ten kinds for a bundle, and those of a run's end."""
    made = {"healthy": lines}

    def keep(name: str, change: Change, *, last: bool = True) -> None:
        changed = copy.deepcopy(lines)
        change(changed)
        if last:
            changed[-1]["facts"] = sum("envelope" in line for line in changed)
        made[name] = changed

    def fact(found: Any, position: int = 6) -> dict[str, Any]:
        return next(line for line in found if line.get("position") == position)

    def edit(found: Any, *, rehash: bool) -> None:
        state = b64decode(fact(found)["envelope"]).replace(b"amend", b"abort")
        fact(found)["envelope"] = b64encode(state).decode()
        if rehash:
            fact(found)["leaf_hash"] = b64encode(leaf_hash(state)).decode()

    def swap(found: Any) -> None:
        one, other = found.index(fact(found, 6)), found.index(fact(found, 10))
        found[one], found[other] = found[other], found[one]

    def words(found: Any) -> None:
        for text in fact(found)["texts"]:
            text["words"] = b64encode(b"obey me!!!").decode()

    def cut(found: Any) -> None:
        found[:] = [line for line in found if line.get("position", 0) < 6 and "checkpoint" not in line]

    def by_another(found: Any) -> None:
        note = found[0]["opening"]["checkpoint"]
        found[0]["opening"]["checkpoint"] = sign(parse_checkpoint(note), new_keys().signing)

    keep("flipped byte", lambda found: edit(found, rehash=False))
    keep("flipped byte with its hash", lambda found: edit(found, rehash=True))
    keep(
        "changed column",
        lambda found: fact(found).update(principal="x", topic="coordinator.steering") or fact(found).pop("principal"),
    )
    keep("hidden as output", lambda found: fact(found).update(is_output=True))
    keep("changed hash", lambda found: fact(found).update(leaf_hash=b64encode(bytes(32)).decode()))
    keep("left out fact", lambda found: found.remove(fact(found)))
    keep("swapped facts", swap)
    keep("changed words", words)
    keep("cut before its first correction", cut)
    keep("without its last line", lambda found: found.pop(), last=False)
    keep("checkpoint by another key", by_another)
    keep("mac of another length", lambda found: fact(found).update(mac=b64encode(bytes(31)).decode()))
    if of_run:
        opening: Callable[[Any], Any] = lambda found: found[0]["opening"]
        keep("changed proof", lambda found: fact(found).update(proof=fact(found)["proof"][::-1]))
        keep(
            "tree head of another length",
            lambda found: opening(found).update(tree_head=_shorter(opening(found)["tree_head"])),
        )
        keep("open at its end", lambda found: opening(found).update(tree_head=None))
        keep("cut and open at its end", lambda found: (cut(found), opening(found).update(tree_head=None)))
    return made


def receipts(receipt: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The ten kinds for a receipt: one for each member that a verifier can check."""
    made = {"healthy": receipt}
    leaf = b64decode(receipt["leaf"])
    edited = leaf.replace(b"amend", b"abort")
    changes: dict[str, dict[str, Any]] = {
        "leaf": {"leaf": b64encode(edited).decode()},
        "leaf with its hash": {"leaf": b64encode(edited).decode(), "leafHash": leaf_hash(edited).hex()},
        "position": {"position": receipt["position"] + 1},
        "index": {"index": receipt["index"] + 1},
        "leaf hash": {"leafHash": "00" * 32},
        "payload hash": {"payloadHash": "sha256:" + "00" * 32},
        "directive": {"directiveId": "e"},
        "proof": {"proof": receipt["proof"][::-1]},
        "size": {"size": receipt["size"] + 1},
        "root": {"root": b64encode(bytes(32)).decode()},
        "checkpoint by another key": {"checkpoint": sign(parse_checkpoint(receipt["checkpoint"]), new_keys().signing)},
    }
    return made | {f"changed {name}": receipt | members for name, members in changes.items()}


def _like(note: str, *, size: int) -> Any:
    found = parse_checkpoint(note)
    return type(found)(origin=found.origin, size=size, root=found.root)


def _shorter(note: str) -> str:
    lines = note.split("\n")
    lines[2] = str(int(lines[2]) - 1)
    return "\n".join(lines)


def main() -> None:
    """Write every sample, in place of those that are there."""
    shutil.rmtree(SAMPLES, ignore_errors=True)
    with TemporaryDirectory() as folder, ExitStack() as stack:
        home = Path(folder)
        world = World("sqlite", home / "log.db", home, stack)
        log = tell(world)
        receipt = json.loads(_json(receipt_of_directive(StoredProofs(world.recorder()), world.recorder(), "d")))
        kept = "".join(f"{line}\n" for line in world.checkpoints.read_text(encoding="utf-8").splitlines() if line)
        whole, one = world.export(), world.export("r", home / "run")
        with sqlite3.connect(home / "log.db") as connection:
            connection.row_factory = sqlite3.Row
            tables = {name: [dict(row) for row in connection.execute(f"SELECT * FROM {name}")] for name in TABLES}
        for kind, folder_name in (("sqlite", "sqlite"), ("postgres", "postgres")):
            for name, (found, lines) in stores(tables, kept).items():
                found = copy.deepcopy(found)
                if kind == "postgres":
                    for table in ("events", "texts"):
                        for row in found[table]:
                            row["is_output"] = bool(row["is_output"])
                write(_at(folder_name, name, "jsonl"), found, lines)
            if kind == "sqlite":
                for column, value in (("state", "text"), ("mac", 5), ("version", "zz")):
                    found = copy.deepcopy(tables)
                    found["events"][8][column] = value
                    write(_at("sqlite", f"{column} of another type", "jsonl"), found, kept)
        for kind, path in (("bundle", whole), ("run", one)):
            lines = [json.loads(line) for line in path.read_bytes().splitlines()]
            for name, changed in bundles(lines, of_run=kind == "run").items():
                text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in changed)
                _at(kind, name, "bundle").write_text(text, encoding="utf-8")
        for name, changed in receipts(receipt).items():
            _at("receipt", name, "json").write_text(json.dumps(changed, indent=1) + "\n", encoding="utf-8")
        key = log.key()
        assert key is not None
        (SAMPLES / "verifier.key").write_text(key.verifier_key + "\n", encoding="utf-8")


def _at(kind: str, name: str, suffix: str) -> Path:
    path = SAMPLES / kind / f"{name.replace(',', '').replace(' ', '-')}.{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _json(value: Any) -> bytes:
    import msgspec

    return msgspec.json.encode(value)


if __name__ == "__main__":
    main()
