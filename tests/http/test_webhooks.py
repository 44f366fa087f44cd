"""A webhook is told what begins and ceases to wait and what ends: signed, in order, at least once, until it says 410."""

import base64
import hashlib
import hmac
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from jsonschema_rs import validator_for

from steersman.adapters.outgoing.post import GuardedPost
from steersman.application.notifying.notify import Notifier
from steersman.application.notifying.retries import SCHEDULE_SECONDS
from steersman.application.ports.notices import COMMAND_ID, Attempt
from steersman.domain.runs import review
from steersman.http.request.given import Services
from steersman.tests.http.conftest import LOOPBACK
from steersman.tests.http.receiver import LocalReceiver, Sent, receiving
from steersman.tests.http.test_approvals import ask, begin_turn

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
BEGAN, ENDED, RUN_ENDED = (f"io.steersman.{kind}" for kind in ("waiting.began", "waiting.ended", "run.ended"))


class LateClock:
    """The time, as late as the test wants it to be."""

    def __init__(self) -> None:
        self.late = timedelta()

    def now(self) -> datetime:
        """Return the present moment."""
        return datetime.now(UTC) + self.late


class Hooked:
    """A story whose project has a webhook, and whoever sends to it, step by step."""

    def __init__(self, story: Any, services: Services, local: LocalReceiver) -> None:
        self.story = story
        self.local = local
        self.clock = LateClock()
        self.services = services
        self.notifier = self.sender()
        self.hook: Any = None

    def sender(self) -> Notifier:
        """Somebody who sends, as after a restart."""
        services = self.services
        post = GuardedPost(LOOPBACK)
        return Notifier(services.log, services.views, services.receivers, post, self.clock, lambda: 0.0, alone=False)

    def path(self, more: str = "") -> str:
        """Where the webhook is."""
        return f"/api/projects/{self.story.project_id}/webhooks/{self.hook['webhook_id']}{more}"

    def add(self, **body: Any) -> Any:
        """Add the webhook."""
        asked = {"url": f"{self.local.url}/in?key=k", "secret": SECRET, **body}
        path = f"/api/projects/{self.story.project_id}/webhooks"
        self.hook = self.story.client.post(path, json=asked).raise_for_status().json()
        return self.hook

    def settle(self) -> None:
        """Send what is to be told now."""
        head = self.services.log.head()
        for view in ("notices", "webhooks"):
            assert self.services.views.wait(view, head, 60)
        for receiver, webhook in self.notifier.due():
            self.notifier.deliver(receiver.id, webhook)

    def told(self) -> list[Any]:
        """Send what is to be told now, and return everything that this webhook was ever sent."""
        self.settle()
        return [one.event for one in self.local.sent if one.event["data"]["project_id"] == self.story.project_id]

    def shown(self) -> Any:
        """The webhook as the API shows it."""
        return self.story.client.get(self.path()).raise_for_status().json()

    def post(self, more: str, body: Any = None) -> Any:
        """Ask for something."""
        return self.story.client.post(self.path(more), json=body)


@pytest.fixture
def local() -> Iterator[LocalReceiver]:
    """A receiver."""
    with receiving() as local:
        yield local


@pytest.fixture
def hooked(story: Any, services: Services, local: LocalReceiver) -> Hooked:
    """A run whose first child is in a turn, and a webhook that hears of it from here on."""
    story.start()
    story.advance()
    begin_turn(story, 1)
    hooked = Hooked(story, services, local)
    hooked.add()
    return hooked


