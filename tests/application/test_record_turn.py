"""What is kept of an agent's words: whole, in order, and without what must not be kept, however it is cut."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.application.commands.end_run import cancel_run, delete_run
from steersman.application.effects.record_turn import PIECE_BYTES, RECORD_BYTES, TurnRecorder
from steersman.application.ports.agents import AgentFailed, AgentUpdate, PermissionAsked
from steersman.application.ports.log import LogUnavailable
from steersman.application.ports.tenure import Alone
from steersman.application.writer.run_log import RunLog
from steersman.domain.event import Event
from steersman.domain.facts.agent_output import MessageDelta, OutputTruncated, ToolCalled, ToolOutput
from steersman.domain.facts.run import CoordinatorRun, CoordinatorStarted
from steersman.domain.facts.sandbox import SandboxPolicy
from steersman.domain.process.dispatch import advance
from steersman.domain.redaction.hold_back import unfinished
from steersman.domain.redaction.personal_data import redact_personal
from steersman.domain.redaction.secret_shapes import redact
from steersman.tests.application.service import Service, by, part

#: How long the words wait that may be the beginning of a secret, in these tests.
HELD_SECONDS = 0.2

SECRETS = (
    "ghp_" + "a1B2" * 9,
    "password=hunter2hunter2",
    "Authorization: Bearer abcdefghijklmnop1234",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEabc/+==\nMIIEdef\n-----END RSA PRIVATE KEY-----",
    "postgres://user:opensesame@host/db",
    "MY_API_KEY='four words of 1 secret'",
    '{"apiKey": "abc123def456"}',
)


class PolicyRuns(RunLog):
    """The runs of a service, under another policy."""

    policy = SandboxPolicy()

    def run(self, root: str) -> CoordinatorRun:
        return msgspec.structs.replace(super().run(root), policy=self.policy)


def recorded(*updates: tuple[str, str], policy: SandboxPolicy | None = None) -> list[Event]:
    """What is on the log when a turn has reported this."""
    service = Service()
    service.start(part("One"))
    runs = PolicyRuns(service.log, service.clock)
    runs.policy = policy or SandboxPolicy()
    recorder = TurnRecorder(runs, Alone(), "r", "r", "turn", "rehearsal", 0)
    for kind, text in updates:
        recorder.update(AgentUpdate(kind=kind, text=text))
    recorder.close()
    return [event for event in service.events if event.OUTPUT]


def words(events: Sequence[Event], kind: type[Event] = MessageDelta) -> str:
    """What was said, put together, as the log would keep it."""
    found = (getattr(event, "delta", None) or getattr(event, "data", None) for event in events if type(event) is kind)
    return "".join(redact(str(text)) for text in found)


@pytest.mark.parametrize("secret", SECRETS, ids=lambda secret: secret[:12])
def test_a_secret_is_found_wherever_the_agent_cuts_it(secret: str) -> None:
    text = f"Look at this: {secret} and go on. "
    for cut in range(1, len(text)):
        kept = unfinished(text[:cut])
        stored = redact(text[:kept]) + redact(text[kept:])
        assert stored == redact(text), cut


@pytest.mark.parametrize("between", ["stderr", "thought", "usage"])
def test_a_secret_is_found_though_something_else_is_said_in_the_middle_of_it(between: str) -> None:
    events = recorded(("message", "Use ghp_a1B2a1B2a1B2"), (between, "x"), ("message", "a1B2a1B2a1B2 now."))
    assert words(events) == "Use [redacted] now."


def test_words_are_kept_whole_and_in_order() -> None:
    events = recorded(*(("message", f"word{n} ") for n in range(3_000)), ("stderr", "oops\n"))
    assert words(events) == "".join(f"word{n} " for n in range(3_000))
    assert words(events, ToolOutput) == "oops\n"


@given(st.text(alphabet="ab \n:-", max_size=300), st.integers(0, 300))
def test_what_is_held_back_and_what_is_not_make_the_whole(text: str, cut: int) -> None:
    kept = unfinished(text[:cut])
    assert 0 <= kept <= len(text[:cut])


def test_a_word_without_an_end_is_let_go() -> None:
    assert unfinished("x" * 100_000) == 100_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mail jane.doe+x@mail.example.org.", "mail [redacted]."),
        ("from 10.1.2.3:8080 to 192.168.0.255", "from [redacted]:8080 to [redacted]"),
        ("at 2001:db8::1, ::1 and fe80::1ff:fe23:4567:890a", "at [redacted], [redacted] and [redacted]"),
        ("1.2.3 at 12:34:56, std::vector, a::b, 300.1.1.1, v1.2.3.4.5", None),
        ("git@github.com:me/it.git, @dataclass, a@b", None),
    ],
)
def test_addresses_of_people_and_machines_are_taken_out_and_nothing_else(text: str, expected: str | None) -> None:
    assert redact_personal(text) == (text if expected is None else expected)


def test_personal_data_is_kept_where_the_policy_says_so() -> None:
    said = ("message", "Ask jane@example.org. ")
    assert words(recorded(said)) == "Ask [redacted]. "
    assert words(recorded(said, policy=SandboxPolicy(redact_pii=False))) == "Ask jane@example.org. "


def test_output_beyond_the_policys_limit_is_cut_off_once_and_said_to_be() -> None:
    events = recorded(*(("stderr", "x" * 60 + "\n"),) * 200, policy=SandboxPolicy(max_output_bytes=5_000))
    assert [event.limit_bytes for event in events if isinstance(event, OutputTruncated)] == [5_000]
    assert len(words(events, ToolOutput)) <= 5_000


@pytest.mark.parametrize(
    ("command", "policy", "granted"),
    [
        ("ls", SandboxPolicy(), True),
        ("rm -rf .", SandboxPolicy(), False),
        ("ls", SandboxPolicy(shell_enabled=False), False),
        ("ls", SandboxPolicy(require_approval_for_all_shell=True), False),
    ],
)
def test_a_reviewer_runs_no_command_that_a_person_has_to_see(
    command: str, policy: SandboxPolicy, granted: bool
) -> None:
    service = Service()
    service.start(part("One"))

    class Trusting(RunLog):
        def run(self, root: str) -> CoordinatorRun:
            return msgspec.structs.replace(super().run(root), policy=policy, auto_approve_tools=True)

    recorder = TurnRecorder(Trusting(service.log, service.clock), Alone(), "r", "r", "t", "rehearsal", 0)
    asked = PermissionAsked(
        request_id="q", tool_name="run", tool_input=msgspec.json.encode({"command": command}).decode()
    )
    assert recorder.permission(asked) is granted


def test_the_policy_that_a_run_started_under_is_on_the_log() -> None:
    service = Service()
    service.start(part("One"))
    (started,) = service.told(CoordinatorStarted)
    assert started.policy == service.run.policy == SandboxPolicy()


def cancel(service: Service) -> None:
    """Cancel the run, and drive it to its end."""
    cancel_run("r", "d", by(), service.runs)
    service.drive()


def delete(service: Service) -> None:
    """Delete the run; nobody has erased it yet."""
    delete_run("r", by(), service.runs)


@pytest.mark.parametrize("over", [cancel, delete])
@pytest.mark.parametrize("of_child", [False, True], ids=["coordinator", "child"])
def test_nothing_is_stored_behind_the_end_of_a_run(over: Callable[[Service], None], of_child: bool) -> None:
    service = Service()
    service.start(part("One"))
    while service.shop.decide("r", lambda run: advance(run, service.clock.now(), ())):
        pass
    run_id = service.child(1).run_id if of_child else "r"
    recorder = TurnRecorder(service.runs, Alone(), "r", run_id, "turn", "rehearsal", 0)
    recorder.update(AgentUpdate(kind="usage", input_tokens=1))
    over(service)
    before = service.events
    recorder.update(AgentUpdate(kind="message", text="still here"))
    recorder.update(AgentUpdate(kind="usage", input_tokens=1))
    recorder.close()
    assert service.events == before


def cut_short(recorder: TurnRecorder, *said: str) -> None:
    """Let an agent say this, and die. Raises AgentFailed."""
    with recorder:
        for text in said:
            recorder.update(AgentUpdate(kind="message", text=text))
        raise AgentFailed("agent_exited", "it was killed", retryable=True)


def test_nothing_is_stored_after_the_block_of_a_turn_that_failed() -> None:
    service = Service()
    service.start(part("One"))
    recorder = TurnRecorder(service.runs, Alone(), "r", "r", "turn", "rehearsal", 0, hold_seconds=HELD_SECONDS)
    with pytest.raises(AgentFailed):
        cut_short(recorder, "my password is hun")
    said = [event for event in service.events if event.OUTPUT]
    assert words(said) == "my password is hun"
    recorder.update(AgentUpdate(kind="message", text="ter2"))
    time.sleep(2 * HELD_SECONDS)
    assert [event for event in service.events if event.OUTPUT] == said


def test_a_turns_own_failure_is_told_also_when_its_last_words_cannot_be_stored() -> None:
    service = Service()
    service.start(part("One"))
    recorder = TurnRecorder(service.runs, Alone(), "r", "r", "turn", "rehearsal", 0)
    recorder.failure = LogUnavailable("the connection was lost")
    with pytest.raises(AgentFailed):
        cut_short(recorder)


def test_a_flood_of_calls_without_words_uses_the_budget_up() -> None:
    policy = SandboxPolicy(max_output_bytes=100 * RECORD_BYTES)
    events = recorded(*(("tool_call", ""),) * 300, policy=policy)
    assert len([event for event in events if isinstance(event, ToolCalled)]) <= 100
    assert [event.limit_bytes for event in events if isinstance(event, OutputTruncated)] == [100 * RECORD_BYTES]


@pytest.mark.parametrize(
    ("kind", "costs"), [("tool_call", RECORD_BYTES), ("message", PIECE_BYTES), ("stderr", PIECE_BYTES)]
)
def test_an_agent_that_reports_without_an_end_is_ended_whatever_it_reports(kind: Any, costs: int) -> None:
    service = Service()
    service.start(part("One"))
    recorder = TurnRecorder(service.runs, Alone(), "r", "r", "turn", "rehearsal", 0, most_bytes=100 * (costs + 1))
    with recorder:
        for _ in range(100):
            recorder.update(AgentUpdate(kind=kind, call_id="c", text="."))
        with pytest.raises(AgentFailed) as failed:
            recorder.update(AgentUpdate(kind=kind, call_id="c", text="."))
    assert failed.value.code == "agent_output_limit"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("at /home/jane.doe/work/x.py:3, ", "at ~/work/x.py:3, "),
        ("File '/Users/Jane/x', /home/jane\n", "File '~/x', ~\n"),
        ("/root/.cache and /root\n", "~/.cache and ~\n"),
        ("/var/home/jane/x\n", "~/x\n"),
        ("/srv/home/x /rooted /opt/root/x home/jane \n", None),
    ],
)
def test_the_names_of_homes_in_what_an_agent_says_on_stderr_are_taken_out(text: str, expected: str | None) -> None:
    assert words(recorded(("stderr", text)), ToolOutput) == (text if expected is None else expected)
    assert words(recorded(("message", text))) == text
