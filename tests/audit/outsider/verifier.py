"""
Verify a Steersman log, with Python's standard library and `cryptography` alone: nothing of the package is imported.

It was written from docs/log-format.md and the specifications that it names, and from nothing else:

    python verifier.py bundle FILE | receipt FILE KEY | store LOG.DB CHECKPOINTS
"""

import base64
import hashlib
import json
import sqlite3
import sys

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

EXIT = {"clean": 0, "steered": 10, "tampered": 20, "open": 30, "unchecked": 30}
OUTPUT = {"agent.intent", "agent.message.delta", "agent.turn.usage", "run.output_truncated"}
OUTPUT |= {"tool.call", "tool.error", "tool.output", "tool.result"}
EFFECTS = {
    "coordinator.revision_execution": None,
    "run.paused": {"pause"},
    "run.resumed": {"resume"},
    "run.processes_killed": {"abort", "stop"},
}
COLUMNS = ["position", "stream", "version", "topic", "run", "run_sequence", "root", "root_sequence", "command_id", "at"]


class Tampered(Exception):
    """Something is not as it was signed; the first argument is the position, or None."""


class Unchecked(Exception):
    """It cannot be read."""


def require(holds, position, what):
    if not holds:
        raise Tampered(position, what)


# RFC 6962 and RFC 9162


def sha(data):
    return hashlib.sha256(data).digest()


def leaf_of(entry):
    return sha(b"\0" + entry)


def root_of(leaves):
    """The Merkle tree hash, as section 2.1 defines it."""
    if len(leaves) < 2:
        return leaves[0] if leaves else sha(b"")
    half = 1
    while half * 2 < len(leaves):
        half *= 2
    return sha(b"\1" + root_of(leaves[:half]) + root_of(leaves[half:]))


def subtrees(leaves):
    """The perfect subtrees that a tree falls into, the largest first."""
    parts, at = [], 0
    for bit in reversed(range(len(leaves).bit_length())):
        if len(leaves) >> bit & 1:
            parts.append(root_of(leaves[at : at + (1 << bit)]))
            at += 1 << bit
    return parts


def included(leaf, index, size, path, root):
    """RFC 9162, section 2.1.3.2."""
    if not 0 <= index < size:
        return False
    fn, sn, found = index, size - 1, leaf
    for step in path:
        if sn == 0:
            return False
        if fn & 1 or fn == sn:
            found = sha(b"\1" + step + found)
            while not fn & 1 and fn:
                fn, sn = fn >> 1, sn >> 1
        else:
            found = sha(b"\1" + found + step)
        fn, sn = fn >> 1, sn >> 1
    return sn == 0 and found == root


# C2SP signed notes


def b64(text):
    return base64.b64decode(text, validate=True)


def key_hash(name, public):
    return sha(name.encode() + b"\n\x01" + public)[:4]


def split(note):
    text, _, lines = note.rpartition("\n\n")
    return text + "\n", lines.splitlines()


def signed_by(note, name, public):
    """Whether the key signed it under that name; a wrong signature by it spoils the note."""
    text, lines = split(note)
    found = False
    for line in lines:
        dash, who, encoded = line.split(" ")
        raw = b64(encoded)
        if dash == "\u2014" and who == name and raw[:4] == key_hash(name, public):
            try:
                Ed25519PublicKey.from_public_bytes(public).verify(raw[4:], text.encode())
            except InvalidSignature:
                return False
            found = True
    return found


def is_signed(note, name, public):
    try:
        return signed_by(note, name, public)
    except (ValueError, AttributeError, TypeError):
        return False


def checkpoint(note):
    """(origin, size, root), nothing of it verified; ValueError for what is none."""
    try:
        origin, size, root = split(note)[0].split("\n")[:3]
        if str(int(size)) != size or len(b64(root)) != 32:
            raise ValueError(note)
        return origin, int(size), b64(root)
    except (TypeError, AttributeError) as error:
        raise ValueError(note) from error


def key_id(key):
    return hashlib.sha256(b"steersman key\n" + key).hexdigest()[:32]


