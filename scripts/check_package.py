"""The wheel in dist/ as a user gets it: what it holds, that it decodes offline in an environment of its own, that each
extra resolves, and that each which is not an engine or for developers installs alone.

The environments are made in a temporary folder, far from this checkout, by pip: PIP_FIND_LINKS and the like count.
Extras are resolved by uv, which reads metadata only.
"""

import os
import shutil
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


# extra → what its users import of it
EXTRAS = {
    "train": ("accelerate", "oneglance.train.trainer"),
    "data": ("datasets",),
    "report": ("matplotlib",),
    "grammar": ("llguidance",),
    "pdf": ("pypdfium2",),
    "serve": ("fastapi", "uvicorn", "prometheus_client", "oneglance.serve.app"),
}


def make_environment(wheel: Path, folder: Path) -> None:
    """A fresh environment with the wheel and its base dependencies."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run([programs(folder) / "python", "-m", "pip", "install", "--quiet", wheel], check=True)


def programs(environment: Path) -> Path:
    return environment / ("Scripts" if os.name == "nt" else "bin")


def check_demo(environment: Path, place: Path) -> None:
    """``oneglance demo`` without a network."""
    found = subprocess.run(
        [programs(environment) / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    hook = Path(found.stdout.strip()) / "sitecustomize.py"
    hook.write_text(OFFLINE)
    home = {"HOME": str(place), "HF_HOME": str(place / "hub")}
    subprocess.run([programs(environment) / "oneglance", "demo"], cwd=place, env=outside() | home, check=True)
    hook.unlink()


def check_alone(environment: Path, wheel: Path, place: Path) -> None:
    """Each extra, installed into a copy of the base environment: versions agree, and it imports."""
    for extra, modules in EXTRAS.items():
        copy = place / extra
        shutil.copytree(environment, copy, symlinks=True, copy_function=os.link)  # pip never edits a file
        python = programs(copy) / "python"
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", f"oneglance[{extra}] @ {wheel.as_uri()}"], check=True
        )
        subprocess.run([python, "-m", "pip", "check"], check=True, stdout=subprocess.DEVNULL)
        imports = f"import {', '.join(modules)}"
        subprocess.run([python, "-c", imports], cwd=place, env=outside(), check=True)
        print(f"[{extra}] installed alone: {imports}")


def outside() -> dict[str, str]:
    """The environment variables without a way back to this checkout."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


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
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "env"
        make_environment(built, base)
        check_demo(base, Path(folder))
        check_alone(base, built, Path(folder))