def signature(sent: Sent, secret: str = SECRET) -> str:
    """Return the signature that a request has to have."""
    signed = f"{sent.headers['webhook-id']}.{sent.headers['webhook-timestamp']}.".encode() + sent.body
    key = base64.b64decode(secret.removeprefix("whsec_"))
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def test_what_begins_and_ceases_to_wait_and_what_ends_is_told_in_order_signed_and_without_words(hooked: Hooked) -> None:
    story = hooked.story
    question = ask(story, "Which colour?")
    hooked.settle()
    story.client.post(f"/api/runs/{story.run_id}/questions/{question}/answer", json={"answer": "Blue."})
    story.client.post(f"/api/runs/{story.run_id}/cancel").raise_for_status()
    story.advance()
    events = hooked.told()
    assert [event["type"] for event in events][:2] == [BEGAN, ENDED]
    began = events[0]
    assert began["data"]["item_kind"] == "question"
    assert began["data"]["item_id"] == question
    assert began["data"]["run_id"] == began["subject"] == story.run_id
    assert began["data"]["child_run_id"] == story.child(1)
    assert began["data"]["links"]["waiting"] == f"/api/waiting?run_id={story.run_id}"
    described = story.api.anonymous().get("/schema").json()
    notice = described["webhooks"]["notice"]["post"]
    validator = validator_for(
        {
            **notice["requestBody"]["content"]["application/cloudevents+json"]["schema"],
            "components": described["components"],
        }
    )
    for sent in hooked.local.sent:
        validator.validate(sent.event)
        assert {parameter["name"] for parameter in notice["parameters"]} <= sent.headers.keys()
        assert sent.path == "/in?key=k"
        assert sent.headers["content-type"] == "application/cloudevents+json"
        assert sent.headers["webhook-id"] == sent.event["id"]
        assert sent.headers["webhook-signature"] == signature(sent)
        assert b"colour" not in sent.body
    assert len({event["id"] for event in events}) == len(events)
    assert [event["sequence"] for event in events] == sorted(event["sequence"] for event in events)


def test_the_end_of_a_run_is_told_with_its_status(story: Any, services: Services, local: LocalReceiver) -> None:
    story.to_gate()
    hooked = Hooked(story, services, local)
    hooked.add(kinds=["run.ended"])
    story.client.post(f"/api/runs/{story.run_id}/assembly/review", json={"approved": False}).raise_for_status()
    story.advance()
    (event,) = hooked.told()
    assert (event["type"], event["data"]["status"], event["subject"]) == (RUN_ENDED, "declined", story.run_id)


def test_nothing_is_lost_or_skipped_while_the_receiver_is_down_and_whoever_sends_is_killed(hooked: Hooked) -> None:
    hooked.local.answers = [(500, {}), (500, {})]
    asked = [ask(hooked.story, f"Question {number}?") for number in range(3)]
    hooked.settle()
    assert len(hooked.local.sent) == 1, "the next one waits for its turn"
    assert (hooked.shown()["state"], hooked.shown()["last_outcome"]) == ("failing", "status_500")
    hooked.settle()
    assert len(hooked.local.sent) == 1, "it is not tried again at once"
    hooked.notifier = hooked.sender()
    for wait in SCHEDULE_SECONDS[:2]:
        # Who died holds the receiver for a while.
        hooked.clock.late += timedelta(seconds=wait + 120)
        hooked.settle()
    assert [one.event["data"]["item_id"] for one in hooked.local.sent] == [asked[0], asked[0], *asked]
    assert len({one.headers["webhook-id"] for one in hooked.local.sent[:3]}) == 1
    assert (hooked.shown()["state"], hooked.shown()["failures"]) == ("active", 0)


def test_only_one_of_several_sends(hooked: Hooked) -> None:
    ask(hooked.story, "Which colour?")
    first, second = hooked.sender(), hooked.sender()
    hooked.notifier = first
    hooked.local.answers = [(500, {})]
    hooked.settle()
    hooked.clock.late += timedelta(seconds=10)
    hooked.notifier = second
    hooked.settle()
    assert len(hooked.local.sent) == 1, "the first one holds it"
    first.stop()
    hooked.settle()
    assert len(hooked.local.sent) == 2


