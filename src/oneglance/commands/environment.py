"""What ``oneglance doctor`` looks at before it decodes: versions, devices, threads, number formats."""

from __future__ import annotations

import os
import platform
import re
import statistics
import sys
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import torch

from oneglance import __version__
from oneglance.amounts import plural

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "pillow")


@dataclass(frozen=True, slots=True)
class Check:
    """One finding."""

    name: str
    status: Literal["ok", "note", "fail"]
    detail: str


def environment(device: str) -> list[Check]:
    """Versions, threads, devices and number formats of this machine."""
    return [
        Check("python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        Check("oneglance", "ok", __version__),
        *(check_version(name) for name in PACKAGES),
        check_threads(),
        Check("devices", "ok", ", ".join([cpu_name(), *accelerators()])),
        check_bfloat16(device),
    ]


def check_version(package: str) -> Check:
    """Whether an installed version is in the range that this package was released for."""
    try:
        installed = metadata.version(package)
    except metadata.PackageNotFoundError:
        return Check(package, "fail", "missing; reinstall oneglance with pip")
    wanted = supported_range(package)
    if wanted and not is_in_range(installed, wanted):
        return Check(
            package, "fail", f"{installed} is outside the supported range {wanted}: pip install '{package}{wanted}'"
        )
    return Check(package, "ok", installed + (f", supported: {wanted}" if wanted else ""))


def supported_range(package: str) -> str:
    """What our own metadata asks for, such as ``>=5.17,<6``; empty where it asks for nothing."""
    for requirement in metadata.requires("oneglance") or ():
        found = re.fullmatch(rf"{package}\s*\(?([<>=!~,.\s\d]+)\)?", requirement)
        if found:
            return ",".join(sorted(found[1].replace(" ", "").split(","), reverse=True))
    return ""


def is_in_range(version: str, wanted: str) -> bool:
    """Compare release numbers; ``+cpu`` and the like do not count."""
    number = release(version)
    for operator, bound in re.findall(r"([<>]=?|==)([\d.]+)", wanted):
        limit = release(bound)
        compared = number[: len(limit)] if operator == "==" else number
        if not {
            "<": compared < limit,
            "<=": compared <= limit,
            ">": compared > limit,
            ">=": compared >= limit,
            "==": compared == limit,
        }[operator]:
            return False
    return True


def release(version: str) -> tuple[int, ...]:
    """``5.24.0+cpu`` → (5, 24, 0)."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def check_threads() -> Check:
    """Whether torch uses the cores that there are, and whether others use them too."""
    threads, cores = torch.get_num_threads(), num_cores()
    detail = f"{threads} of {plural(cores, 'core')}"
    if threads > cores:
        return Check("threads", "note", f"{detail}: more threads than cores slow every pass; add --threads {cores}")
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > 0.5 * cores:
        return Check("threads", "note", f"{detail}; the machine is busy (load {load:.1f}), timings will be noisy")
    return Check("threads", "ok", detail)


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def cpu_name() -> str:
    """The processor, as the system names it."""
    table = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.+)", table.read_text(encoding="utf-8")) if table.is_file() else None
    return found[1].strip() if found else platform.processor() or platform.machine()


def accelerators() -> list[str]:
    """GPUs that torch can use."""
    names = (
        [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    )
    return [*names, *(["Apple GPU (mps)"] if torch.backends.mps.is_available() else [])]


def check_bfloat16(device: str) -> Check:
    """How fast bfloat16 is here, against float32, on a product of the size of a packed pass."""
    try:
        ratio = bfloat16_ratio(torch.device(device))
    except RuntimeError as error:
        return Check("bfloat16", "note", f"not available on {device} ({error}); use --dtype float32")
    detail = f"a large product takes {ratio:.2g} times as long as in float32 on {device}"
    if ratio > 1.1:
        return Check("bfloat16", "note", f"{detail}: --dtype float32 is faster")
    return Check("bfloat16", "ok", f"{detail}; for a small model casts can cost more")


def bfloat16_ratio(device: torch.device, *, rows: int = 64, width: int = 1024, repeats: int = 7) -> float:
    """Median time of a (rows, width) × (width, width) product in bfloat16 over that in float32, interleaved."""
    times: dict[torch.dtype, list[float]] = {torch.float32: [], torch.bfloat16: []}
    operands = {
        dtype: (
            torch.ones(rows, width, device=device, dtype=dtype),
            torch.ones(width, width, device=device, dtype=dtype),
        )
        for dtype in times
    }
    for repeat in range(repeats + 1):
        for dtype, (left, right) in operands.items():
            started = time.perf_counter()
            (left @ right).sum().item()
            if repeat:  # the first one builds kernels
                times[dtype].append(time.perf_counter() - started)
    return statistics.median(times[torch.bfloat16]) / statistics.median(times[torch.float32])
