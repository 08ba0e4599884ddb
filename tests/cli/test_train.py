"""``oneglance train`` and what follows it, on a tiny target in a folder."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import yaml

from oneglance.drafters.checkpoint import load_checkpoint, save_checkpoint
from oneglance.hub import no_answer
from oneglance.targets import open_target
from oneglance.testing import tiny_head, tiny_head_config
from oneglance.train.checkpoints import head_card
from oneglance.train.initial import initial_head
from oneglance.train.recipe import load_recipe

from .conftest import Run

Collect = Callable[[Path], None]


@pytest.fixture(scope="module")
def recipe(text_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe whose traces exist."""
    from oneglance.cli import main

    folder = tmp_path_factory.mktemp("recipe")
    for split, count in (("train", 6), ("heldout", 3)):
        rows = [{"prompt": f"{split} question {i}", "task": "ab"[i % 2]} for i in range(count)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        words = ["--prompts", folder / f"{split}.jsonl", "--out", folder / split, "--max-new-tokens", "20"]
        assert main(["collect", "--target", str(text_target), *map(str, words)]) == 0
    plan = {
        "name": "tiny",
        "target": str(text_target),
        "data": {"train": str(folder / "train"), "heldout": str(folder / "heldout"), "num_anchors": 4},
        "head": {"num_layers": 2, "target_layer_ids": [1, 2], "head_dim": 8},
        "optimiser": {"lr": 0.003, "batch_size": 2, "epochs": None, "max_steps": 6},
        "schedule": {"log_every": 2, "save_every": 2, "evaluate_every": 3, "tau_prompts": 2, "tau_budget": 7},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(plan))
    return folder / "recipe.yaml"


def test_a_run_leaves_a_head_and_a_log(run: Run, recipe: Path, text_target: Path, tmp_path: Path) -> None:
    result = run("train", recipe, "--out", tmp_path / "run", "--device", "cpu", "--json").json
    assert result["steps"] == 6
    assert result["zero_shot_tau"] is None
    assert set(result["tau"]) == {"a", "b"}
    assert result["memory_bytes"] > 0
    head = load_checkpoint(result["head"])
    assert {str(tensor.dtype) for tensor in head.tensors.values()} == {"torch.bfloat16"}
    assert head.raw["dtype"] == "bfloat16"
    assert head.card["training"]["step"] == 6
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in log] == [2, 3, 4, 6]
    assert result["samples_per_s"] == pytest.approx(median(row["samples_per_s"] for row in log), abs=0.01)
    assert result["peak_memory_bytes"] > 1e8  # torch alone takes more
    assert [len(row.get("heldout_top1", [])) for row in log] == [0, 15, 0, 15]
    answer = run("generate", "x", "--target", text_target, "--head", result["head"], "--max-new-tokens", 4, "--json")
    assert answer.json["num_draft_passes"] > 0


def test_what_is_said_while_training(run: Run, recipe: Path, tmp_path: Path) -> None:
    result = run("train", recipe, "--out", tmp_path / "run", "save_dtype=float32")
    assert result.code == 0
    assert "head after 6 steps" in result.out
    for words in ("6 training and 3 held-out samples, 6 steps", "memory: about", "step 6/6: loss", "@15", "τ a "):
        assert words in " ".join(result.err.split())
    assert load_checkpoint(str(tmp_path / "run" / "head")).tensors["fc.weight"].dtype.itemsize == 4


def test_a_warm_start_says_what_does_not_fit_and_what_it_does_before(
    run: Run, recipe: Path, text_target: Path, tmp_path: Path
) -> None:
    target = open_target(str(text_target))
    raw = {**tiny_head_config(target, kept=[1, 2]), "rms_norm_eps": 1e-5}
    raw |= {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 20}
    save_checkpoint(tiny_head(target, kept=[1, 2]), tmp_path / "start", raw)
    words = ["train", recipe, "--out", tmp_path / "run", "--json", f"init={tmp_path / 'start'}"]
    result = run(*words, "head.target_layer_ids=[1,2,3]").json
    assert result["reinitialised"] == ["fc.weight"]
    assert result["zero_shot_tau"] is None, "a head that is part random is not the one that was given"
    config = load_checkpoint(result["head"]).config
    assert (config.rms_norm_eps, config.layer_types[0], config.sliding_window) == (1e-5, "sliding_attention", 20)
    assert config.target_layer_ids == (1, 2, 3)


@pytest.fixture
def warm(recipe: Path, text_target: Path, tmp_path: Path) -> Path:
    """A recipe that leaves the geometry of its head to a warm start."""
    target = open_target(str(text_target))
    save_checkpoint(tiny_head(target, kept=[1, 2]), tmp_path / "start", tiny_head_config(target, kept=[1, 2]))
    raw = yaml.safe_load(recipe.read_text())
    del raw["head"]
    (tmp_path / "warm.yaml").write_text(yaml.safe_dump({**raw, "init": str(tmp_path / "start")}))
    return tmp_path / "warm.yaml"


