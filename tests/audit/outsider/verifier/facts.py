"""Follow a log fact by fact: columns, words, keys, MACs and corrections. The first thing that is wrong is raised."""

import hmac
import json
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from .notes import Key, Unreadable, from_base64, hands_over, key_id
from .tree import Tree, includes, leaf_hash

OUTPUT = ("agent.intent", "agent.message.delta", "agent.turn.usage", "run.output_truncated")
OUTPUT += ("tool.call", "tool.error", "tool.output", "tool.result")
COLUMNS = ("stream", "version", "topic", "run", "run_sequence", "root", "root_sequence", "command_id", "at")
TEXT, NUMBER, NOTHING = str, int, type(None)
MEMBERS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("stream", "topic", "at", "principal", "command_id"), (TEXT,)),
    **dict.fromkeys(("v", "position", "version"), (NUMBER,)),
    **dict.fromkeys(("run", "root"), (TEXT, NOTHING)),
    **dict.fromkeys(("run_sequence", "root_sequence"), (NUMBER, NOTHING)),
    "payload": (dict,),
}
RECEIVED = "coordinator.steering_received"
DECIDED = "coordinator.steering_decision"
REVISED = "coordinator.revision_execution"
VERBS = {REVISED: None, "run.paused": {"pause"}, "run.resumed": {"resume"}, "run.processes_killed": {"abort", "stop"}}


class Tampered(Exception):
    """Something is not as it was signed: where, and what."""

    def __init__(self, position: int | None, what: str) -> None:
        super().__init__(what)
        self.position, self.what = position, what


@dataclass(frozen=True)
class Row:
    """One fact as a store or a bundle holds it."""

    position: Any
    columns: dict[str, Any]
    is_output: Any
    envelope: Any
    leaf_hash: Any
    mac: Any
    texts: list[tuple[Any, Any, Any]]
    previous_mac: Any = None
    proof: list[bytes] | None = None


def read_envelope(data: bytes) -> dict[str, Any]:
    """The fact of an envelope. Further members say nothing."""
    try:
        fact = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise Unreadable("no envelope") from error
    if not isinstance(fact, dict) or fact.get("v") != 1:
        raise Unreadable("no envelope")
    if any(name not in fact or type(fact[name]) not in kinds for name, kinds in MEMBERS.items()):
        raise Unreadable("no envelope")
    return fact


def words_named(value: object) -> set[tuple[str, int]]:
    """The digest and length of all words that a payload names."""
    if isinstance(value, list):
        return {named for item in value for named in words_named(item)}
    if not isinstance(value, dict):
        return set()
    if value.keys() == {"digest", "length"}:
        return {(value["digest"], value["length"])} if isinstance(value["digest"], str) else set()
    return {named for item in value.values() for named in words_named(item)}


@dataclass
class Receipt:
    """A correction that was received, and the children that it is for."""

    payload_hash: Any
    verb: Any
    direct: bool
    whole_run: bool
    root: Any
    targets: set[str]