class Log:
    """What is known of a log after each of its facts, in their order."""

    def __init__(self):
        self.origin, self.public, self.hmac_id, self.signing_id = "", b"", "", ""
        self.keys, self.received, self.had = [], {}, set()

    def take(self, fact, columns, leaf, mac, texts, position):
        """One fact; *columns* is what stands beside its envelope."""
        require(columns["position"] == position and columns["position"] is not True, position, "place")
        require(isinstance(fact, bytes), position, "envelope")
        require(leaf == leaf_of(fact), position, "leaf hash")
        try:
            envelope = json.loads(fact)
            payload, topic = envelope["payload"], envelope["topic"]
        except (ValueError, KeyError, TypeError):
            raise Tampered(position, "envelope") from None
        require(envelope["v"] == 1, position, "v")
        for name in COLUMNS:
            require(envelope[name] == columns[name], position, name)
        known_output = topic in OUTPUT
        require(columns["is_output"] in ((1,) if known_output else (0,)), position, "is_output")
        self.check_texts(payload, texts, position)
        return envelope

    def check_texts(self, payload, texts, position):
        named, todo = {}, [payload]
        while todo:
            at = todo.pop()
            if isinstance(at, dict):
                if at.keys() == {"digest", "length"} and at["digest"] is not None:
                    named[at["digest"]] = at["length"]
                todo.extend(at.values())
            elif isinstance(at, list):
                todo.extend(at)
        for digest, salt, words in texts:
            require(isinstance(salt, bytes) and isinstance(words, bytes), position, "texts")
            require(digest in named and hashlib.sha256(salt + words).hexdigest() == digest, position, "texts")
            require(len(words) == named[digest], position, "texts")

    def follow(self, envelope, mac, position):
        """Section 8, from 6 on."""
        topic, payload, own = envelope["topic"], envelope["payload"], envelope["stream"] == "log"
        if own and topic == "log.opened":
            public = b64(payload["publicKey"])
            require(self.public in (b"", public), position, "publicKey")
            require(self.hmac_id in ("", payload["hmacKeyId"]), position, "hmacKeyId")
            self.origin = payload["origin"]
            self.name_keys(payload, public, position)
        require(isinstance(mac, bytes) and len(mac) == 32, position, "mac")
        if own and topic == "log.key_rotated":
            require(payload["priorSigningKeyId"] == self.signing_id, position, "priorSigningKeyId")
            note, new = payload["endorsement"], payload["publicKey"]
            text = f"{self.origin}\nis signed from here on by\n{new}\n"
            require(split(note)[0] == text and is_signed(note, self.origin, self.public), position, "endorsement")
            self.name_keys(payload, b64(new), position)
        require(self.origin, position, "log.opened")
        self.correct(topic, payload, envelope, position)

    def name_keys(self, payload, public, position):
        require(key_id(public) == payload["signingKeyId"], position, "signingKeyId")
        self.public, self.signing_id, self.hmac_id = public, payload["signingKeyId"], payload["hmacKeyId"]
        self.keys.append((self.origin, public))

    def correct(self, topic, payload, envelope, position):
        """Section 9."""
        directive = payload.get("directiveId")
        if topic == "coordinator.steering_received":
            require(directive not in self.received, position, "directiveId")
            self.received[directive] = {**payload, "root": envelope["root"], "for": set(payload["targets"])}
        elif topic == "coordinator.steering_decision":
            require(directive in self.received, position, "directiveId")
            if not self.received[directive]["direct"]:
                self.received[directive]["for"] |= set(payload["targets"])
        elif topic in EFFECTS:
            receipt = self.received.get(directive)
            require(receipt, position, "directiveId")
            require(receipt["payloadHash"] == payload["receiptPayloadHash"], position, "receiptPayloadHash")
            verbs = EFFECTS[topic]
            require(verbs is None or receipt["verb"] in verbs, position, "verb")
            child = payload["childRunId"] if verbs is None else envelope["run"]
            all_of_it = receipt["targetScope"]["kind"] == "run" and receipt["verb"] == "stop"
            covered = child in receipt["for"] or (all_of_it and receipt["root"] == envelope["root"])
            require(covered, position, "targets")
            if verbs is not None or payload["state"] == "effect_confirmed":
                once = (topic, directive, str(payload.get("attempt")), child)
                require(once not in self.had, position, "twice")
                self.had.add(once)

    def verdict(self, is_open=False):
        return "steered" if self.received else "open" if is_open else "clean"


