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
HELD = re.compile(r"(domain|projections|application|adapters|http|ops)/\w+\.py|adapters/sql/\w+\.sql")


def test_a_wheel_built_through_the_source_archive_holds_every_room(tmp_path: Path) -> None:
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = [name for name in tracked.split("\0") if name and (ROOT / name).is_file()]
    # From a copy: a `build` folder of earlier builds would put deleted modules into the wheel.
    checkout = tmp_path / "checkout"
    for name in names:
        target = checkout / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    build = "import sys; from setuptools import build_meta; print(build_meta.build_sdist(sys.argv[1]))"
    made = subprocess.run(
        [sys.executable, "-P", "-c", build, str(tmp_path)], cwd=checkout, capture_output=True, text=True, check=True
    )
    archive = tmp_path / made.stdout.splitlines()[-1]
    options = ("--no-deps", "--no-index", "--no-build-isolation", "--quiet")
    pip = [sys.executable, "-P", "-m", "pip", "wheel", *options]
    subprocess.run([*pip, "--wheel-dir", str(tmp_path), str(archive)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("steersman-*.whl")
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
