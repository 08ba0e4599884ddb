"""Whether SGLang's tree works on this GPU: hooks, start, exact text, accepted tokens; one JSON file.

    python scripts/device_check_sglang.py --target Qwen/Qwen3-VL-8B-Instruct --head HEAD --json check.json

Needs a GPU, SGLang 0.5.23 and this package in its environment. Three servers run one after another, with CUDA graphs
and then without: plain, the head's chain, the head's tree. Exit code 1: a hook is missing, a server does not start, a
text differs from the plain server's, or the tree accepts no more than the bonus token. No run of this script on a GPU
has been recorded yet.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from oneglance.bench.manifest import manifest
from oneglance.core import InputError
from oneglance.engines import sglang, sglang_tree
from oneglance.engines.arms import answers, serving, sglang_arms
from oneglance.engines.client import Client
from oneglance.engines.hooks import problems
from oneglance.files import parse_json
from oneglance.tasks import draw

TASKS = ("docvqa", "caption", "chartqa")
WITHOUT_GRAPHS = ("--disable-cuda-graph",)


def compare(options: argparse.Namespace, flags: tuple[str, ...], folder: Path) -> dict[str, Any]:
    """One set of three servers."""
    pages = [draw(TASKS[i % len(TASKS)], i // len(TASKS), split="eval") for i in range(options.prompts)]
    found: dict[str, Any] = {}
    for arm in sglang_arms(options.target, options.head, budget=options.budget, flags=flags):
        try:
            with serving(arm.words, folder / f"{arm.name}.log") as client:
                rows = answers(client, pages, options.max_new_tokens)
                tau = None if arm.name == "plain" else mean_acceptance_length(client)
        except InputError as error:
            return {**found, arm.name: {"error": str(error)}, "ok": False}
        num_tokens = sum(row["num_tokens"] for row in rows)
        found[arm.name] = {"words": list(arm.words), "num_tokens": num_tokens, "tau": tau, "rows": rows}
    texts = {name: [row["text"] for row in arm["rows"]] for name, arm in found.items()}
    same = {name: sum(a == b for a, b in zip(texts["plain"], given, strict=True)) for name, given in texts.items()}
    ok = set(same.values()) == {len(pages)} and (found["tree"]["tau"] or 0) > 1
    return {**found, "prompts": len(pages), "same_text_as_plain": same, "ok": ok}


def mean_acceptance_length(client: Client) -> float | None:
    """As SGLang counts it over all requests so far, the bonus token with it; None where it says nothing."""
    with client.server.open("/server_info") as reply:
        states = parse_json(reply.read()).get("internal_states") or [{}]
    value = states[0].get("avg_spec_accept_length")
    return None if value is None else float(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, help="hub id or folder")
    parser.add_argument("--head", required=True, help="block head: hub id or folder")
    parser.add_argument("--budget", type=int, default=63, help="nodes of the tree, root excluded")
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--dtype", default="float32", help="float32, where texts have to be equal; bfloat16 is faster")
    parser.add_argument("--json", type=Path, default=Path("sglang-check.json"))
    options = parser.parse_args()
    missing = [*filter(None, [sglang_tree.version_problem()]), *problems((*sglang.HOOKS, *sglang_tree.HOOKS))]
    found: dict[str, Any] = {"manifest": manifest(**vars(options) | {"json": str(options.json)}), "missing": missing}
    parts = []
    if not missing:
        shared = ("--dtype", options.dtype, "--page-size", "1", "--attention-backend", sglang_tree.BACKENDS[0])
        for name, extra in (("graphs", ()), ("no_graphs", WITHOUT_GRAPHS)):
            found[name] = compare(options, (*shared, *extra), options.json.parent / "sglang-check-logs" / name)
            parts.append(found[name]["ok"])
            options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(options.json)
    raise SystemExit(bool(missing) or not all(parts))


if __name__ == "__main__":
    main()
