"""A project's webhooks: added up to a bound, disabled with a reason, enabled again from where they stopped or from now on."""

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from steersman.domain.event import Draft, Fact, Text
from steersman.domain.projects import webhooks
from steersman.domain.projects.project import CreateProject, Project, ProjectDeleting, create_project, evolve
from steersman.domain.projects.project_changes import start_deletion

AT = datetime(2026, 6, 7, 21, 9, 45, tzinfo=UTC)


def after(project: Project, drafts: Sequence[Draft]) -> Project:
    """Return the project after what was decided."""
    for draft in drafts:
        version = project.version + 1
        project = evolve(
            project,
            Fact(
                position=100 + version,
                stream=draft.stream,
                version=version,
                topic=draft.event.TOPIC,
                run=None,
                run_sequence=None,
                root=None,
                root_sequence=None,
                at=AT,
                principal="alice",
                command_id="c",
                traceparent=None,
                event=draft.event,
            ),
        )
    return project


@pytest.fixture
def project() -> Project:
    """A project with one webhook."""
    created = create_project(
        CreateProject(
            project_id="p",
            name="Shop",
            origin="blank",
            working_directory="/srv/shop",
            default_branch="main",
            owner="alice",
        )
    )
    found = after(Project(), [created])
    return after(found, webhooks.add_webhook(found, "w", "https://a", ["run.ended"]))


def test_a_webhook_is_told_from_its_own_fact_on(project: Project) -> None:
    webhook = webhooks.webhook_of(project, "w")
    assert (webhook.enabled, webhook.enabled_position, webhook.position, webhook.skip) == (True, 102, 102, True)
    assert (webhook.receiver, webhook.kinds, webhook.project_id) == ("https://a", ("run.ended",), "p")


def test_one_that_is_disabled_says_why_and_is_enabled_from_where_it_stopped_or_from_now_on(project: Project) -> None:
    assert webhooks.enable_webhook(project, "w", skip=True) == ()
    off = after(project, webhooks.disable_webhook(project, "w", "gave_up", "status_503"))
    webhook = webhooks.webhook_of(off, "w")
    assert (webhook.enabled, webhook.disabled_reason, webhook.failure) == (False, "gave_up", "status_503")
    assert webhook.disabled_at == AT.isoformat()
    assert webhooks.disable_webhook(off, "w", "requested") == ()
    with pytest.raises(webhooks.WebhookIsDisabled):
        webhooks.send_test(off, "w")
    for skip in (False, True):
        webhook = webhooks.webhook_of(after(off, webhooks.enable_webhook(off, "w", skip=skip)), "w")
        assert (webhook.enabled, webhook.enabled_position, webhook.skip) == (True, 104, skip)
        assert (webhook.disabled_at, webhook.disabled_reason, webhook.failure) == (None, None, None)


def test_a_test_and_another_secret_change_nothing_but_are_facts(project: Project) -> None:
    for drafts in (webhooks.send_test(project, "w"), webhooks.replace_webhook_secret(project, "w")):
        assert len(drafts) == 1
        assert after(project, drafts).webhooks == project.webhooks


def test_one_that_is_removed_is_gone_and_what_is_said_of_it_afterwards_says_nothing(project: Project) -> None:
    late = webhooks.disable_webhook(project, "w", "gone")
    gone = after(project, webhooks.remove_webhook(project, "w"))
    assert gone.webhooks == {}
    assert after(gone, late).webhooks == {}
    for decide in (
        lambda: webhooks.enable_webhook(gone, "w", skip=False),
        lambda: webhooks.disable_webhook(gone, "w", "gone"),
        lambda: webhooks.replace_webhook_secret(gone, "w"),
        lambda: webhooks.send_test(gone, "w"),
        lambda: webhooks.remove_webhook(gone, "w"),
    ):
        with pytest.raises(webhooks.WebhookNotFound):
            decide()


def test_there_are_no_more_than_a_bound_and_none_in_a_project_that_is_being_deleted(project: Project) -> None:
    full = project
    for number in range(webhooks.MAX_WEBHOOKS - 1):
        full = after(full, webhooks.add_webhook(full, f"w{number}", "https://a", ()))
    with pytest.raises(webhooks.TooManyWebhooks):
        webhooks.add_webhook(full, "more", "https://a", ())
    deleting = after(project, start_deletion(project))
    with pytest.raises(ProjectDeleting):
        webhooks.add_webhook(deleting, "more", "https://a", ())
    (added,) = webhooks.add_webhook(project, "more", "https://a", ())
    assert getattr(added.event, "receiver") == Text("https://a")  # noqa: B009