def test_a_receiver_that_is_gone_is_told_nothing_more_until_it_is_enabled_and_then_everything(hooked: Hooked) -> None:
    hooked.local.answers = [(410, {})]
    first = ask(hooked.story, "Which colour?")
    hooked.settle()
    shown = hooked.shown()
    assert (shown["state"], shown["disabled_reason"], shown["last_outcome"]) == ("disabled", "gone", "status_410")
    assert shown["disabled_at"]
    second = ask(hooked.story, "Which size?")
    hooked.clock.late += timedelta(days=2)
    hooked.settle()
    assert len(hooked.local.sent) == 1
    assert hooked.post("/test").json()["error"] == "webhook_disabled"
    assert hooked.post("/enable", {}).raise_for_status().json()["state"] == "active"
    assert [event["data"]["item_id"] for event in hooked.told()[1:]] == [first, second]


def test_what_was_missed_can_be_left_out(hooked: Hooked) -> None:
    hooked.post("/disable").raise_for_status()
    ask(hooked.story, "Which colour?")
    hooked.settle()
    hooked.post("/enable", {"skip": True}).raise_for_status()
    later = ask(hooked.story, "Which size?")
    assert [event["data"]["item_id"] for event in hooked.told()] == [later]


def test_a_receiver_that_nothing_reaches_for_days_is_given_up_visibly(hooked: Hooked) -> None:
    hooked.local.answers = [(503, {})] * 20
    ask(hooked.story, "Which colour?")
    hooked.settle()
    for wait in SCHEDULE_SECONDS:
        assert hooked.shown()["state"] == "failing"
        hooked.clock.late += timedelta(seconds=wait + 1)
        hooked.settle()
    shown = hooked.shown()
    assert (shown["state"], shown["disabled_reason"], shown["last_outcome"]) == ("disabled", "gave_up", "status_503")
    assert len(hooked.local.sent) == len(SCHEDULE_SECONDS) + 1
    hooked.clock.late += timedelta(days=3)
    hooked.settle()
    assert len(hooked.local.sent) == len(SCHEDULE_SECONDS) + 1
    hooked.local.answers = []
    hooked.post("/enable", {}).raise_for_status()
    hooked.settle()
    assert (hooked.shown()["state"], hooked.shown()["last_outcome"]) == ("active", "delivered")


def test_a_receiver_is_left_alone_for_as_long_as_it_asks(hooked: Hooked) -> None:
    hooked.local.answers = [(429, {"Retry-After": "3600"})]
    ask(hooked.story, "Which colour?")
    for later, count in ((0, 1), (1800, 1), (3000, 2)):
        hooked.clock.late += timedelta(seconds=later)
        hooked.settle()
        assert len(hooked.local.sent) == count


def test_no_redirect_is_followed(hooked: Hooked) -> None:
    with receiving() as elsewhere:
        hooked.local.answers = [(307, {"Location": f"{elsewhere.url}/"})]
        ask(hooked.story, "Which colour?")
        hooked.settle()
        assert hooked.shown()["last_outcome"] == "status_307"
        assert elsewhere.sent == []


def test_a_secret_that_is_replaced_signs_for_a_day_beside_the_new_one(hooked: Hooked) -> None:
    fresh = hooked.post("/secret").raise_for_status().json()["secret"]
    assert fresh != SECRET
    hooked.post("/test").raise_for_status()
    hooked.settle()
    sent = hooked.local.sent[-1]
    assert sent.event["type"] == "io.steersman.webhook.test"
    assert sent.headers["webhook-signature"].split() == [signature(sent, fresh), signature(sent)]
    hooked.clock.late += timedelta(days=2)
    hooked.post("/test").raise_for_status()
    hooked.settle()
    sent = hooked.local.sent[-1]
    assert sent.headers["webhook-signature"].split() == [signature(sent, fresh)]


