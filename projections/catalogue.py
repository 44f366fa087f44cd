"""Every view that is kept up to date."""

from typing import Any

from . import (
    children_view,
    held_runs,
    notices,
    open_runs,
    outstanding_directives,
    project_view,
    run_detail,
    run_list,
    token_usage,
    waiting,
    webhooks,
    work_plan_view,
)
from .view import View

VIEWS: tuple[View[Any], ...] = (
    run_detail.VIEW,
    run_list.VIEW,
    work_plan_view.VIEW,
    children_view.VIEW,
    project_view.VIEW,
    project_view.ROLES_VIEW,
    open_runs.VIEW,
    token_usage.VIEW,
    outstanding_directives.VIEW,
    held_runs.VIEW,
    waiting.VIEW,
    notices.VIEW,
    webhooks.VIEW,
)