@pytest.mark.parametrize("change", ["num_layers=3", "block_size=8", "rope_theta=5.0", "head_dim=16", "num_kept=3"])
def test_a_warm_start_keeps_its_geometry(run: Run, warm: Path, tmp_path: Path, change: str) -> None:
    refused = run("train", warm, "--out", tmp_path / "run", f"head.{change}")
    assert refused.code == 2
    assert f"head.{change.replace('=', ' is ')}, and the warm start" in refused.err
    assert f"leave head.{change.split('=')[0]} out" in refused.err


def test_a_warm_start_that_fits_is_scored_as_it_is(run: Run, warm: Path, tmp_path: Path) -> None:
    words = ["train", warm, "optimiser.max_steps=1", "schedule.tau_prompts=1", "--threads", 1]
    done = run(*words, "--out", tmp_path / "run", "--json")
    assert set(done.json["zero_shot_tau"]) == {"a", "b"}
    unjudged = run(*words, "--out", tmp_path / "unjudged", "data.heldout=null")
    assert "every tensor fits; no zero-shot τ: data.heldout names no traces" in unjudged.err
    assert "1 process, global batch 2" in unjudged.err


def test_the_card_has_the_geometry_of_the_warm_start(warm: Path, text_target: Path) -> None:
    target, plan = open_target(str(text_target)), load_recipe(warm, ["head.num_layers=2", "head.block_size=16"])
    config, _, anew = initial_head(plan, target)
    card = head_card(plan, config, target, step=1)
    own = card["oneglance"]["training"]["recipe"]["head"]
    assert anew == []
    assert (own["num_layers"], own["num_kept"], own["intermediate_size"], own["head_dim"]) == (2, 2, 48, 8)
    assert (card["num_hidden_layers"], card["intermediate_size"], card["head_dim"]) == (2, 48, 8)
    again = plan.model_validate(card["oneglance"]["training"]["recipe"])
    assert initial_head(again, target)[0] == config


def test_a_run_is_not_overwritten_nor_mixed(run: Run, recipe: Path, tmp_path: Path) -> None:
    words = ["train", recipe, "--out", tmp_path / "run", "optimiser.max_steps=2"]
    assert run(*words).code == 0
    assert "--resume goes on with it" in run(*words).err
    other = run(*words[:-1], "--resume", "optimiser.lr=0.1").error
    assert "a run with optimiser.lr=0.003, and now it is 0.1 (and optimiser.max_steps)" in other
    again = run(*words, "--resume")
    assert again.code == 0
    assert "goes on after step 2 of 2" in again.err
    anew = run("train", recipe, "--out", tmp_path / "anew", "optimiser.max_steps=1", "--resume")
    assert "anew has no checkpoint to resume from: the run starts anew" in anew.err


def test_a_folder_is_refused_before_the_target_is_loaded(
    run: Run, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.json").write_text("{}")
    monkeypatch.setattr("oneglance.targets.open_target", None)
    assert "already holds a run" in run("train", recipe, "--out", tmp_path / "run").error
    assert "a run with " in run("train", recipe, "--out", tmp_path / "run", "--resume").error


def test_an_interrupt_says_what_goes_on_and_from_where(
    run: Run, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from oneglance.train.trainer import HeadTrainer

    whole = HeadTrainer._step

    def step(self: HeadTrainer, index: int) -> object:
        if index == 3:
            raise KeyboardInterrupt
        return whole(self, index)

    monkeypatch.setattr(HeadTrainer, "_step", step)
    stopped = run("train", recipe, "--out", tmp_path / "run")
    assert stopped.code == 130
    assert "stopped after step 3 of 6; --resume goes on after step 3" in stopped.err
    monkeypatch.undo()
    went_on = run("train", recipe, "--out", tmp_path / "run", "--resume")
    assert "goes on after step 3 of 6" in went_on.err
    assert "step 2/6" not in went_on.err
    assert "step 6/6" in went_on.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["missing.yaml"], "cannot read recipe missing.yaml"),
        (["RECIPE", "optimiser.speed=1"], "optimiser.speed"),
        (["RECIPE", "data.train=nowhere"], "no traces at nowhere"),
        (["RECIPE", "data.heldout=${TRAIN}"], "keep the two sets disjoint"),
        (["RECIPE", "head.target_layer_ids=[1,99]"], "head.target_layer_ids asks for layer 99 of"),
        (["RECIPE", "head.mask_token_id=99999"], "head.mask_token_id is 99999; the target's embedding has ids 0 to"),
        (["RECIPE", "--tracker", "crystal-ball"], "'crystal-ball' is not installed"),
    ],
)
def test_bad_input_is_one_line(run: Run, recipe: Path, tmp_path: Path, words: list[str], message: str) -> None:
    filled = [w.replace("RECIPE", str(recipe)).replace("${TRAIN}", str(recipe.parent / "train")) for w in words]
    assert message in run("train", *filled, "--out", tmp_path / "run").error


