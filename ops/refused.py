"""The one way in which a command says that it could not do what it was asked for."""

import click


class Refused(click.ClickException):
    """The command was refused, or what it needs is not to be reached. Its message is shown, and it exits with 1."""

    exit_code = 1


class OutcomeUnknown(Refused):
    """The command was sent, and nobody answered: whether it is carried out is not known. Exits with 3."""

    exit_code = 3


class RefusedByService(Refused):
    """The service answered, and refused. `status` is that of HTTP, `error` the service's word for why, if it gave one."""

    def __init__(self, message: str, status: int, error: str | None) -> None:
        super().__init__(message)
        self.status = status
        self.error = error