# Bundles


def verify_bundle(path):
    with open(path, "rb") as file:
        raw = file.read()
    try:
        lines = [json.loads(line) for line in raw.splitlines()]
        header = lines[0]["opening"]
        if lines[0]["format"] != "steersman-audit@v1":
            raise Unchecked("another format")
        run, note = header["run"], header["checkpoint"]
    except (ValueError, KeyError, IndexError, TypeError):
        raise Unchecked("no bundle") from None
    try:
        _, size, root = checkpoint(note)
    except ValueError:
        raise Tampered(None, "checkpoint") from None
    log, leaves, last, count, length = Log(), [], 0, 0, 0
    for line in lines[1:]:
        if "facts" in line:
            require(line["facts"] == count, last + 1, "facts")
            break
        if "checkpoint" in line:
            check_between(log, line["checkpoint"], leaves)
            continue
        position = last + 1 if run is None else max(line["position"], last + 1)
        require(position <= size, position, "size")
        try:
            fact, leaf, mac = (b64(line[name]) for name in ("envelope", "leaf_hash", "mac"))
            texts = [(text["digest"], b64(text["salt"]), b64(text["words"])) for text in line["texts"]]
            proof = [b64(step) for step in line.get("proof") or ()]
        except (ValueError, KeyError, TypeError):
            raise Unchecked("no bundle") from None
        envelope = log.take(fact, line, leaf, mac, texts, position)
        if run is not None:
            require(included(leaf, position - 1, size, proof, root), position, "proof")
            if envelope["root"] is not None:
                require((envelope["root"], envelope["root_sequence"]) == (run, length + 1), position, "root_sequence")
                length += 1
        log.follow(envelope, mac, position)
        leaves.append(leaf)
        last, count = position, count + 1
    else:
        raise Tampered(last + 1, "cut off")
    if run is None:
        require(last == size, last + 1, "size")
    require(log.origin == checkpoint(note)[0] and is_signed(note, log.origin, log.public), None, "checkpoint")
    if run is None:
        require(root_of(leaves) == root, None, "root")
        return log.verdict()
    return log.verdict(is_open_at(log, header.get("tree_head"), run, length, size, root))


def check_between(log, note, leaves):
    """A checkpoint between facts accuses them if the key in force signed it, and says nothing else."""
    try:
        origin, size, root = checkpoint(note)
    except ValueError:
        raise Unchecked("no bundle") from None
    if origin == log.origin and size == len(leaves) and is_signed(note, origin, log.public):
        require(root == root_of(leaves), None, "root")


def is_open_at(log, note, run, length, size, root):
    """Section 8, 11."""
    if note is None:
        return True
    require(is_signed(note, log.origin, log.public), None, "tree_head")
    lines = split(note)[0].removesuffix("\n").split("\n")
    require(len(lines) == 5 and lines[0] == log.origin + "/tree-head@v1", None, "tree_head")
    if (lines[1], int(lines[3]), b64(lines[4])) != (run, size, root):
        return True
    require(int(lines[2]) == length, None, "root_sequence")
    return False


# Receipts


def verify_receipt(path, key):
    name, hashed, encoded = key.split("+", 2)
    public = b64(encoded)[1:]
    if key_hash(name, public).hex() != hashed:
        raise Unchecked("no key")
    try:
        with open(path, encoding="utf-8") as file:
            receipt = json.load(file)
        envelope, proof = b64(receipt["leaf"]), [b64(step) for step in receipt["proof"]]
        origin, size, root = checkpoint(receipt["checkpoint"])
        position = receipt["position"]
    except (ValueError, KeyError, TypeError):
        raise Unchecked("no receipt") from None
    require(origin == name and is_signed(receipt["checkpoint"], name, public), position, "checkpoint")
    require(receipt["leafHash"] == leaf_of(envelope).hex(), position, "leafHash")
    require(receipt["index"] == position - 1, position, "index")
    require((receipt["size"], b64(receipt["root"])) == (size, root), position, "size and root")
    require(included(leaf_of(envelope), receipt["index"], size, proof, root), position, "proof")
    fact = json.loads(envelope)
    require(fact["topic"] == "coordinator.steering_received", position, "topic")
    for member in ("directiveId", "payloadHash"):
        require(fact["payload"][member] == receipt[member], position, member)
    return "steered"


