"""Fill a workplace with the files of its base. What git says about it is not believed: every file is looked for."""

from __future__ import annotations

from .shell import Failed, Git, answer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SETTINGS = {"checkout.workers": "0", "core.fsync": "none", "core.quotePath": "false"}


def run(request: Any) -> None:
    """On return every file of the base is there."""
    places = {"GIT_DIR": f"{request['workplace']}/.git", "GIT_WORK_TREE": request["workplace"]}
    git = Git(request["git"], {**request["nothing_runs"], **SETTINGS}, **places)
    git.output("read-tree", "-m", "-u", f"{request['base']}^{{tree}}")
    absent = git.records("diff-files", "--name-only", "-z", "--diff-filter=D", "--ignore-submodules=all")
    if absent:
        names = ", ".join(repr(name.decode(errors="backslashreplace")) for name in absent[:10])
        raise Failed("files_missing", f"{len(absent)} files of {request['base']} are not there: {names}")
    answer({"absent": 0})
