"""
What the work itself costs: a service that stores a steer as ours does, behind the same server, and decides nothing.

One writer takes whatever waits: for each command three facts with a digest of the words, their leaves in one tree, a
chain of MACs and the stored answer; for each batch one signed head and one transaction, then the head in a flushed file.
No states, no decisions, no agents, no views, no feeds: whoever does the real work cannot be faster than this on the same
machine, in the same language. It stores by our own recorders, so that the rows are those of ours, byte for byte in size.

    python ops/bench/steer_limit.py STORE      a file (SQLite) or a connection string (PostgreSQL)
"""

import asyncio
import json
import socket
import sys
import tempfile
import uuid
from collections import deque
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from threading import Condition, Thread
from typing import Any

import msgspec
import uvicorn
from litestar import Litestar, Request, Response, post

from steersman.adapters.clock import SYSTEM_CLOCK
from steersman.adapters.log.numbering import BatchNeeds, Numbering
from steersman.adapters.log.opening import sealed_by
from steersman.adapters.log_format.checkpoint_file import CheckpointFile
from steersman.adapters.log_format.event_codec import Encoded, StoredText
from steersman.adapters.log_format.keys import Keyring
from steersman.adapters.stores.postgres_log import LogDatastore, PostgresRecorder
from steersman.adapters.stores.sqlite_log import SqliteRecorder, open_datastore
from steersman.application.ports.log import Append, Idempotency
from steersman.domain.event import Event

MAX_BATCH = 256
USERS = {"operator": "bench"}

Waiting = tuple["asyncio.Future[bytes]", asyncio.AbstractEventLoop, tuple[str, str, str, bytes, "LimitCommand"]]


class LimitCommand(msgspec.Struct):
    """What is sent."""

    kind: str
    principal: str = ""
    guidance: str = ""


class Said(msgspec.Struct):
    """What a fact of ours holds, more or less."""

    child_run_id: str
    directive_id: str
    kind: str
    status: str
    instruction: dict[str, object] | None = None


class Writer(Thread):
    """Whatever waits goes into one transaction; then everybody is answered."""

    def __init__(self, store: str) -> None:
        super().__init__(daemon=True)
        is_file = "=" not in store and "://" not in store
        self.recorder = (
            SqliteRecorder(open_datastore(Path(store))) if is_file else PostgresRecorder(LogDatastore(store))
        )
        self.recorder.create_table()
        home = Path(tempfile.mkdtemp(dir=Path(store).parent if is_file else None))
        opens = sealed_by(Keyring(home / "keys"), CheckpointFile(home / "checkpoints.log"))
        self.sealing = opens(self.recorder, SYSTEM_CLOCK)
        self.waiting = deque[Waiting]()
        self.filled = Condition()

    def submit(self, *asked: object) -> "asyncio.Future[bytes]":
        """Return what will be answered."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bytes] = loop.create_future()
        with self.filled:
            self.waiting.append((future, loop, asked))  # pyright: ignore[reportArgumentType]
            self.filled.notify()
        return future

    def run(self) -> None:
        """Write for ever."""
        numbers: dict[str, dict[str, int]] = {"streams": {}, "runs": {}, "roots": {}}
        while True:
            with self.filled:
                self.filled.wait_for(lambda: self.waiting)
                batch = [self.waiting.popleft() for _ in range(min(len(self.waiting), MAX_BATCH))]
            now = datetime.now(UTC).isoformat(timespec="microseconds")
            with self.recorder.transaction() as transaction:
                known = transaction.known(
                    BatchNeeds(answers=[("bench", "POST", asked[0], asked[2]) for *_, asked in batch]), ""
                )
                known.streams, known.runs, known.roots = numbers["streams"], numbers["runs"], numbers["roots"]
                numbering = Numbering(known, lambda _, known=known: known)
                answers = [self.take(numbering, *asked) for *_, asked in batch]
                numbered = numbering.finish()
                self.sealing.seal(numbered)
                transaction.write(numbered, now, "")
            self.sealing.publish(numbered.head)
            told = [(waiting[0], answer) for waiting, answer in zip(batch, answers, strict=True)]
            batch[0][1].call_soon_threadsafe(lambda told=told: [f.set_result(a) for f, a in told if not f.done()])

    def take(self, numbering: Numbering, task: str, user: str, key: str, body: bytes, command: LimitCommand) -> bytes:
        """Make a command part of the batch; return its answer."""
        directive_id, salt, words = str(uuid.uuid4()), uuid.uuid4().bytes, command.guidance.encode()
        text = StoredText(sha256(salt + words).hexdigest(), salt, words)
        streams = (f"directive/{directive_id}", f"run/{task}", f"directive/{directive_id}")
        facts: list[Encoded] = []
        for stream, topic in zip(streams, ("received", "moved", "decision"), strict=True):
            said = Said(task, directive_id, command.kind, "queued")
            if topic == "received":
                said.instruction = {"digest": text.digest, "length": len(words)}
            payload = msgspec.Raw(msgspec.json.encode(said))
            texts = (text,) if topic == "received" else ()
            facts.append(Encoded(stream, topic, task, task, False, payload, texts, Event()))
            for heads, name in (
                (numbering.known.streams, stream),
                (numbering.known.runs, task),
                (numbering.known.roots, task),
            ):
                heads.setdefault(name, 0)
        answer = msgspec.json.encode({"directive_id": directive_id, "task_id": task, "status": "queued"})
        row = Idempotency(
            principal=user,
            method="POST",
            path=task,
            key=key,
            body_digest=sha256(body).hexdigest(),
            status=201,
            answer=answer,
        )
        append = Append(
            drafts=(), expected={}, at=datetime.now(UTC), principal=user, command_id=str(uuid.uuid4()), idempotency=row
        )
        numbering.add(append, numbering.place(append, facts))
        return answer


def main() -> None:
    """Serve until the process is ended."""
    writer = Writer(sys.argv[1])
    writer.start()

    @post("/tasks/{task_id:str}/steer")
    async def steer(task_id: str, request: Request[Any, Any, Any]) -> Response[bytes]:
        user = USERS[request.headers["authorization"].removeprefix("Bearer ")]
        body = await request.body()
        key = request.headers.get("idempotency-key", "")
        answer = await writer.submit(task_id, user, key, body, msgspec.json.decode(body, type=LimitCommand))
        return Response(answer, status_code=201, media_type="application/json")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(json.dumps({"url": f"http://127.0.0.1:{listener.getsockname()[1]}"}), flush=True)
        config = uvicorn.Config(
            Litestar([steer], openapi_config=None, logging_config=None), access_log=False, log_level="warning"
        )
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
