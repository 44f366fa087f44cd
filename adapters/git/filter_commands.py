"""Filter commands as git runs them, each in a session of its own, so that one that hangs is ended with all it started."""

import os
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from threading import Timer

from dulwich.config import Config
from dulwich.errors import GitProtocolError
from dulwich.filters import FilterError, ProcessFilterDriver

#: A command that takes longer for one file hangs; what it works for holds git's lock on a checkout meanwhile.
FILTER_SECONDS = 600.0
#: Leaves our session. Nobody reads what the process complains of, and a full pipe would stop it.
ALONE = (
    "import os,sys;os.setsid();os.dup2(os.open(os.devnull,os.O_WRONLY),2);os.execv('/bin/sh',['sh','-c',sys.argv[1]])"
)


class FilterCommands(ProcessFilterDriver):
    """The commands of one configured filter. Where it is not required, what they cannot convert stays as it is."""

    def __init__(self, configured: ProcessFilterDriver) -> None:
        """Take the commands over from the library's driver, which waits for them for ever."""
        process = configured.process_cmd
        if process:
            # The library starts a shell for it, which makes room: the process that it knows is the session's first.
            process = "exec " + shlex.join([sys.executable, "-IS", "-c", ALONE, process])
        super().__init__(configured.clean_cmd, configured.smudge_cmd, configured.required, configured.cwd, process)
        #: The file that is converted; the library does not say it of all.
        self.path = b""
        self._hangs = False

    def reuse(self, config: Config, filter_name: str) -> bool:
        """Return that nobody need keep it: the registry, which names the file each time, does."""
        return False

    def clean(self, data: bytes) -> bytes:
        """Return what is stored of a file. Raises FilterError."""
        return self._converted("clean", self.clean_cmd, data)

    def smudge(self, data: bytes, path: bytes = b"") -> bytes:
        """Return what a checkout shows of a file. Raises FilterError."""
        return self._converted("smudge", self.smudge_cmd, data)

    def _converted(self, operation: str, command: str | None, data: bytes) -> bytes:
        try:
            # As in git: where there is a process, the single commands are not used.
            if self.process_cmd:
                return self._asked(operation, data)
            if command:
                return self._run(command, data)
            raise FilterError(f"there is no command to {operation} with")
        except (
            OSError,
            ValueError,
            subprocess.SubprocessError,
            GitProtocolError,
            AssertionError,
            FilterError,
        ) as error:
            # A process that failed may be out of step: the next file gets a new one.
            self.cleanup()
            if self.required or self._hangs:
                raise FilterError(f"the filter of {os.fsdecode(self.path)} failed: {error}") from error
            return data

    def _asked(self, operation: str, data: bytes) -> bytes:
        watch = Timer(FILTER_SECONDS, self._end)
        watch.daemon = True
        watch.start()
        try:
            return self._use_process_filter(data, operation, self.path.decode(errors="replace"))
        finally:
            watch.cancel()

    def _end(self) -> None:
        self._hangs = True
        if self._process is not None:
            _end_session(self._process)

    def _run(self, command: str, data: bytes) -> bytes:
        command = command.replace("%f", shlex.quote(os.fsdecode(self.path)))
        with subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=self.cwd,
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(data, FILTER_SECONDS)
            except BaseException as error:
                self._hangs = isinstance(error, subprocess.TimeoutExpired)
                _end_session(process)
                raise
        if process.returncode:
            raise FilterError(f"{command} ended with {process.returncode}")
        return output


def _end_session(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and whatever it started."""
    with suppress(ProcessLookupError):
        process.kill()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
