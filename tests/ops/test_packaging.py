"""What is installed is what stands in the checkout."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOCKS = ("requirements.lock", "requirements-test.lock")
#: Benchmarks are run from the checkout and are no part of the product.
HELD = re.compile(
    r"(domain|projections|application|adapters|http)(/\w+)+\.py"
    r"|ops/((commands|serving|admin)/)?\w+\.py|adapters/stores/sql/\w+\.sql"
)


def build(kind: str, source: Path, target: Path) -> str:
    """Build the source archive or the wheel as pip would, offline, and return its name."""
    call = f"import sys; from setuptools import build_meta; print(build_meta.build_{kind}(sys.argv[1]))"
    command = [sys.executable, "-P", "-c", call, str(target)]
    return subprocess.run(command, cwd=source, capture_output=True, text=True, check=True).stdout.splitlines()[-1]


def test_a_wheel_built_through_the_source_archive_holds_every_room(tmp_path: Path) -> None:
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = [name for name in tracked.split("\0") if name and (ROOT / name).is_file()]
    # From a copy: a `build` folder of earlier builds would put deleted modules into the wheel.
    checkout = tmp_path / "checkout"
    for name in names:
        target = checkout / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    archive = tmp_path / build("sdist", checkout, tmp_path)
    unpack = [sys.executable, "-P", "-m", "tarfile", "--extract", str(archive), str(tmp_path / "unpacked")]
    subprocess.run(unpack, check=True, capture_output=True)
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    wheel = tmp_path / build("wheel", unpacked, tmp_path)
    held = set(zipfile.ZipFile(wheel).namelist())
    wanted = {f"steersman/{name}" for name in names if name in ("__init__.py", "py.typed") or HELD.fullmatch(name)}
    assert {name for name in held if not name.startswith("steersman-")} == wanted


def test_a_lock_names_every_dependency_with_hashes_and_no_address() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for name in LOCKS:
        text = (ROOT / name).read_text(encoding="utf-8")
        assert "://" not in text
        assert "--index" not in text
        entries = [entry for entry in text.replace("\\\n", " ").splitlines() if entry.strip()]
        assert all("--hash=sha256:" in entry for entry in entries)
        locked = {entry.split("==")[0].strip() for entry in entries}
        wanted = list(project["dependencies"])
        if "test" in name:
            wanted += project["optional-dependencies"]["test"]
        for requirement in wanted:
            bare = requirement.split(";")[0].split("[")[0].split(">")[0].split("=")[0].strip()
            assert bare.lower() in locked, f"{bare} is not in {name}: run ops/lock"