# Stores


def verify_store(tables, lines):
    """*tables*: rows as maps, by the names of their tables; *lines* are those of checkpoints.log."""
    events, (head,) = sorted(tables["events"], key=lambda row: row["position"]), tables["head"]
    own = [row for row in events if row["stream"] == "log"]
    require(isinstance(head["note"], str) and isinstance(head["position"], int), None, "head")
    size = max([checkpoint(head["note"])[1] if head["note"] else 0, *valid_sizes(own, lines)])
    log, leaves = Log(), []
    for row in events:
        position = len(leaves) + 1
        if row["position"] > head["position"]:
            break
        require(position <= size, position, "size")
        texts = [(t["digest"], t["salt"], t["words"]) for t in tables["texts"] if t["position"] == row["position"]]
        envelope = log.take(row["state"], row, row["leaf_hash"], row["mac"], texts, position)
        log.follow(envelope, row["mac"], position)
        leaves.append(row["leaf_hash"])
        for line in lines:
            look_back(log, line, leaves)
        if position % 16 == 0:
            level = {(node["level"], node["number"]): node["hash"] for node in tables["nodes"]}
            require(level.get((4, position // 16 - 1)) == root_of(leaves[-16:]), position, "nodes")
    check_head(log, head, events, leaves, size)
    return log.verdict()


def check_head(log, head, events, leaves, size):
    """Section 8, 8 and 10."""
    require(len(leaves) == size, len(leaves) + 1, "size")
    require(head["edge"] == b"".join(subtrees(leaves)), None, "edge")
    require(head["mac"] == events[len(leaves) - 1]["mac"], len(leaves), "mac")
    outside = [row["position"] for row in events if not 1 <= row["position"] <= head["position"]]
    require(not outside, outside[-1] if outside else None, "position")
    signer = json.loads(head["signer"]) if head["signer"] else {}
    named = {"origin": log.origin, "signing_id": log.signing_id, "hmac_id": log.hmac_id}
    named["public_key"] = base64.b64encode(log.public).decode()
    require(signer == named, None, "signer")
    origin, signed, root = checkpoint(head["note"])
    require((origin, signed, root) == (log.origin, len(leaves), root_of(leaves)), None, "note")
    require(is_signed(head["note"], log.origin, log.public), None, "note")


def look_back(log, line, leaves):
    """A checkpoint of the file accuses if the key in force signed it."""
    try:
        origin, size, root = checkpoint(json.loads(line))
    except ValueError:
        return
    if origin == log.origin and size == len(leaves) and is_signed(json.loads(line), origin, log.public):
        require(root == root_of(leaves), None, "root")


def valid_sizes(own, lines):
    """The sizes of the checkpoints that a key signed which the log's own facts name."""
    keys = set()
    for row in own:
        try:
            keys.add(b64(json.loads(row["state"])["payload"]["publicKey"]))
        except (ValueError, KeyError, TypeError):
            continue
    for line in lines:
        try:
            note = json.loads(line)
            origin, size, _ = checkpoint(note)
        except ValueError:
            continue
        if any(is_signed(note, origin, key) for key in keys):
            yield size


def read_sqlite(path):
    connection = sqlite3.connect(path)
    connection.row_factory = sqlite3.Row
    tables = ("events", "texts", "nodes", "head")
    found = {name: [dict(row) for row in connection.execute(f"SELECT * FROM {name}")] for name in tables}
    connection.close()
    return found


def judged(verify, *arguments):
    """The verdict and the first bad position, None where there is none."""
    try:
        return verify(*arguments), None
    except Tampered as error:
        return "tampered", error.args[0]
    except Unchecked:
        return "unchecked", None


if __name__ == "__main__":
    what, path, *more = sys.argv[1:]
    if what == "store":
        with open(more[0], encoding="utf-8") as kept:
            found = judged(lambda: verify_store(read_sqlite(path), kept.read().splitlines()))
    else:
        found = judged({"bundle": verify_bundle, "receipt": verify_receipt}[what], path, *more)
    print(*found)
    sys.exit(EXIT[found[0]])
