"""A real `steersman serve` in a process of its own, and what a client of it needs. Everything goes over HTTP."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from steersman.ops.commands.sse import ServerSent, read_events
from steersman.tests.last_words import remember

#: Far beyond what anything here takes, on a machine that is busy with other things.
PATIENCE_SECONDS = 240.0
#: What a test may take, pytest's timeout of it, that lets a service live so often that each life must be counted.
MANY_LIVES_SECONDS = 900
GATE = "coordinator.assembly_review_requested"
STEERSMAN = [sys.executable, "-P", "-m", "steersman.ops.command_line"]


def environment(**variables: str) -> dict[str, str]:
    """Return this process's environment without a setting of ours but the given ones."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STEERSMAN_")}
    return kept | {"STEERSMAN_SETTINGS": os.devnull} | variables


def steersman(*arguments: object, expect: int = 0, **variables: str) -> str:
    """Run a command to its end and return what it says on standard output, and on a failure on standard error."""
    done = subprocess.run(
        [*STEERSMAN, *map(str, arguments)],
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == expect, f"{arguments} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout if expect == 0 else done.stdout + done.stderr


def wait_until(condition: Callable[[], Any], what: str) -> Any:
    """Return the condition's first true value; fail if there is none in a long time."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"waited in vain until {what}")


class Frame(NamedTuple):
    """One event of a feed."""

    id: int | None
    event: str
    data: Any


class Feed:
    """One connection to a feed, read as far as somebody asks for it."""

    def __init__(self, http: httpx.Client, path: str, after: int | None) -> None:
        headers = {} if after is None else {"Last-Event-ID": str(after)}
        self._stream = http.stream("GET", path, headers=headers)
        self._response = self._stream.__enter__()
        assert self._response.status_code in (200, 204), self._response.read()
        # Nothing here leads back to this: a feed in a circle would be hung up by the collector, in the middle of another
        # request of its client perhaps, and wait there for the lock of its own thread.
        self._events: Iterator[ServerSent] = read_events(self._response.iter_lines())
        if self._response.status_code == 204:
            # Everything of a run that cannot go on was read before.
            self._events = iter([ServerSent(id=None, event="done", data="{}")])

    def until(self, *topics: str) -> list[Frame]:
        """Return the frames up to and with the first one of these topics. The feed must bring one."""
        frames: list[Frame] = []
        for event in self._events:
            frames.append(Frame(event.id, event.event, json.loads(event.data)))
            if event.event in topics:
                return frames
        raise AssertionError(f"the feed ended before {topics}: {[frame.event for frame in frames]}")

    def take(self) -> Frame:
        """Return the next frame. The feed must bring one."""
        event = next(self._events)
        return Frame(event.id, event.event, json.loads(event.data))

    def close(self) -> None:
        """Hang up."""
        self._stream.__exit__(None, None, None)


class Service:
    """A service that can be killed and started again, and a client of it."""

    def __init__(self, home: Path, data: Path | None = None, *, role: str = "all", **variables: str) -> None:
        self.home = home
        self.data = data or home / "data"
        self.data.mkdir(mode=0o700, exist_ok=True)
        self.role = role
        self.variables = variables
        self.process: subprocess.Popen[str] | None = None
        self.url = ""
        self.token = ""
        self._http: list[httpx.Client] = []

    @property
    def log(self) -> str:
        """What the service has logged, over all its lives."""
        return (self.home / "service.log").read_text(encoding="utf-8")

    def start(self) -> "Service":
        """Start the service; on return it accepts requests."""
        with (self.home / "service.log").open("a", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [*STEERSMAN, "serve", "--port", "0", "--data", str(self.data), "--role", self.role],
                env=environment(**self.variables),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        remember(self.process, self.home / "service.log")
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self._end(signal.SIGKILL)
            raise AssertionError(f"the service did not start:\n{self.log}")
        self.url = json.loads(line)["url"]
        self.token = self.token or self.issue("alice")
        return self

    def kill(self) -> int:
        """Kill the service without a word (SIGKILL); return the pid that it had."""
        return self._end(signal.SIGKILL)

    @contextmanager
    def dying(self) -> Iterator[None]:
        """Ask within this for what the service dies of: it may answer or not. On return it is dead."""
        with suppress(httpx.TransportError):
            yield
        process = self.process
        assert process is not None
        wait_until(lambda: process.poll() is not None, "the service has died")
        self.kill()

    def stop(self) -> int:
        """Ask the service to end (SIGTERM) and return its exit code."""
        assert self.process is not None
        self._end(signal.SIGTERM)
        return self.process.returncode

    def close(self) -> None:
        """End whatever is left."""
        for http in self._http:
            http.close()
        if self.process is not None:
            self._end(signal.SIGTERM)

    def issue(self, user: str, scope: str = "operator") -> str:
        """Return a new token."""
        arguments = ("token", "issue", "--data", self.data, "--user", user, "--scope", scope)
        return steersman(*arguments, **self.variables).strip()

    def client(self, token: str | None = None) -> httpx.Client:
        """Return a client; it is closed with the service."""
        headers = {"Authorization": f"Bearer {token or self.token}"}
        http = httpx.Client(base_url=self.url, headers=headers, timeout=PATIENCE_SECONDS)
        self._http.append(http)
        return http

    def _end(self, number: int) -> int:
        assert self.process is not None
        # One that has died by itself is only buried; the end of this closes its pipe in any case.
        with self.process as process:
            process.send_signal(number)
            try:
                process.wait(PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
            return process.pid


class Api:
    """What the tests ask of a service."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.http = service.client()
        #: The position of our last command: what we read afterwards shows it.
        self._position = "0"

    def get(self, path: str, expect: int = 200) -> Any:
        """Return what is there."""

        def answered() -> httpx.Response | None:
            response = self.http.get(path, headers={"Steersman-Min-Position": self._position})
            # Where the views lag behind, as on a machine that is busy with other things, a client asks again.
            lags = response.status_code == 503 and response.json()["error"] == "position_not_reached"
            return None if lags and expect != 503 else response

        return self._body(wait_until(answered, f"the views show {self._position}"), expect)

    def post(self, path: str, body: object, expect: int = 200, **headers: str) -> Any:
        """Send a command and return its answer."""
        response = self.http.post(path, json=body, headers=headers)
        self._position = response.headers.get("Steersman-Position", self._position)
        return self._body(response, expect)

    def project(self, repository: Path, *members: Mapping[str, str], name: str | None = None) -> str:
        """Register the repository, with a software engineer if nobody else is named, and return the project's id."""
        body = {"name": name or repository.name, "origin": "blank", "working_directory": str(repository)}
        project_id: str = self.post("/api/projects", body, 201)["project_id"]
        for member in members or ({"role_id": "software-engineer"},):
            self.post(f"/api/projects/{project_id}/team/members", member)
        return project_id

    def orchestrate(self, project_id: str, *parts: Mapping[str, Any], **more: Any) -> str:
        """Start a run with a plan of these parts, or without one, and return its id."""
        body: dict[str, Any] = {"goal": "Whatever the plan says", "start_mode": "direct", **more}
        if parts:
            body["plan"] = {"subtasks": parts}
        run_id: str = self.post(f"/api/projects/{project_id}/orchestrations", body, 201)["runId"]
        return run_id

    def feed(self, run_id: str, after: int | None = None) -> Feed:
        """Connect to a run's feed."""
        return Feed(self.http, f"/api/runs/{run_id}/stream", after)

    def until(self, run_id: str, *topics: str, after: int | None = None) -> list[Frame]:
        """Wait for an event of a run, behind an id; return everything up to it. What is read afterwards shows it, too."""
        feed = self.feed(run_id, after)
        try:
            frames = feed.until(*topics)
        finally:
            feed.close()
        self._position = str(self.http.get("/health").json()["position"])
        return frames

    def review(self, run_id: str, expect: int = 200, **decision: Any) -> Any:
        """Decide at the gate."""
        return self.post(f"/api/runs/{run_id}/assembly/review", decision, expect)

    def run_to_merge(self, project_id: str, *parts: Mapping[str, Any]) -> str:
        """Take a plan through an approval to its merge; return the run's id."""
        run_id = self.orchestrate(project_id, *parts)
        self.until(run_id, GATE)
        self.review(run_id, approved=True)
        self.until(run_id, "coordinator.assembly_completed")
        return run_id

    @staticmethod
    def _body(response: httpx.Response, expect: int) -> Any:
        # 202 is the same success, said by a process that has not taken the run over yet.
        found = expect if response.status_code == 202 and expect in (200, 201) else response.status_code
        assert found == expect, f"{response.request.url}: {response.status_code} {response.text}"
        return response.json() if response.content else None


def part(title: str, *steps: Mapping[str, Any], needs: Sequence[int] = (), **more: Any) -> dict[str, Any]:
    """Return a part of a plan that tells the rehearsal agent what to do."""
    scope = f"{title}.\n\n```rehearsal\n{json.dumps(steps)}\n```\n"
    return {"title": title, "scope": scope, "dependsOn": list(needs), **more}


def write(path: str, text: str) -> dict[str, Any]:
    """Return the step that writes a file."""
    return {"write": {"path": path, "text": text}}
