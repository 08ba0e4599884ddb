"""The wheel in dist/ as a user gets it: what it holds, that it decodes offline in an environment of its own, that each
extra resolves.

The environment is made in a temporary folder, far from this checkout, by pip: PIP_FIND_LINKS and the like count. Extras
are resolved by uv, which reads metadata only.
"""

import os
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
INSIDE = {  # of the metadata folder of a wheel
    "METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE", "licenses/NOTICE",
    "licenses/src/oneglance/assets/fonts/LICENSE-APACHE-2.0.txt",
    "licenses/src/oneglance/assets/fonts/LICENSE-OFL-1.1.txt",
}  # fmt: skip
MOST_BYTES = 20e6
# imported by every Python that starts in the environment
OFFLINE = """import socket
def refuse(*args):
    raise OSError("this program must not use the network")
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
"""


def check_contents(wheel: Path) -> None:
    """The files that git knows below src/oneglance and the metadata, nothing else."""
    listed = subprocess.run(
        ["git", "ls-files", "oneglance"], cwd=ROOT / "src", capture_output=True, text=True, check=True
    )
    with zipfile.ZipFile(wheel) as archive:
        held = {info.filename for info in archive.infolist()}
        unpacked = sum(info.file_size for info in archive.infolist())
    folder = f"oneglance-{PROJECT['version']}.dist-info"
    wanted = set(listed.stdout.split()) | {f"{folder}/{name}" for name in INSIDE}
    size = wheel.stat().st_size
    print(f"{wheel.name}: {len(held)} files, {size / 1e6:.1f} MB, {unpacked / 1e6:.1f} MB unpacked")
    if held != wanted:
        sys.exit(f"missing: {sorted(wanted - held)}\nnot meant to be there: {sorted(held - wanted)}")
    if size > MOST_BYTES:
        sys.exit(f"the wheel has more than {MOST_BYTES / 1e6:.0f} MB")


def check_demo(wheel: Path) -> None:
    """``oneglance demo`` from a fresh environment, without a network."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        subprocess.run([sys.executable, "-m", "venv", place / "env"], check=True)
        scripts = place / "env" / ("Scripts" if os.name == "nt" else "bin")
        subprocess.run([scripts / "python", "-m", "pip", "install", "--quiet", wheel], check=True)
        found = subprocess.run(
            [scripts / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        (Path(found.stdout.strip()) / "sitecustomize.py").write_text(OFFLINE)
        clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        home = {"HOME": folder, "HF_HOME": str(place / "hub")}
        subprocess.run([scripts / "oneglance", "demo"], cwd=place, env=clean | home, check=True)


def check_extras(wheel: Path) -> None:
    """Each extra has versions that go together, alone with the base dependencies."""
    for extra in PROJECT["optional-dependencies"]:
        wanted = f"oneglance[{extra}] @ {wheel.as_uri()}\n"
        words = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--python", sys.executable, "-"]
        done = subprocess.run(words, input=wanted, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"[{extra}] cannot be installed:\n{done.stderr}")
        print(f"[{extra}]: {done.stdout.count('==')} packages")


if __name__ == "__main__":
    (built,) = (ROOT / "dist").glob(f"oneglance-{PROJECT['version']}-*.whl")
    check_contents(built)
    check_extras(built)
    check_demo(built)
