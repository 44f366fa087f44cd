"""
An agent that tries to get out of its box, in every way that it knows, and tells how each ended.

Standard library only, run inside: escapes.py WORLD, with what there is to reach outside as JSON. Each attempt returns
what it got hold of, or None; what is refused raises OSError.
"""

import ctypes
import fcntl
import json
import os
import resource
import socket
import stat
import subprocess
import sys
import termios
from collections.abc import Callable
from typing import Any

libc = ctypes.CDLL(None, use_errno=True)
WORLD: dict[str, Any] = json.loads(sys.argv[1])
ATTEMPTS: dict[str, Callable[[], object]] = {}
MS_REMOUNT, MS_BIND, MS_RDONLY = 32, 4096, 1
CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
PTRACE_ATTACH = 16
#: System calls by number, which are the same on no two machines.
CALLS = {
    "x86_64": {"bpf": 321, "init_module": 175, "keyctl": 250, "open_by_handle_at": 304, "process_vm_readv": 310},
    "aarch64": {"bpf": 280, "init_module": 105, "keyctl": 219, "open_by_handle_at": 265, "process_vm_readv": 270},
}[os.uname().machine]


def attempt(call: Callable[[], object]) -> Callable[[], object]:
    ATTEMPTS[call.__name__] = call
    return call


def must(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def mount(target: str, flags: int, source: str = "none", kind: str = "tmpfs") -> int:
    return must(libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), None))


def read(path: str) -> str | None:
    with open(path, errors="replace") as file:
        return file.read()[:200] or None


def connect(family: int, address: Any) -> str:
    with socket.socket(family, socket.SOCK_STREAM) as tried:
        tried.settimeout(2)
        tried.connect(address)
        return f"connected with {address}"


@attempt
def remount_the_system() -> object:
    mount("/usr", MS_REMOUNT | MS_BIND)
    return "remounted"


@attempt
def mount_over_the_system() -> object:
    mount("/usr", 0)
    return "mounted"


@attempt
def make_a_device() -> object:
    os.mknod("device", stat.S_IFBLK | 0o666, os.makedev(8, 0))
    return "made"


@attempt
def open_real_devices() -> object:
    return [
        name for name in ("mem", "kmem", "kmsg", "sda", "vda", "port", "fuse", "kvm") if os.path.exists(f"/dev/{name}")
    ] or None


@attempt
def configure_the_kernel() -> object:
    with open("/proc/sys/kernel/core_pattern", "r+"):
        return "opened"


@attempt
def trigger_sysrq() -> object:
    with open("/proc/sysrq-trigger", "w"):
        return "opened"


@attempt
def environment_of_the_first_process() -> object:
    told = read("/proc/1/environ") or ""
    return told if WORLD["secret"] in told else None


@attempt
def environment_of_any_process() -> object:
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if WORLD["secret"] in (read(f"/proc/{name}/environ") or ""):
                    return name
            except OSError:
                continue
    return None


@attempt
def own_environment() -> object:
    return [name for name, value in os.environ.items() if WORLD["secret"] in value or name == "STEERSMAN_KEYS"] or None


@attempt
def a_server_on_loopback() -> object:
    return connect(socket.AF_INET, ("127.0.0.1", WORLD["tcp"]))


@attempt
def a_server_on_loopback_by_ipv6() -> object:
    return connect(socket.AF_INET6, ("::1", WORLD["tcp6"]))


@attempt
def every_local_port() -> object:
    found: list[int] = []
    for port in range(1, 65_536):
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) or port == WORLD["proxy_port"]:
                continue
            # One that asks for the very port that it was given itself is connected with itself.
            if tried.getsockname() != tried.getpeername():
                found.append(port)
    return found or None


@attempt
def an_address_of_the_machine() -> object:
    return connect(socket.AF_INET, (WORLD["address"], WORLD["tcp"]))


@attempt
def a_database_that_trusts_whoever_reaches_it() -> object:
    place = WORLD["postgres"]
    return connect(socket.AF_UNIX, place) if isinstance(place, str) else connect(socket.AF_INET, ("127.0.0.1", place))


@attempt
def an_abstract_socket() -> object:
    return connect(socket.AF_UNIX, "\0" + WORLD["abstract"])


@attempt
def a_socket_that_is_a_file() -> object:
    return connect(socket.AF_UNIX, WORLD["socket"])