def test_a_webhook_is_added_once_and_shows_neither_its_secret_nor_its_path_again(
    story: Any, local: LocalReceiver
) -> None:
    project_id = story.project()
    path = f"/api/projects/{project_id}/webhooks"
    asked = {"url": f"{local.url}/in?key=k"}
    answers = [story.client.post(path, json=asked, headers={"Idempotency-Key": "k"}) for _ in range(2)]
    assert [one.status_code for one in answers] == [201, 201]
    assert answers[0].json() == answers[1].json()
    assert answers[1].headers["idempotent-replayed"] == "true"
    made = answers[0].json()
    assert made["secret"].startswith("whsec_")
    assert made["receiver"] == local.url
    assert story.client.get(answers[0].headers["location"]).json() == {k: v for k, v in made.items() if k != "secret"}
    (listed,) = story.client.get(path).json()
    assert listed["webhook_id"] == made["webhook_id"]
    stored = str([fact.event for fact in story.api.services.log.read_stream(f"project/{project_id}", 0, 100)])
    assert "key=k" not in stored
    assert made["secret"] not in stored
    assert story.client.delete(f"{path}/{made['webhook_id']}").status_code == 204
    assert story.client.get(path).json() == []
    assert story.api.services.receivers.get(made["webhook_id"]) is None


@pytest.mark.parametrize(
    "address",
    [
        "ftp://example.org/",
        "https://",
        "https://user:word@example.org/",
        "https://example.org/#part",
        "http://10.1.2.3/",
        "https://192.168.0.1/",
        "https://169.254.169.254/latest/meta-data",
        "https://[::1]/",
        "https://[::ffff:10.0.0.1]/",
        "https://example.org:0/",
        "https://exämple.org/",
    ],
)
def test_an_address_to_which_nothing_may_be_sent_is_refused(story: Any, address: str) -> None:
    answer = story.client.post(f"/api/projects/{story.project()}/webhooks", json={"url": address})
    assert (answer.status_code, answer.json()["error"]) == (400, "webhook_address_invalid")


@pytest.mark.parametrize("secret", ["word", "whsec_", "whsec_AAAA", "whsec_ü", "whsec_" + "A" * 92])
def test_a_secret_that_is_none_is_refused(story: Any, local: LocalReceiver, secret: str) -> None:
    body = {"url": local.url, "secret": secret}
    answer = story.client.post(f"/api/projects/{story.project()}/webhooks", json=body)
    assert (answer.status_code, answer.json()["error"]) == (400, "webhook_secret_invalid")


def test_only_an_owner_with_an_operators_token_changes_webhooks_and_a_viewer_sees_them(hooked: Hooked) -> None:
    api, story = hooked.story.api, hooked.story
    path = f"/api/projects/{story.project_id}/webhooks"
    body = {"url": hooked.local.url}
    other, looking = api.client("bob"), api.client("alice", "viewer")
    assert other.post(path, json=body).status_code == 404
    assert other.get(hooked.path()).status_code == 404
    assert api.anonymous().get(path).status_code == 401
    role = f"/api/projects/{story.project_id}/members/{api.name('bob')}"
    story.client.put(role, json={"role": "contributor"}).raise_for_status()
    for client in (other, looking):
        for more in ("/enable", "/disable", "/test", "/secret"):
            answer = client.post(hooked.path(more), json={} if more == "/enable" else None)
            assert answer.status_code == 403, more
        assert client.post(path, json=body).status_code == 403
        assert client.delete(hooked.path()).status_code == 403
        assert client.get(hooked.path()).status_code == 200


def test_a_webhook_that_is_not_there_is_404(hooked: Hooked) -> None:
    hooked.hook["webhook_id"] = "nothing"
    for more in ("/enable", "/disable", "/test", "/secret"):
        assert hooked.post(more, {} if more == "/enable" else None).status_code == 404, more
    assert hooked.story.client.get(hooked.path()).json()["error"] == "webhook_not_found"
    assert hooked.story.client.delete(hooked.path()).status_code == 404


def test_a_project_has_a_bounded_number_of_webhooks(story: Any, local: LocalReceiver) -> None:
    path = f"/api/projects/{story.project()}/webhooks"
    answers = [story.client.post(path, json={"url": local.url}).status_code for _ in range(21)]
    assert answers == [201] * 20 + [409]


