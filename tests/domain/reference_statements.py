"""
What the reference says that steering does, statement by statement, and the test that shows it here.

A statement that does not hold here names its reason: the design decided otherwise, or it is about machinery (leases in
rows, stored review records, checkpoints) for which the log has no need.
"""

D = "tests/domain/"
A = "tests/application/"


class Overruled(str):
    """Why a statement does not hold here."""


STATEMENTS: dict[str, dict[str, str | Overruled]] = {
    "decision policy": {
        "advisory and resumable is advisory; counters stay 0": D
        + "test_steering_table.py::test_every_row_of_the_table",
        "advisory with both budgets exhausted is still advisory": (
            D + "test_steering_table.py::test_advice_with_both_budgets_used_up_is_still_advice"
        ),
        "not resumable is dispatch_fresh; one decision event before any reset": (
            D + "test_follow.py::test_a_fresh_dispatch_is_decided_before_anything_is_reset"
        ),
        "blocking and resumable is proceed": D + "test_steering_table.py::test_every_row_of_the_table",
        "plan iterations 6 is proceed; iterations stay 6": (
            D + "test_steering_table.py::test_a_plan_that_used_its_six_iterations_goes_to_a_person_and_stays_at_six"
        ),
        "a stale tree hash is proceed": D + "test_steering_table.py::test_every_row_of_the_table",
        "one of two targets at cap 3 is proceed for both, neither incremented": (
            D + "test_steering_table.py::test_one_target_at_its_cap_sends_all_of_them_to_a_person_and_charges_none"
        ),
        "two deciders racing for the last iteration: one A/B, the other proceed": (
            D
            + "test_steering_table.py::test_the_last_iteration_is_given_to_one_of_two_signals_and_the_other_goes_to_a_person"
        ),
        "no work plan is proceed with an explanatory rationale": (
            D + "test_steering_table.py::test_without_a_plan_a_person_decides_and_is_told_why"
        ),
        "identical inputs of any source give the same decision; one received, one decision; plan +1": (
            D + "test_steering_table.py::test_whoever_asks_the_same_gets_the_same_decision"
        ),
    },
    "signals": {
        "unknown source or severity is rejected, nothing stored": Overruled(
            "A signal is made by the product's own code with closed types; no door takes a source or a severity."
        ),
        "feedback text naming a file changes no scope": (
            D + "test_scope_and_authors.py::test_feedback_that_names_a_file_changes_no_scope"
        ),
    },
    "resumability": {
        "pods released and target ready is not resumable": Overruled(
            "There are no pods: what decides is whether the child's agent can load its session."
        ),
        "in-process and assemble_ready is resumable": D + "test_steering_table.py::test_every_row_of_the_table",
        "no session, or no way to load one, is not resumable": (
            D + "test_steering_table.py::test_a_child_without_a_session_or_with_a_failed_run_cannot_go_on_in_place"
        ),
        "no child id is not resumable": (
            D + "test_steering_table.py::test_a_child_that_was_never_started_cannot_go_on_in_place"
        ),
    },
    "in-place proof": {
        "a second claim does not own the attempt": (
            A + "test_driver.py::test_a_run_is_driven_to_its_gate_and_each_effect_carried_out_once"
        ),
        "initiated only is driven again": (
            D + "test_follow.py::test_an_initiated_target_is_asked_with_the_same_turn_after_a_crash"
        ),
        "confirmed advances, nothing is injected again": (
            D + "test_follow.py::test_a_confirmed_target_is_not_asked_again_after_a_crash"
        ),
        "older progress of the same session never confirms a new attempt": (
            D + "test_follow.py::test_a_child_that_has_worked_before_proves_nothing_about_a_new_attempt"
        ),
        "crash after initiated, before progress: relaunched once": (
            A
            + "test_work_on_subtask.py::test_a_turn_that_is_found_in_the_agents_history_is_continued_and_not_asked_again"
        ),
        "confirmed but still running is not applied yet": (
            D + "test_follow.py::test_a_directive_is_not_applied_while_a_confirmed_target_still_works"
        ),
        "three executions, then needs_attention and assembly_blocked steering_execution_exhausted": (
            A
            + "test_work_on_subtask.py::test_an_agent_that_fails_before_its_first_sign_is_asked_again_and_the_third_time_left_to_a_person"
        ),
    },
    "crash recovery of directives": {
        "A with targets [ready, failed]: cause event, then dispatch_fresh of the failed one only, applied": (
            D + "test_follow.py::test_a_target_that_fails_starts_afresh_visibly_and_the_healthy_one_is_kept"
        ),
        "A with both ready and no markers: not applied, driven again": (
            D + "test_follow.py::test_finished_targets_without_a_confirmation_are_driven_again"
        ),
        "C with the review open already: applied once, no second review event": (
            D + "test_follow.py::test_an_exhausted_budget_opens_the_gate_once_and_shows_all_that_was_said"
        ),
        "plan in_review but review record missing": Overruled("The gate is one fact: plan and record cannot differ."),
        "B with one target stamped and one single-eligible: the stamped one keeps its rotated author": Overruled(
            "Authors are chosen for all targets of a directive in one append, so no target is ever stamped alone."
        ),
        "B without target ids is escalated": D
        + "test_races.py::test_a_signal_about_nothing_of_the_plan_ends_at_the_gate",
        "stale assembly_steering lease": Overruled(
            "A run is driven by whoever holds its lease; a status is no lease (design, section 4)."
        ),
        "nothing is left in assembly_steering without a next step": (
            D
            + "test_races.py::test_a_blocking_signal_before_anything_is_assembled_does_not_leave_the_plan_without_a_next_step"
        ),
        "a gate's directive is never given to a child before it is decided; a broadcast is delivered": (
            D + "test_doors.py::test_a_broadcast_is_for_everybody_at_work_at_its_receipt_and_applied_when_each_has_it"
        ),
        "every crash between two facts ends the same": (
            A + "test_faults.py::test_a_fault_at_any_append_changes_nothing_about_the_end"
        ),
    },
    "lockout": {
        "prior child exists: one hand-over, new run id, prior branch, all rounds, prior pointer kept": (
            D + "test_follow.py::test_rejected_work_goes_to_another_author_who_fits_with_the_branch_and_every_word"
        ),
        "a run's model pin survives rotation": (
            D + "test_follow.py::test_a_pinned_model_wins_over_the_new_authors_own"
        ),
        "single eligible author with context: same author, no lockout, single_eligible_agent, no human gate": (
            D + "test_follow.py::test_a_single_eligible_author_goes_on_with_the_feedback_and_nobody_is_locked_out"
        ),
        "rounds 1-3 dispatch, round 4 is the human gate, never assembly_blocked": (
            D + "test_follow.py::test_four_rejections_of_a_single_author_are_three_dispatches_and_then_a_person"
        ),
        "resumable rejection: same author, no lockout, no hand-over": (
            D + "test_follow.py::test_a_revision_keeps_session_worktree_author_and_branch"
        ),
        "only the target subtask is rotated": (D + "test_follow.py::test_only_the_rejected_subtask_changes_its_author"),
        "prior worktree present: reused and re-branded (reused_prior)": Overruled(
            "Every child has a worktree of its own; a hand-over goes on from the prior branch's commit (design, section 6)."
        ),
    },
    "escalation and human authority": {
        "plan exhausted and rubberduck request-changes: in_review, escalated with a budget reason, applied": (
            D + "test_follow.py::test_an_exhausted_budget_opens_the_gate_once_and_shows_all_that_was_said"
        ),
        "then decline: assembly_declined, run declined": (
            D + "test_follow.py::test_an_exhausted_budget_opens_the_gate_once_and_shows_all_that_was_said"
        ),
        "human request-changes: counters reset then one steer, round trips 1, a visible reset event": (
            D + "test_follow.py::test_a_persons_request_starts_the_budgets_anew_and_a_gates_does_not"
        ),
        "rubberduck request-changes never resets counters": (
            D + "test_follow.py::test_a_persons_request_starts_the_budgets_anew_and_a_gates_does_not"
        ),
        "RAI RED: in_review and awaiting_review, not rai_blocked": (
            D + "test_gates.py::test_a_red_verdict_asks_a_person_and_shows_why"
        ),
        "no cap on human round trips": D + "test_follow.py::test_people_may_ask_for_changes_as_often_as_they_like",
    },
    "/steer validation and delivery": {
        "pause, unknown or empty verb: 400, nothing stored": Overruled(
            "Told over HTTP: the command's type has no such verb."
        ),
        "redirect or amend with a blank instruction: 400": (
            D + "test_doors.py::test_a_blank_redirect_or_amend_is_refused"
        ),
        "send with an empty instruction: accepted": D + "test_doors.py::test_an_empty_message_is_accepted",
        "non-owner 403, unknown run 404, malformed id 400": Overruled("Told over HTTP, where callers are known."),
        "target_child_run_id is echoed back": D + "test_doors.py::test_a_receipt_names_what_was_asked_by_digest",
        "stop of a target: one cancelled run, applied, nothing queued": (
            D + "test_workers.py::test_a_stop_of_one_child_ends_that_one_only"
        ),
        "broadcast stop: every child failed, coordinator failed steering_stop": (
            D + "test_workers.py::test_a_stop_of_the_run_ends_every_child_and_the_run"
        ),
        "targeted send is never delivered to a sibling and changes no subtask": (
            D + "test_doors.py::test_a_message_for_one_child_is_never_given_to_another_and_moves_no_subtask"
        ),
        "queued directives are delivered once, FIFO": (
            D + "test_doors.py::test_twenty_guidances_are_delivered_once_each_in_the_order_of_their_receipt"
        ),
        "targeted redirect ends the running child's run with run.cancelled": Overruled(
            "A redirect ends the turn, never the run (design, section 2.8): "
            "test_doors.py::test_an_amend_leaves_the_running_turn_alone_and_a_redirect_ends_it."
        ),
        "amend leaves the running child alone": (
            D + "test_doors.py::test_an_amend_leaves_the_running_turn_alone_and_a_redirect_ends_it"
        ),
    },
    "parked coordinators": {
        "failed and ready mix: only failed reset": (
            D + "test_follow.py::test_a_redirect_of_a_blocked_run_starts_only_what_failed_afresh"
        ),
        "all ready, reason build_test_infra: nothing reset, assembly armed again": (
            D
            + "test_gates.py::test_a_gate_that_cannot_do_its_work_parks_the_run_and_a_redirect_resets_nothing_and_assembles_again"
        ),
        "all ready, conflict reason: ready ones reset": D
        + "test_races.py::test_a_merge_that_failed_can_be_steered_again",
        "every affected at cap 3: 409, nothing changes": Overruled(
            "The cap bounds what is tried without a person. A person's redirect begins a new count, as at the gate: "
            "test_a_redirect_of_a_parked_run_begins_a_new_count_of_what_is_tried."
        ),
        "orphaned loop: dispatch armed again, directive queued": Overruled(
            "No loop can be lost: a run is driven from its log, so the directive is simply outstanding."
        ),
        "amend with only failed subtasks: queued, nothing reset": Overruled(
            "Nobody would ever hear it, and every accepted directive must end (design, section 2.6): it is refused. "
            "test_follow.py::test_an_amend_of_a_blocked_run_restarts_nothing_that_only_failed."
        ),
        "send: acknowledged, no retry": (
            D + "test_follow.py::test_a_message_to_a_blocked_run_is_taken_note_of_and_restarts_nothing"
        ),
    },
    "review gate steering": {
        "redirect and amend are a request for changes": (
            D + "test_doors.py::test_every_verb_of_the_coordinators_door_in_every_situation"
        ),
        "they settle relayed": Overruled("`relayed` is not terminal; the directive itself is decided (design, 2.6)."),
        "send: applied, gate armed, run still awaiting_review": (
            D + "test_doors.py::test_a_message_at_the_gate_is_advice_and_leaves_the_gate_armed"
        ),
        "gate on another replica: deferred, 202, applied once": Overruled(
            "There is no second record of decisions; 202 is an answer of the HTTP door (design, section 2.6)."
        ),
        "with a target: that subtask and co-touching ones": (
            D + "test_doors.py::test_a_redirect_at_the_gate_is_a_request_for_changes_of_what_its_target_touched"
        ),
        "without: all contributors and a fallback event": (
            D + "test_doors.py::test_a_redirect_at_the_gate_without_a_target_is_about_every_contributor_and_says_so"
        ),
        "a gate already decided: the loser is told": (
            D + "test_races.py::test_a_redirect_that_loses_to_an_approval_is_told_so_and_one_that_wins_takes_the_gate"
        ),
    },
}