@attempt
def the_socket_of_docker() -> object:
    return [
        path
        for path in ("/var/run/docker.sock", "/run/docker.sock", "/run/dbus/system_bus_socket")
        if os.path.exists(path)
    ] or None


@attempt
def the_log() -> object:
    return read(f"{WORLD['data']}/log.db")


@attempt
def the_keys() -> object:
    return os.listdir(WORLD["keys"]) or None


@attempt
def agents_toml() -> object:
    return read(f"{WORLD['data']}/agents.toml")


@attempt
def the_data_directory_by_another_root() -> object:
    return read(f"/proc/1/root{WORLD['data']}/log.db")


@attempt
def the_data_directory_by_another_cwd() -> object:
    return [
        name for name in os.listdir("/proc") if name.isdigit() and os.path.exists(f"/proc/{name}/cwd/../../log.db")
    ] or None


@attempt
def a_token() -> object:
    command = [sys.executable, "-P", "-m", "steersman.ops.command_line", "token", "issue"]
    command += ["--user", "me", "--scope", "operator", "--data", WORLD["data"]]
    subprocess.run(command, capture_output=True, timeout=120, check=False)
    return None  # whether it is one is seen outside


@attempt
def another_workplace() -> object:
    return read(f"{WORLD['data']}/worktrees/other/file")


@attempt
def another_home() -> object:
    return os.listdir(f"{WORLD['data']}/homes/other") or None


@attempt
def the_projects_files() -> object:
    return read(f"{WORLD['project']}/file")


@attempt
def the_projects_configuration() -> object:
    return read(f"{WORLD['project']}/.git/config")


@attempt
def what_the_project_leaves_out_of_git() -> object:
    return read(f"{WORLD['project']}/.env")


@attempt
def change_what_is_borrowed() -> object:
    with open(f"{WORLD['project']}/.git/objects/planted", "w"):
        return "written"


@attempt
def trace_a_process_outside() -> object:
    must(libc.ptrace(PTRACE_ATTACH, WORLD["pid"], None, None))
    return "traced"


@attempt
def memory_of_a_process_outside() -> object:
    return open(f"/proc/{WORLD['pid']}/mem", "rb")


@attempt
def signal_a_process_outside() -> object:
    os.kill(WORLD["pid"], 0)
    return "signalled"


@attempt
def signal_everybody() -> object:
    os.kill(-1, 0)
    return None if not os.path.exists(f"/proc/{WORLD['pid']}") else "seen"


@attempt
def change_the_root() -> object:
    os.chroot("/tmp")
    return "changed"


@attempt
def write_by_way_of_a_user_namespace() -> object:
    pid = os.fork()
    if pid == 0:
        # Allowed, and harmless: what may not be written to stays so in every namespace below.
        if libc.unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0:
            if libc.mount(b"none", b"/usr", None, ctypes.c_ulong(MS_REMOUNT | MS_BIND), None) == 0:
                os._exit(1)
            try:
                open("/usr/planted", "w").close()
                os._exit(1)
            except OSError:
                pass
        os._exit(0)
    return "written" if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) else None


@attempt
def a_mount_that_is_covered() -> object:
    pid = os.fork()
    if pid == 0:
        if libc.unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 and libc.umount2(WORLD["data"].encode(), 2) == 0:
            os._exit(os.path.exists(f"{WORLD['data']}/log.db"))
        os._exit(0)
    return "uncovered" if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) else None


@attempt
def become_root_by_a_program() -> object:
    for program in ("/bin/su", "/usr/bin/su", "/usr/bin/sudo", "/bin/mount", "/usr/bin/passwd"):
        if os.path.exists(program) and os.stat(program).st_mode & stat.S_ISUID:
            check = ["/usr/bin/env", "python3", "-c", "import os; print(os.geteuid())"]
            told = subprocess.run(
                [program, "-c", " ".join(check)], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
            ).stdout
            if told.strip() == "0":
                return program
    with open("/proc/self/status") as file:
        return None if "NoNewPrivs:\t1" in file.read() else "privileges can be gained"


@attempt
def become_root_by_asking() -> object:
    os.setuid(0)
    return "root" if WORLD["uid"] != 0 else None