def test_two_heads_that_learned_alike_are_compared_and_the_comparison_is_kept(
    run: Run, recipe: Path, tmp_path: Path
) -> None:
    out, page = tmp_path / "pair", tmp_path / "page.md"
    words = [
        "train-matched",
        recipe,
        "--out",
        out,
        "--sizes",
        "2,3",
        "--depths",
        "2",
        "--max-new-tokens",
        6,
        "--layers",
        "0,1,2",
    ]
    fewer = ["optimiser.max_steps=2", "schedule.evaluate_every=9", "schedule.tau_prompts=0"]
    done = run(*words, *fewer, "--second", recipe.parent / "train", "--json")
    assert done.code == 0, done.err
    result = done.json
    assert result == json.loads((out / "matched.json").read_text())
    assert {name: head["steps"] for name, head in result["heads"].items()} == {"block": 2, "eagle3": 2}
    arms = ["plain", "tree", "chain", "eagle3 chain 2"]
    first = [score for score in result["probe"] if score["corpus"] == str(recipe.parent / "heldout")]
    parts = [(None, 2), (None, 3), ("a", 2), ("b", 1)]
    assert [(s["task"], s["n"], s["arm"]) for s in first] == [(*part, arm) for part in parts for arm in arms]
    assert all(score["identical"] == score["n"] for score in result["probe"])
    assert result["manifest"]["recipe"]["name"] == "tiny"
    again = run(*words, *fewer, "--resume")
    assert again.code == 0
    assert "eagle3 chain 2" in again.out, "cut in two by a narrow column"
    kept = json.loads((out / "matched.json").read_text())
    assert kept["heads"]["block"] == {**result["heads"]["block"], "train_s": None}  # it was there already
    without = [word for word in words if word not in ("--layers", "0,1,2")]
    assert "--layers of train-matched" in run(*without[:3], tmp_path / "other", *without[4:], *fewer).error
    page.write_text("<!-- matched: written by the command -->\n<!-- /matched -->\n")
    assert run("report", out / "matched.json", "--out", page).code == 0
    assert "| b | eagle3 chain 2 | 1 |" in page.read_text()
    assert run("report", out / "matched.json", "--out", tmp_path / "page.html", "--strips", "none").code == 0


