"""Of two that would write to one place, the second is refused before it reads a target; a trainer that is ended tidies
up."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from PIL import Image

from oneglance.commands.measuring import partial
from oneglance.files import sole_writer
from oneglance.train.reader.__main__ import main as train_reader

from .conftest import ASSETS, Run

SRC = ASSETS.parents[1]
RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.fixture
def hollow(text_target: Path, tmp_path: Path) -> Path:
    """A target without its weights: who reads it fails by them."""
    return Path(shutil.copytree(text_target, tmp_path / "hollow", ignore=shutil.ignore_patterns("*.safetensors")))


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    folder = tmp_path / "pages"
    folder.mkdir()
    for shade in (0, 255):
        Image.new("RGB", (32, 32), (shade,) * 3).save(folder / f"{shade}.png")
    return folder


COMMANDS = {  # command → its words besides --target and --out, and what it writes
    "run": ("PAGES --prompt hi", lambda out: out),
    "rounds": ("--tasks chartqa --limit 1", lambda out: out),
    "probe image": ("--tasks chartqa --limit 2", lambda out: out),
    "ablate layers": ("--tasks chartqa --limit 1", lambda out: out),
    "ablate conditioning": ("--tasks chartqa --limit 2", lambda out: out),
    "bench": ("--tasks chartqa --limit 1 --systems plain,ngram", partial),
    "cost": ("--tasks chartqa --limit 1 --systems ngram", partial),
    "worth-it": ("--images PAGES", partial),
    "sweep budget": ("--tasks chartqa --limit 1 --systems ngram --values 3", partial),
    "collect": ("--tasks chartqa --limit 1", lambda out: out),
    "train": ("RECIPE target=TARGET --device cpu", lambda out: out),
    "train-matched": ("RECIPE target=TARGET --device cpu", lambda out: out / "eagle3"),
    "fit-head": ("--images PAGES --device cpu", lambda out: out / "run"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_second_writer_is_refused_before_it_reads_a_target(
    run: Run, hollow: Path, pages: Path, tmp_path: Path, command: str
) -> None:
    words, place = COMMANDS[command]
    named = {"PAGES": str(pages), "RECIPE": str(RECIPES / "matched.yaml"), "target=TARGET": f"target={hollow}"}
    line = [*command.split(), *(named.get(word, word) for word in words.split())]
    line += ["--out", str(tmp_path / "out")] + ([] if "RECIPE" in words else ["--target", str(hollow)])
    with sole_writer(place(tmp_path / "out")):
        assert "another process is writing to" in run(*line).error
    again = run(*line)
    assert again.code == 2, "the target is bad input as well"
    assert "another process" not in again.err


@pytest.mark.parametrize("is_helper", [False, True])
def test_a_second_leader_of_the_built_in_target_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_helper: bool
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"out": str(tmp_path / "run"), "phases": []}))
    began: list[bool] = []
    monkeypatch.setattr("oneglance.train.reader.__main__.train", lambda *_, **__: began.append(True))
    monkeypatch.setattr(sys, "argv", ["reader", str(recipe), *["--helper"] * is_helper])
    with sole_writer(tmp_path / "run"):
        code = train_reader()
    err = capsys.readouterr().err
    assert (code, bool(began)) == ((0, True) if is_helper else (2, False))
    assert is_helper or ("another process is writing" in err and "--helper" in err and err.count("\n") == 1)
    assert train_reader() == 0, "the right ends with its process"


STARTS = """
import runpy, sys, time, types
def wait(*args, **kwargs):
    try:
        print("waiting", flush=True)
        time.sleep(60)
    finally:
        print("tidied up", flush=True)
sys.modules["{module}"] = types.SimpleNamespace({stub})
sys.argv = {argv!r}
runpy.run_module("{program}", run_name="__main__")
"""
PROGRAMS = {  # → the module that does the work, what stands in for it, and the command line
    "oneglance.train": ("oneglance.cli", "main=wait", ["train"]),
    "oneglance.train.reader": (
        "oneglance.train.reader.trainer",
        "Run=types.SimpleNamespace(start=wait)",
        ["train", "RECIPE"],
    ),
}


@pytest.mark.skipif(sys.platform == "win32", reason="has no SIGTERM")
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_trainer_that_is_ended_tidies_up(tmp_path: Path, program: str) -> None:
    """As ``oneglance`` does: a bar gives the cursor back, a lock goes."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"out": str(tmp_path / "run"), "phases": []}))
    module, stub, argv = PROGRAMS[program]
    named = [str(recipe) if word == "RECIPE" else word for word in argv]
    code = STARTS.format(module=module, stub=stub, argv=named, program=program)
    words, environment = [sys.executable, "-c", code], {**os.environ, "PYTHONPATH": str(SRC)}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "tidied up\n"
        assert process.wait() == 128 + 15
    assert not list(tmp_path.glob(".*.lock"))