@attempt
def capabilities() -> object:
    with open("/proc/self/status") as file:
        caps = [line for line in file if line.startswith(("CapEff", "CapPrm", "CapBnd", "CapAmb"))]
    return [line for line in caps if int(line.split()[1], 16)] or None


@attempt
def keys_of_the_session() -> object:
    buffer = ctypes.create_string_buffer(64)
    found = libc.syscall(CALLS["keyctl"], 10, ctypes.c_int(-3), b"user", b"steersman-escape", 0)  # search in @s
    if found > 0:
        must(libc.syscall(CALLS["keyctl"], 11, found, buffer, 64))
        return buffer.value.decode()
    return None


@attempt
def a_raw_socket() -> object:
    return socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).fileno()


@attempt
def a_packet_socket() -> object:
    return socket.socket(socket.AF_PACKET, socket.SOCK_RAW).fileno()


@attempt
def a_program_in_the_kernel() -> object:
    return must(libc.syscall(CALLS["bpf"], 0, ctypes.create_string_buffer(128), 128))


@attempt
def a_module_of_the_kernel() -> object:
    return must(libc.syscall(CALLS["init_module"], ctypes.create_string_buffer(16), 16, b""))


@attempt
def a_file_by_its_handle() -> object:
    handle = ctypes.create_string_buffer(b"\x08\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00", 16)
    directory = os.open("/usr", os.O_RDONLY)
    try:
        return must(libc.syscall(CALLS["open_by_handle_at"], directory, handle, 0))
    finally:
        os.close(directory)


@attempt
def control_groups() -> object:
    os.mkdir("/sys/fs/cgroup/planted")
    return "made"


@attempt
def namespaces_of_a_process_outside() -> object:
    return os.open(f"/proc/{WORLD['pid']}/ns/mnt", os.O_RDONLY)


@attempt
def words_for_a_terminal() -> object:
    with open("/dev/tty", "rb") as terminal:
        fcntl.ioctl(terminal, termios.TIOCSTI, b"x")
    return "typed"


@attempt
def memory_that_is_shared() -> object:
    told = read("/proc/sysvipc/shm") or ""
    return told if len(told.splitlines()) > 1 else None


@attempt
def the_name_of_the_machine() -> object:
    socket.sethostname("planted")
    return "named"


@attempt
def more_than_the_limits() -> object:
    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (hard + 1, hard + 1))
    return "raised"


@attempt
def descriptors_of_the_service() -> object:
    own = {
        name: os.readlink(f"/proc/self/fd/{name}")
        for name in os.listdir("/proc/self/fd")
        if os.path.islink(f"/proc/self/fd/{name}")
    }
    return {name: path for name, path in own.items() if int(name) > 2 and not path.startswith("/proc")} or None


def by_the_proxy(target: str) -> Callable[[], object]:
    def ask() -> object:
        with socket.create_connection(("127.0.0.1", WORLD["proxy_port"]), 10) as way:
            way.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            answer = way.recv(200).decode()
        return answer if " 200 " in answer else None

    return ask


for name in (
    "127.0.0.1",
    "localhost",
    "[::1]",
    "0.0.0.0",
    "2130706433",
    "0x7f000001",
    "127.1",
    "[::ffff:127.0.0.1]",
    "[64:ff9b::7f00:1]",
    "[2002:7f00:1::]",
    WORLD["address"],
    "169.254.169.254",
    "10.0.0.1",
    "192.168.0.1",
):
    ATTEMPTS[f"by_the_proxy_to_{name}"] = by_the_proxy(f"{name}:{WORLD['tcp']}")


def main() -> None:
    """Try everything, then leave traps for the service; print what each attempt came to."""
    results: dict[str, str | None] = {}
    for name, call in ATTEMPTS.items():
        try:
            got = call()
            results[name] = None if got is None else repr(got)
        except (OSError, UnicodeError, subprocess.SubprocessError, ValueError):
            results[name] = None
    os.symlink(f"{WORLD['data']}/log.db", "link-to-the-log")
    os.mkfifo("fifo")
    home = os.environ["HOME"]
    for planted in (f"{home}/.login", f"{home}/.tools"):
        subprocess.run(["rm", "-rf", planted], check=True)
    os.symlink(WORLD["project"], f"{home}/.tools")  # where a copy goes into
    os.mkfifo(f"{home}/.login")  # where a copy goes to
    print(json.dumps(results), flush=True)


if __name__ == "__main__":
    main()