@dataclass
class Log:
    """What the facts so far say."""

    run: str | None = None
    #: Of each topic that is known, whether its facts are output.
    topics: dict[str, bool] = field(default_factory=lambda: dict.fromkeys(OUTPUT, True))
    hmac_keys: dict[str, bytes] = field(default_factory=dict)
    end: int = 0
    checkpoint_root: bytes = b""
    tree: Tree = field(default_factory=Tree)
    last: int = 0
    run_facts: int = 0
    mac: bytes = bytes(32)
    key: Key | None = None
    hmac_id: str = ""
    named: set[Key] = field(default_factory=set)
    opened_at: int = 0
    #: Of each origin that was left behind, how many of its facts this log still has.
    kept: dict[str, int] = field(default_factory=dict)
    macs: int = 0
    receipts: dict[str, Receipt] = field(default_factory=dict)
    effects: set[tuple[Any, ...]] = field(default_factory=set)

    def take(self, row: Row) -> None:
        """Check the next fact against everything before it."""
        self._check_place(row.position)
        if not isinstance(row.envelope, bytes):
            raise Tampered(row.position, "the envelope is no bytes")
        leaf = leaf_hash(row.envelope)
        if row.leaf_hash != leaf:
            raise Tampered(row.position, "the stored leaf hash is of another envelope")
        try:
            fact = read_envelope(row.envelope)
        except Unreadable as error:
            raise Tampered(row.position, str(error)) from error
        self._check_columns(row, fact)
        self._check_texts(row, fact)
        if self.run is not None:
            self._check_run(row, fact, leaf)
        if self.last == 0 and fact["topic"] != "log.opened":
            raise Tampered(row.position, "the first fact does not open the log")
        about_log = fact["stream"] == "log"
        try:
            if about_log and fact["topic"] == "log.opened":
                self._open(fact)
            self._check_mac(row, leaf)
            if about_log and fact["topic"] == "log.key_rotated":
                self._rotate(fact)
        except Unreadable as error:
            raise Tampered(row.position, str(error)) from error
        self._correct(fact)
        self.tree.append(leaf)
        self.last, self.mac = row.position, row.mac

    def _check_place(self, position: object) -> None:
        if type(position) is not int:
            raise Tampered(self.last + 1, "a position that is no number")
        if position <= self.last or (self.run is None and position != self.last + 1):
            raise Tampered(self.last + 1, "a fact is missing, or stands twice")
        if position > self.end:
            raise Tampered(position, "a fact behind the signed end")

    def _check_columns(self, row: Row, fact: dict[str, Any]) -> None:
        told = {"position": row.position, **row.columns}
        for name in ("position", *COLUMNS):
            if type(told[name]) is not type(fact[name]) or told[name] != fact[name]:
                raise Tampered(row.position, f"the column {name} is not what the envelope says")
        if row.is_output is not self.topics.get(fact["topic"], row.is_output):
            raise Tampered(row.position, "the column is_output is not that of the topic")

    def _check_texts(self, row: Row, fact: dict[str, Any]) -> None:
        named = words_named(fact["payload"])
        for digest, salt, words in row.texts:
            if not (isinstance(salt, bytes) and isinstance(words, bytes)):
                raise Tampered(row.position, "words that are no bytes")
            if sha256(salt + words).hexdigest() != digest or (digest, len(words)) not in named:
                raise Tampered(row.position, "words that the fact does not name")

    def _check_run(self, row: Row, fact: dict[str, Any], leaf: bytes) -> None:
        proof = row.proof if row.proof is not None else []
        if not includes(self.checkpoint_root, self.end, row.position - 1, leaf, proof):
            raise Tampered(row.position, "the proof does not show the fact in the tree")
        if fact["root"] is None:
            return
        self.run_facts += 1
        if (fact["root"], fact["root_sequence"]) != (self.run, self.run_facts):
            raise Tampered(row.position, "a fact of the run is missing, or is of another")

    def _open(self, fact: dict[str, Any]) -> None:
        said = fact["payload"]
        origin, public = said.get("origin"), from_base64(said.get("publicKey"))
        if not isinstance(origin, str) or said.get("signingKeyId") != key_id(public):
            raise Unreadable("what opens the log names no key")
        if self.key is not None and (public, said.get("hmacKeyId")) != (self.key.public, self.hmac_id):
            raise Unreadable("the log is opened with keys that are not in force")
        if self.key is None or origin != self.key.name:
            self.opened_at = fact["position"]
        if isinstance(said.get("priorOrigin"), str):
            self.kept[said["priorOrigin"]] = self.opened_at - 1
        self._sign_with(Key(origin, public), said.get("hmacKeyId"))

    def _rotate(self, fact: dict[str, Any]) -> None:
        said, key = fact["payload"], self.key
        if key is None:
            raise Unreadable("a key is changed before the log was opened")
        public = from_base64(said.get("publicKey"))
        if (said.get("signingKeyId"), said.get("priorSigningKeyId")) != (key_id(public), key_id(key.public)):
            raise Unreadable("a change of keys that names other keys")
        if not hands_over(said.get("endorsement"), key, public):
            raise Unreadable("the key before did not hand over")
        self._sign_with(Key(key.name, public), said.get("hmacKeyId"))

    def _sign_with(self, key: Key, hmac_id: object) -> None:
        if not isinstance(hmac_id, str):
            raise Unreadable("no id of an HMAC key")
        self.key, self.hmac_id = key, hmac_id
        self.named.add(key)

    def _check_mac(self, row: Row, leaf: bytes) -> None:
        previous = self.mac if row.previous_mac is None else row.previous_mac
        if not isinstance(row.mac, bytes) or len(row.mac) != 32:
            raise Unreadable("a MAC that is not of 32 bytes")
        secret = self.hmac_keys.get(self.hmac_id)
        if secret is None:
            return
        self.macs += 1
        if not hmac.compare_digest(hmac.digest(secret, previous + leaf, "sha256"), row.mac):
            raise Unreadable("the MAC is wrong")

    def _correct(self, fact: dict[str, Any]) -> None:
        topic, said, position = fact["topic"], fact["payload"], fact["position"]
        directive = said.get("directiveId")
        receipt = self.receipts.get(directive) if isinstance(directive, str) else None
        if topic == RECEIVED:
            if receipt or not isinstance(directive, str):
                raise Tampered(position, "a directive is received twice, or has no id")
            scope = said.get("targetScope")
            self.receipts[directive] = Receipt(
                said.get("payloadHash"),
                said.get("verb"),
                said.get("direct") is True,
                isinstance(scope, dict) and scope.get("kind") == "run",
                fact["root"],
                set(said.get("targets") or ()),
            )
        elif topic == DECIDED:
            if not receipt:
                raise Tampered(position, "a decision without a receipt")
            if not receipt.direct:
                receipt.targets |= set(said.get("targets") or ())
        elif topic in VERBS:
            self._check_effect(fact, receipt)

    def _check_effect(self, fact: dict[str, Any], receipt: Receipt | None) -> None:
        topic, said, position, directive = (
            fact["topic"],
            fact["payload"],
            fact["position"],
            fact["payload"].get("directiveId"),
        )
        verbs = VERBS[topic]
        if not receipt or receipt.payload_hash != said.get("receiptPayloadHash"):
            raise Tampered(position, "an effect without its receipt")
        if verbs is not None and receipt.verb not in verbs:
            raise Tampered(position, "an effect of another verb than its receipt's")
        child = said.get("childRunId") if topic == REVISED else fact["run"]
        everybody = receipt.whole_run and receipt.verb == "stop" and receipt.root == fact["root"]
        if child not in receipt.targets and not everybody:
            raise Tampered(position, "an effect on a child that its receipt is not for")
        if topic == REVISED and said.get("state") != "effect_confirmed":
            return
        effect = (topic, directive, said.get("attempt"), child)
        if effect in self.effects:
            raise Tampered(position, "an effect is had twice")
        self.effects.add(effect)
