"""The rehearsal agent's steps: each is done once, also when a kill -9 strikes in the middle of it."""

import os
import signal
import subprocess
import sys
import threading
from itertools import count
from pathlib import Path
from typing import Any, Protocol, cast

from .script import fenced_text, verdict_text
from .sessions import StoredSession, sync_directory

#: What is told of a command's output.
OUTPUT_CHARACTERS = 16 * 1024
#: Appends its own pid and a number to a file, for ever.
WRITER = """
import itertools, os, sys, time
path, pause = sys.argv[1], int(sys.argv[2]) / 1000
for number in itertools.count():
    with open(path, "a") as file:
        file.write(f"{os.getpid()} {number}\\n")
    time.sleep(pause)
"""


class Cancelled(Exception):
    """The client has cancelled the turn; what is left of it stays for the next prompt."""


class TurnIsOver(Exception):
    """The turn ends for this reason of the protocol's, before its steps are done; the rest stays for the next prompt."""


class TurnFailed(Exception):
    """The turn ends with an error, whose message this is."""


class Voice(Protocol):
    """How a step speaks with the client. `cancelled` is set when the turn is to end."""

    cancelled: threading.Event

    def say(self, text: str) -> None: ...
    def usage(self, tokens_in: int, tokens_out: int, cost: float | None, currency: str) -> None: ...
    def begin_tool(self, name: str, tool_input: object, kind: str) -> str: ...
    def plan(self, steps: list[dict[str, str]]) -> None: ...
    def say_of_tool(self, call_id: str, tool_input: object, files: list[str]) -> None: ...
    def end_tool(self, call_id: str, text: str, *, failed: bool, diff: dict[str, str] | None = None) -> None: ...
    def may(self, call_id: str, name: str, tool_input: object) -> bool: ...
    def ask(self, question: str) -> str | None: ...
    def ignore_end(self) -> None: ...


