"""What a GPU makes of a round, in at most eight minutes and without network: one JSON file.

    python scripts/device_check.py --json device.json

Needs torch with CUDA and transformers, and reads the package from this checkout. The target is the text stack of
Qwen3-VL-8B with a five-layer head, random weights made on the card (``benchmarks/geometry.py``), and acceptance is
scripted: times are measured, τ is given. Before that, the built-in model decodes pages in float32, and its text is
compared with the plain loop's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LIMIT_S = 480


def run(words: list[str], seconds: float) -> dict[str, Any]:
    """A command with a time limit; its output where it fails."""
    started = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1"}
    try:
        done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return {"ok": False, "seconds": seconds, "error": f"not done in {seconds:.0f} s"}
    found = {"ok": done.returncode == 0, "seconds": time.perf_counter() - started}
    return found if found["ok"] else {**found, "error": done.stderr[-2000:]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=Path("device.json"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--geometry", default="8b")
    parser.add_argument("--layers", help="of the target; default all")
    options = parser.parse_args()
    ends_at = time.perf_counter() + LIMIT_S
    scratch = options.json.with_suffix(".part")
    found: dict[str, Any] = {}

    audit = [sys.executable, "-m", "oneglance", "audit", "--prompts", "12", "--device", options.device, "--json"]
    found["audit"] = run(audit, min(150, ends_at - time.perf_counter()))
    for context in ("512", "4096"):
        words = [sys.executable, "benchmarks/geometry.py", "--geometry", options.geometry, "--device", options.device]
        words += ["--context", context, "--json", str(scratch.resolve())]
        words += ["--layers", options.layers] if options.layers else []
        name = f"{options.geometry}, context {context}"
        found[name] = run(words, max(1.0, ends_at - time.perf_counter()))
        if found[name]["ok"]:
            found[name] |= json.loads(scratch.read_text(encoding="utf-8"))
            scratch.unlink()
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(options.json)
    raise SystemExit(not all(part["ok"] for part in found.values()))


if __name__ == "__main__":
    main()