def test_the_best_checkpoint_becomes_the_head(run: Run, recipe: Path, text_target: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert run("train", recipe, "--out", out, "schedule.evaluate_every=2").code == 0
    result = run("select", out, "--json").json
    assert [c["step"] for c in result["candidates"]] == [2, 4, 6]
    for c in result["candidates"]:  # the definition, written out
        prefixes = [math.prod(c["top1"][: k + 1]) for k in range(15)]
        assert c["score"] == pytest.approx(sum(prefixes))
    assert result["score"] == max(c["score"] for c in result["candidates"])
    best = max((c["score"], c["step"]) for c in result["candidates"])
    assert (result["score"], result["step"]) == best  # of equals the newest
    assert load_checkpoint(str(out / "head")).card["training"]["step"] == result["step"]
    assert run("select", out, "--step", 4, "--json").json["step"] == 4
    assert load_checkpoint(str(out / "head")).card["training"]["step"] == 4
    assert "step 3 was not kept" in run("select", out, "--step", 3).error
    assert "has no checkpoint with held-out figures" in run("select", tmp_path / "nowhere").error
    for state in (out / "checkpoints").glob("*/state.json"):
        state.write_text(json.dumps({**json.loads(state.read_text()), "heldout_top1": [0.5, 0.25]}))
    shown = run("select", out)
    assert "no difference between the 3 checkpoints, so the newest is taken; step 6 is now" in shown.out

    words = ["eval-head", "--head", out / "head", "--target", text_target, "--traces", recipe.parent / "heldout"]
    scored = run(*words, "--budget", 7, "--json").json
    assert [(row["task"], row["n"]) for row in scored["tasks"]] == [("a", 2), ("b", 1), ("all", 3)]
    assert all(len(row["top1"]) == 15 and row["tau"] >= 1 for row in scored["tasks"])
    assert [row["ci_low"] is None for row in scored["tasks"]] == [False, True, False]
    assert "τ [95 %]" in run(*words, "--limit", 1).out
    assert f"give --target {text_target}, or traces of this one" in run(*words[:3], *words[5:]).error

    (tmp_path / "scores.json").write_text(json.dumps(scored))
    words = ["push", out / "head", "someone/head", "--licence", "apache-2.0", "--dry-run"]
    before = {path.name for path in (out / "head").iterdir()}
    dry = run(*words, "--scores", tmp_path / "scores.json", "--json").json
    assert dry["files"] == {path.name: path.stat().st_size for path in (out / "head").iterdir()} | {
        "README.md": len(dry["text"].encode())
    }
    card = dry["text"]
    front = yaml.safe_load(card.split("---")[1])
    assert front["license"] == "apache-2.0"
    row = scored["tasks"][0]
    assert f"| a | 2 | {row['tau']:.2f} | [{row['ci_low']:.2f}, {row['ci_high']:.2f}] |" in card
    assert "6 steps of this recipe" in card
    assert str(recipe.parent) not in card.split("## Training")[1].split("target:")[0]
    shown = run(*words).out
    for line in ("repository: someone/head (public if it is new)", "licence: apache-2.0", "τ: unknown; --scores"):
        assert line in shown
    assert "τ unknown: not measured" in shown
    assert "tiny-head, among your own repositories" in run(*words[:2], "tiny-head", *words[3:]).out
    assert "is no name of a repository" in run(*words[:2], "a/b/c", *words[3:]).error
    for part in (
        "Learned from 6 of the target's own answers (a 3, b 3)",
        "judged by 3 of the target's own answers (a 2",
    ):
        assert part in card
    for key, what in (("head_sha256", "another head"), ("target_geometry_sha256", "another target")):
        (tmp_path / "others.json").write_text(json.dumps({**scored, key: "0" * 64}))
        assert f"the scores are of {what}" in run(*words, "--scores", tmp_path / "others.json").error
    assert {path.name for path in (out / "head").iterdir()} == before
    assert "is not a file of scores" in run(*words, "--scores", recipe).error
    assert "there is no folder" in run("push", tmp_path / "no", "a/b", "--licence", "mit", "--dry-run").error


def test_a_push_without_a_network_is_one_line(
    run: Run, text_head: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(text_head, tmp_path / "head")
    for refusal in (no_answer()("no route"), ConnectionError("offline mode is enabled")):
        monkeypatch.setattr("huggingface_hub.HfApi.create_repo", Mock(side_effect=refusal))
        error = run("push", folder, "someone/head", "--licence", "mit", "--json").error
        assert f"cannot reach the hub to upload to someone/head ({refusal}); push again online" in error


def test_heads_are_listed_with_their_licence(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    rows = run("heads", "--json").json["heads"]
    assert {row["kind"] for row in rows} == {"block", "eagle2", "eagle3"}
    for row in rows:
        if row["source"] != "this project":
            assert (row["licence"], row["tau"]) == ("unknown", {})
    assert {row["target"] for row in run("heads", "--target", "vl-8b", "--json").json["heads"]} == {
        "Qwen/Qwen3-VL-8B-Instruct"
    }
    assert "no head is known for 'gpt-9'" in run("heads", "--target", "gpt-9").error
    shown = run("heads").out
    assert "unknown" in shown
    for row in rows:  # whole, on a narrow terminal and in a pipe, to copy and to find
        assert row["target"] in shown
        assert row["head"] in shown


def test_export_says_how_to_start_the_engine(run: Run, tmp_path: Path) -> None:
    result = run("export", "builtin:reader", "--format", "vllm", "--out", tmp_path / "out", "--target", "a/b")
    assert "vllm serve a/b --speculative-config" in result.out
    assert "unknown format 'gguf'" in run("export", "builtin:reader", "--format", "gguf", "--out", tmp_path / "x").error


def test_an_upload_holds_the_head_and_its_card_only(
    run: Run, text_head: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[dict[str, object]] = []

    class Hub:
        def create_repo(self, name: str, **options: object) -> SimpleNamespace:
            sent.append({"repo": name, **options})
            return SimpleNamespace(repo_id=name if "/" in name else f"me/{name}")

        def upload_folder(self, **options: object) -> str:
            sent.append(options)
            return "https://hub/commit/1"

    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    folder = shutil.copytree(text_head, tmp_path / "head")
    result = run("push", folder, "someone/head", "--licence", "mit", "--private", "--json").json
    assert result["uploaded"] == "https://hub/commit/1"
    assert sent[0] == {"repo": "someone/head", "private": True, "exist_ok": True}
    rescorer = ["rescorer.json", "rescorer.safetensors"]
    assert sent[1]["allow_patterns"] == ["config.json", "model.safetensors", *rescorer, "README.md"]
    assert run("push", folder, "head", "--licence", "mit", "--json").code == 0
    assert [call.get("repo_id") for call in sent] == [None, "someone/head", None, "me/head"]
    assert "the head carries no training card" in (folder / "README.md").read_text()