class Performer:
    """Does the steps of a session's turn, in its working directory, from where the progress on disk says."""

    def __init__(self, session: StoredSession, cwd: Path, voice: Voice) -> None:
        self._session = session
        self._cwd = cwd.resolve()
        self._voice = voice

    def perform(self) -> None:
        """On return every step is done. Raises Cancelled, TurnIsOver or TurnFailed; then the rest is still to be done."""
        progress = self._session.progress
        # From the beginning, so that nobody can be faster than the step itself.
        if any(manners(step.get("hang")).get("ignore_term") for step in progress.steps[progress.step :]):
            self._voice.ignore_end()
        while progress.is_open:
            step: dict[str, Any] = progress.steps[progress.step]
            if "hang" not in step:
                self._check()  # a hang decides itself what a cancel means to it, also one that came before it
            name, value = next((key, value) for key, value in step.items() if hasattr(self, f"_do_{key}"))
            perform = getattr(self, f"_do_{name}")
            perform(step if name == "verdict" else value)
            self._done()

    def repeat_answers(self) -> None:
        """Say again what the turn ended with: for a client that missed the end of it."""
        for step in self._session.progress.steps:
            if "verdict" in step:
                self._do_verdict(step)
            elif "plan" in step:
                self._do_plan(step["plan"])
            elif "outcome" in step:
                self._do_outcome(step["outcome"])
            elif "say" in step or "answer" in step:
                self._voice.say(str(step.get("say", step.get("answer"))))

    def _done(self) -> None:
        progress = self._session.progress
        progress.step, progress.part, progress.size = progress.step + 1, 0, None
        self._session.save()

    def _check(self) -> None:
        if self._voice.cancelled.is_set():
            raise Cancelled

    def _sleep(self, milliseconds: int) -> None:
        if self._voice.cancelled.wait(milliseconds / 1000):
            raise Cancelled

    def _inside(self, path: object) -> Path:
        found = (self._cwd / str(path)).resolve()
        if not found.is_relative_to(self._cwd) or found == self._cwd:
            raise TurnFailed(f"{path} is not inside the working directory")
        return found

    # Files

    def _do_write(self, value: dict[str, Any]) -> None:
        path = self._inside(value["path"])
        call = self._voice.begin_tool("write", value, "edit")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.write(str(value["text"]).encode())
            file.flush()
            os.fsync(file.fileno())
        sync_directory(path.parent)
        self._voice.end_tool(call, f"wrote {value['path']}", failed=False)

    def _do_append(self, value: dict[str, Any]) -> None:
        path = self._inside(value["path"])
        call = self._voice.begin_tool("append", value, "edit")
        while self._session.progress.part < int(value.get("times", 1)):
            self._check()
            self._append_once(path, str(value["text"]).encode())
            self._sleep(int(value.get("every_ms", 0)))
        self._voice.end_tool(call, f"appended to {value['path']}", failed=False)

    def _do_echo_prompt(self, value: dict[str, Any]) -> None:
        path = self._inside(value["path"])
        if self._session.progress.part == 0:
            self._append_once(path, self._session.progress.prompt.encode())

    def _append_once(self, path: Path, data: bytes) -> None:
        progress = self._session.progress
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            size = file.seek(0, os.SEEK_END)
            if progress.size is not None and size > progress.size:
                # We died between the line below that wrote the size and the one that wrote the part:
                # what is beyond that size is this part, whole or torn. Do it again.
                file.truncate(progress.size)
            else:
                progress.size = size
                self._session.save()
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        sync_directory(path.parent)
        progress.part, progress.size = progress.part + 1, None
        self._session.save()

    def _do_delete(self, value: dict[str, Any]) -> None:
        path = self._inside(value["path"])
        call = self._voice.begin_tool("delete", value, "delete")
        path.unlink(missing_ok=True)
        self._voice.end_tool(call, f"deleted {value['path']}", failed=False)

    # Words

    def _do_say(self, value: object) -> None:
        self._speak(str(value))

    def _do_verdict(self, step: dict[str, Any]) -> None:
        self._speak(verdict_text(step))

    def _do_plan(self, value: object) -> None:
        self._speak(fenced_text(value))

    def _do_outcome(self, value: object) -> None:
        self._speak(fenced_text(value))

    def _do_answer(self, value: object) -> None:
        self._speak(str(value))

    def _speak(self, text: str) -> None:
        self._voice.say(text)
        self._session.add_history("agent", text)

    def _do_sleep_ms(self, value: object) -> None:
        self._sleep(int(str(value)))

    def _do_usage(self, value: dict[str, Any]) -> None:
        cost = value.get("cost")
        self._voice.usage(
            int(value.get("input", 0)),
            int(value.get("output", 0)),
            None if cost is None else float(cost),
            str(value.get("currency", "USD")),
        )

    def _do_steps(self, value: list[dict[str, str]]) -> None:
        self._voice.plan(value)

    def _do_tool(self, value: dict[str, Any]) -> None:
        name, tool_input = str(value["name"]), value.get("input", {})
        is_late = bool(value.get("late"))
        call = self._voice.begin_tool(name, {} if is_late else tool_input, str(value.get("kind", "other")))
        if is_late:
            # As agents do that begin to show a call before they know all of it.
            self._voice.say_of_tool(call, tool_input, [str(path) for path in value.get("files", [])])
        if self._voice.may(call, name, tool_input):
            diff = value.get("diff")
            self._voice.end_tool(call, f"{name} was allowed and pretended to run", failed=False, diff=diff)
        else:
            self._voice.end_tool(call, f"{name} was denied", failed=True)
        self._check()

    def _do_flood(self, value: dict[str, Any]) -> None:
        """Call a tool that does nothing again and again, without an end unless one is given."""
        for number in range(int(value["times"])) if "times" in value else count():
            self._check()
            call = self._voice.begin_tool("flood", {"number": number}, "other")
            self._voice.end_tool(call, "nothing", failed=False)

    def _do_ask(self, value: object) -> None:
        answer = self._voice.ask(str(value))
        self._check()
        self._speak(f"The answer to “{value}” is: {answer}" if answer is not None else f"Nobody answered “{value}”.")

    # Processes

    def _do_run(self, value: list[str]) -> None:
        call = self._voice.begin_tool("run", {"command": value}, "execute")
        try:
            output, code = self._run([str(word) for word in value])
        except OSError as error:
            output, code = str(error), 127
        self._voice.end_tool(call, f"{output}\nexit code {code}", failed=code != 0)

    def _run(self, command: list[str]) -> tuple[str, int]:
        with subprocess.Popen(
            command,
            cwd=self._cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
        ) as process:
            while True:
                try:
                    output, _ = process.communicate(timeout=0.05)
                    break
                except subprocess.TimeoutExpired:
                    if self._voice.cancelled.is_set():
                        os.killpg(process.pid, signal.SIGKILL)
                        raise Cancelled from None
            return output.decode(errors="replace")[-OUTPUT_CHARACTERS:], process.returncode

    def _do_spawn(self, value: dict[str, Any]) -> None:
        path = self._inside(value["path"])
        path.parent.mkdir(parents=True, exist_ok=True)
        is_detached = bool(value.get("detached", False))
        subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", WRITER, str(path), str(value.get("every_ms", 100))],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=is_detached,
            env={} if is_detached else None,
        )

    def _do_hang(self, value: object) -> None:
        if manners(value).get("ignore_cancel"):
            while True:
                signal.pause()
        self._voice.cancelled.wait()
        self._done()  # a cancelled hang is over: what follows it must be reachable
        raise Cancelled

    def _do_crash(self, value: dict[str, Any]) -> None:
        self._done()  # before we die: who comes back goes on behind the crash
        os._exit(int(value.get("exit", 1)))

    def _do_fail(self, value: object) -> None:
        self._done()
        raise TurnFailed(str(value))

    def _do_end(self, value: object) -> None:
        self._done()
        raise TurnIsOver(str(value))


def manners(value: object) -> dict[str, Any]:
    """Return what a hang ignores; nothing if it does not say."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
