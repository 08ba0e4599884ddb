"""Files that are taken from under a run: it says so at once, and the next one does what is missing."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oneglance.bench.journal import journal
from oneglance.core import InputError
from oneglance.files import Unchanged
from oneglance.targets.base import Target

from .conftest import Run

COMMANDS = {  # → how it names its prompts, its --out in a folder, and the lines that it writes there
    "run": ([], "rows.jsonl", "rows.jsonl"),
    "collect": (["--prompts"], "", "traces.jsonl"),
    "rounds": (["--prompts"], "log.jsonl", "log.jsonl"),
    "ablate layers": (["--prompts"], "log.jsonl", "log.jsonl"),
    "bench": (["--systems", "plain,tree", "--warmup", "0", "--prompts"], "b.json", "b.json.records"),
}
HARMS: dict[str, Callable[[Path], Any]] = {
    "the folder goes": lambda lines: shutil.rmtree(lines.parent),
    "the lines go": Path.unlink,
    "another writes": lambda lines: lines.write_text(lines.read_text() + "{}\n"),
}


def count(lines: Path) -> int:
    return lines.read_text().count("\n") if lines.is_file() else 0


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_run_whose_files_go_ends_with_an_error_and_leaves_nothing_odd(
    run: Run,
    text_target: Path,
    text_head: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    harm: str,
) -> None:
    naming, own, beneath = COMMANDS[command]
    prompts, folder = tmp_path / "prompts.jsonl", tmp_path / "runs"
    prompts.write_text("".join(json.dumps({"id": str(i), "prompt": f"prompt {i}"}) + "\n" for i in range(3)))
    lines = folder / beneath
    words = [*command.split(), *naming, prompts, "--out", folder / own, "--target", text_target, "--head", text_head]
    words += ["--max-new-tokens", "6", "--threads", "1"]
    prefill, harmed = Target.prefill, []

    def harming(self: Target, *args: Any, **options: Any) -> Any:
        if count(lines) and not harmed:
            HARMS[harm](lines)
            harmed.append((count(lines), folder.exists()))
        return prefill(self, *args, **options)

    monkeypatch.setattr(Target, "prefill", harming)
    error = run(*words, "--json").err.splitlines()[-1]
    assert error.startswith(f"error: {lines} was removed or changed by something else"), error
    assert "run the same command again" in error
    assert (count(lines), folder.exists()) == harmed[0], "it wrote on"
    if harm == "another writes":
        return
    again = run(*words, "--json")
    assert again.code == 0, again
    assert {str(i) for i in range(3)} <= set(names(folder / own if command == "bench" else lines))


def names(path: Path) -> list[str]:
    """Ids of the prompts in a file, whatever command wrote it."""
    text = path.read_text()
    rows = json.loads(text)["records"] if path.name == "b.json" else map(json.loads, text.splitlines())
    return [row["id"] if "id" in row else row["prompt"] for row in rows]


@pytest.mark.parametrize(("gone", "named"), [("log.run.json", r"log\.run\.json"), ("", "log")])
def test_what_goes_after_the_last_line_is_noticed_as_well(tmp_path: Path, gone: str, named: str) -> None:
    folder = tmp_path / "runs"

    def run() -> None:
        with journal(folder / "log", {}) as log:
            log.describe({}, {})
            log.append([{"x": 1}])
            if gone:
                (folder / gone).unlink()
            else:
                shutil.rmtree(folder)

    with pytest.raises(InputError, match=f"{named} was removed"):
        run()
    assert folder.exists() == bool(gone)


def test_files_may_come_and_a_run_may_change_its_own(tmp_path: Path) -> None:
    files = Unchanged(tmp_path / "a", tmp_path / "b")
    files.check()
    with files.changing():
        (tmp_path / "a").write_text("1")
    with files.changing():
        (tmp_path / "a").unlink()
    files.check()
