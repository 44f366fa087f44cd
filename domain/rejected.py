"""The ways a command is refused. A class's docstring is the message that the caller reads."""

from typing import ClassVar


class Rejected(Exception):
    """The command is not possible now."""

    #: The wire word: the problem's `error` member.
    code: ClassVar[str] = "rejected"
    #: The HTTP status that this refusal answers with.
    status: ClassVar[int] = 409
    #: Whether the same command may succeed later, unchanged.
    retryable: ClassVar[bool] = False

    def __init__(self, message: str | None = None, **details: object) -> None:
        super().__init__(message or self.__doc__)
        #: Further members of the problem that is answered, e.g. `expected` and `actual`.
        self.details = details


class Invalid(Rejected):
    """The request is not valid."""

    code = "invalid"
    status = 400


class NotFound(Rejected):
    """There is no such thing, or it is not yours to see."""

    code = "not_found"
    status = 404


class Forbidden(Rejected):
    """You may see this, and you may not change it."""

    code = "forbidden"
    status = 403


class RunNotFound(NotFound):
    """There is no such run, or it is not yours to see."""

    code = "run_not_found"


class ProjectNotFound(NotFound):
    """There is no such project, or it is not yours to see."""

    code = "project_not_found"


class RunNotActive(Rejected):
    """The run has ended, so it takes no more commands."""

    code = "run_not_active"


class Busy(Rejected):
    """Others kept changing what this command decides on; nothing was stored. Send it again."""

    code = "busy"
    status = 503
    retryable = True
