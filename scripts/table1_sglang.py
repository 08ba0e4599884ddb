"""Table 1 on SGLang: plain decoding, a production EAGLE-3 head and the tree, back to back, graphs on and off.

    python scripts/table1_sglang.py --target Qwen/Qwen3-VL-8B-Instruct --head HEAD --eagle3 EAGLE3 --out table1

Needs a GPU, SGLang 0.5.23 and this package in its environment. For each setting of graphs and each task the three
servers run one after another on one card; both drafters verify the same number of nodes a round. One request at a time,
greedy. Times are taken by the client from the first text of an answer to its end, over its tokens. Without --eagle3 the
second arm is the head's own chain. A killed run goes on where it stopped. No run of this script has been recorded yet.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from oneglance.bench.manifest import manifest
from oneglance.engines.arms import Arm, answers, serving, sglang_arms
from oneglance.engines.sglang_tree import BACKENDS
from oneglance.files import write_atomically
from oneglance.stats.bootstrap import resample_ratio
from oneglance.tasks import TASKS, draw

GRAPHS: dict[str, tuple[str, ...]] = {"on": (), "off": ("--disable-cuda-graph",)}


def cell(arm: Arm, task: str, options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Answers of one arm to one task, from its file where it was made before."""
    path = folder / f"{task}-{arm.name}.json"
    if not path.exists():
        pages = [draw(task, i, split="eval") for i in range(options.prompts)]
        with serving(arm.words, path.with_suffix(".log")) as client:
            rows = answers(client, pages, options.max_new_tokens)
        write_atomically(path, json.dumps({"words": list(arm.words), "rows": rows}, indent=1) + "\n")
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return found


def row(cells: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """A line of the table: mean times, ratios of means with paired intervals, and texts equal to the plain arm's.

    A page counts where every arm gave two tokens or more.
    """
    times = {name: [one["ms_per_token"] for one in rows] for name, rows in cells.items()}
    kept = [i for i in range(len(times["plain"])) if all(arm[i] is not None for arm in times.values())]
    means = {name: sum(arm[i] for i in kept) / len(kept) for name, arm in times.items()} if kept else {}
    ratios = {
        f"{slow}/tree": asdict(resample_ratio([times[slow][i] for i in kept], [times["tree"][i] for i in kept]))
        for slow in times
        if slow != "tree" and len(kept) > 1
    }
    same = {
        name: sum(a["text"] == b["text"] for a, b in zip(cells["plain"], rows, strict=True))
        for name, rows in cells.items()
    }
    return {"prompts": len(kept), "ms_per_token": means, "faster_by": ratios, "same_text_as_plain": same}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, help="hub id or folder")
    parser.add_argument("--head", required=True, help="block head: hub id or folder")
    parser.add_argument("--eagle3", help="EAGLE-3 head in SGLang's layout")
    parser.add_argument("--budget", type=int, default=31, help="nodes both drafters verify a round, root excluded")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--prompts", type=int, default=64, help="pages a task")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--out", type=Path, required=True, help="folder of the cells, their logs and table.json")
    options = parser.parse_args()
    settings = {name: str(value) for name, value in vars(options).items()}
    table: dict[str, Any] = {"manifest": manifest(**settings)}
    for graphs, extra in GRAPHS.items():
        flags = ("--dtype", options.dtype, "--page-size", "1", "--attention-backend", BACKENDS[0], *extra)
        arms = sglang_arms(options.target, options.head, budget=options.budget, eagle3=options.eagle3, flags=flags)
        for task in options.tasks.split(","):
            cells = {arm.name: cell(arm, task, options, options.out / f"graphs-{graphs}") for arm in arms}
            table.setdefault(f"graphs {graphs}", {})[task] = row(cells)
            write_atomically(options.out / "table.json", json.dumps(table, indent=1) + "\n")
    print(options.out / "table.json")


if __name__ == "__main__":
    main()
