"""Build the wheel, install it into a fresh environment, and run the main road from there: import, pack, stream a batch.

Needs no network: the new environment borrows the installed libraries, but not this checkout. Run by `make ci`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("formats", "loader", "gpu_decode", "tools", "bench")

ROAD = """
import sys
from pathlib import Path
import headway
from headway.tools.synthetic import TINY, write_nuscenes

home = Path(headway.__file__).resolve()
assert Path(sys.prefix).resolve() in home.parents, f"headway comes from {home}, not from the wheel"
write_nuscenes("drives", drives=1, seconds=1.0, detail=TINY)
"""

STREAM = """
import headway
dataset = headway.open("set", images=headway.Images("CAM_*", size=(64, 128)))
loader = headway.DataLoader(dataset, batch_size=2, shuffle=True)
batch = next(iter(loader))
assert tuple(batch["camera"]["image"].shape) == (2, 1, 6, 3, 64, 128), batch["camera"]["image"].shape
print("   a batch:", tuple(batch["camera"]["image"].shape), "of", len(dataset), "frames")
"""


def main() -> None:
    """Do it all in a temporary folder, saying each step."""
    with tempfile.TemporaryDirectory(prefix="headway-wheel-") as name:
        folder = Path(name)
        print("   building the wheel", flush=True)
        source = _copy_of_the_tree(folder / "source")  # setuptools keeps old modules in build/, and they would ship
        _run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder / "dist", source)
        (wheel,) = (folder / "dist").glob("headway-*.whl")
        _check_contents(wheel)
        print(f"   installing {wheel.name} into a fresh environment", flush=True)
        python = _fresh_environment(folder / "venv")
        _run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", wheel)
        work = folder / "work"
        work.mkdir()
        print("   packing with the installed commands, streaming a batch", flush=True)
        scripts = python.parent
        _run(python, "-c", ROAD, cwd=work)
        _run(scripts / "pack-dataset", "nuscenes", "drives", "set", "--workers", "2", cwd=work)
        _run(scripts / "headway", "verify", "set", cwd=work)
        _run(python, "-c", STREAM, cwd=work)
        print("   the wheel works")


def _copy_of_the_tree(target: Path) -> Path:
    target.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, target)
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, target / folder, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    return target


def _check_contents(wheel: Path) -> None:
    """Every module of the tree is in the wheel, and no test is."""
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {"headway/py.typed", "headway/__init__.py"}
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            if path.relative_to(ROOT).parts[:2] != ("loader", "headway"):
                wanted.add(f"headway/{path.relative_to(ROOT).as_posix()}")
    missing = sorted(wanted - names)
    assert not missing, f"the wheel lacks {missing}; is the package list in pyproject.toml complete?"
    assert not [name for name in names if "test" in name.split("/")[0]], "tests do not ship"


def _fresh_environment(venv: Path) -> Path:
    """Make an environment that sees this one's libraries, but none of its .pth files, so no editable headway."""
    _run(sys.executable, "-m", "venv", "--without-pip", venv)
    python = venv / "bin" / "python"
    (site,) = venv.glob("lib/python*/site-packages")
    (site / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return python


def _run(*command: str | Path, cwd: Path | None = None) -> None:
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run([str(word) for word in command], cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    for line in done.stdout.splitlines():
        print("     " + line.strip())


if __name__ == "__main__":
    main()