def test_a_project_that_is_deleted_tells_nobody(hooked: Hooked) -> None:
    hooked.story.client.delete(f"/api/projects/{hooked.story.project_id}?confirm=true").raise_for_status()
    sent = len(hooked.local.sent)
    hooked.settle()
    hooked.clock.late += timedelta(hours=2)
    hooked.settle()
    assert len(hooked.local.sent) == sent


class Command:
    """The command of an installation, which ends as it is told to."""

    def __init__(self, *ends: Attempt) -> None:
        self.ends = list(ends)
        self.heard: list[Any] = []

    def tell(self, body: bytes) -> Attempt:
        """Hear of an event."""
        self.heard.append(msgspec.json.decode(body))
        return self.ends.pop(0) if self.ends else Attempt(state="delivered", word="delivered")

    def close(self) -> None:
        """Nothing runs."""


def test_a_command_is_told_of_every_project_and_tried_again_for_as_long_as_it_takes(
    hooked: Hooked, services: Services
) -> None:
    failed = Attempt(state="failed", word="exit_1")
    command = Command(*[failed] * (len(SCHEDULE_SECONDS) + 3))
    hooked.notifier = Notifier(
        services.log,
        services.views,
        services.receivers,
        GuardedPost(LOOPBACK),
        hooked.clock,
        lambda: 0.0,
        tell=command,
        alone=False,
    )
    hooked.notifier.begin()
    try:
        first, second = ask(hooked.story, "Which colour?"), ask(hooked.story, "Which size?")
        for failures in range(1, len(SCHEDULE_SECONDS) + 4):
            hooked.settle()
            assert f"steersman_notify_command_failures {failures}.0" in measured(hooked)
            # Never longer than five minutes apart.
            hooked.clock.late += timedelta(seconds=301)
        hooked.settle()
        assert {event["data"]["item_id"] for event in command.heard[:-1]} == {first}
        assert [event["data"]["item_id"] for event in command.heard[-2:]] == [first, second]
        assert "steersman_notify_command_failures 0.0" in measured(hooked)
        # A test of a webhook is nothing to it.
        hooked.post("/test").raise_for_status()
        heard = len(command.heard)
        hooked.settle()
        assert len(command.heard) == heard
        assert hooked.local.sent[-1].event["type"] == "io.steersman.webhook.test"
    finally:
        services.receivers.remove(COMMAND_ID)


def measured(hooked: Hooked) -> str:
    """What the metrics say."""
    return hooked.story.api.anonymous().get("/metrics").raise_for_status().text


def states(hooked: Hooked) -> dict[str, float]:
    """How many webhooks are in which state."""
    found = re.findall(r'^steersman_webhooks\{state="(\w+)"\} (\S+)$', measured(hooked), re.MULTILINE)
    return {state: float(count) for state, count in found}


def test_webhooks_are_counted_by_their_state(hooked: Hooked) -> None:
    hooked.settle()
    before = states(hooked)
    hooked.local.answers = [(500, {}), (410, {})]
    ask(hooked.story, "Which colour?")
    hooked.settle()
    then = states(hooked)
    assert (then["active"], then["failing"]) == (before["active"] - 1, before["failing"] + 1)
    hooked.clock.late += timedelta(seconds=10)
    hooked.settle()
    assert hooked.services.views.wait("webhooks", hooked.services.log.head(), 60)
    then = states(hooked)
    assert (then["failing"], then["disabled"]) == (before["failing"], before["disabled"] + 1)


def test_nobody_is_told_of_a_run_that_is_deleted(hooked: Hooked) -> None:
    ask(hooked.story, "Which colour?")
    hooked.local.answers = [(500, {})]
    hooked.settle()
    hooked.story.decide(lambda run: review.fail_run(run, error_code="x", message="", retryable=True))
    hooked.story.client.delete(f"/api/runs/{hooked.story.run_id}").raise_for_status()
    hooked.clock.late += timedelta(seconds=10)
    hooked.settle()
    assert len(hooked.local.sent) == 1
    assert hooked.shown()["state"] == "failing"
