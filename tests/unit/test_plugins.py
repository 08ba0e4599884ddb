"""A drafter of another package: found by its entry point, in every place that takes a drafter by name."""

import re
import tomllib
from pathlib import Path

import pytest

from oneglance.bench.systems import prepare_systems
from oneglance.commands import checks
from oneglance.core import InputError
from oneglance.decoder import Decoder
from oneglance.drafters import DRAFTERS, installed, prepare, takes
from oneglance.drafters.plain import NoDrafter
from oneglance.testing import check_drafter, tiny_target
from oneglance.tree import chain

ROOT = Path(__file__).parents[2]
TOML = re.compile(r"^```toml\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """examples/own_drafter.py, installed with the entry point that docs/architecture.md shows."""
    info = tmp_path / "own_drafter-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-drafter\nVersion: 0.1\n")
    guide = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    project = tomllib.loads(next(block for block in TOML.findall(guide) if "own_drafter" in block))
    assert project["tool"]["setuptools"]["py-modules"] == [path.stem for path in ROOT.glob("examples/own_drafter.py")]
    ((name, value),) = project["project"]["entry-points"]["oneglance.drafters"].items()
    (tmp_path / "strict.py").write_text("def prepare(head, *, size=1):\n    raise AssertionError('never called')\n")
    (tmp_path / "silent.py").write_text("def prepare():\n    return lambda target, *, budget: None\n")
    (info / "entry_points.txt").write_text(
        f"[oneglance.drafters]\n{name} = {value}\nstrict = strict:prepare\nsilent = silent:prepare\n"
    )
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.syspath_prepend(tmp_path)


def test_it_is_a_drafter_and_exact() -> None:
    assert "bigrams" in installed()
    target = tiny_target("qwen3")
    drafted = Decoder(target, prepare("bigrams:length=4", None)(target, budget=3, policy=None, branch_k=None))
    plain, first, again = (
        decoder.generate("Say it.", max_new_tokens=24, logit_bias={65: 100.0})  # it repeats itself
        for decoder in (Decoder(target, NoDrafter()), drafted, drafted)
    )
    assert first.token_ids == again.token_ids == plain.token_ids
    assert again.tau is not None
    assert again.tau == first.tau > 1  # the drafter has not kept the first answer
    assert max(len(done.tree.token_ids) for done in again.rounds) == 3


def test_it_keeps_a_drafters_word() -> None:
    """What the guide tells an author to write as a test."""
    check_drafter("bigrams:length=4", tiny_target("qwen3"), budgets=(1, 6))


def test_it_is_a_system_of_bench() -> None:
    target = tiny_target("qwen3")
    bound = prepare_systems(["plain", "bigrams", "bigrams:length=4:budget=2"], None, budget=63)
    assert [bind(target).length for bind in list(bound.values())[1:]] == [8, 2]  # type: ignore[attr-defined]
    with pytest.raises(InputError, match=r"unknown system 'trigrams'; choose from .*bigrams"):
        prepare_systems(["trigrams"], None, budget=3)
    with pytest.raises(InputError, match="'bigrams' has no weights"):
        prepare_systems(["bigrams@somewhere"], None, budget=3)


def test_a_line_in_the_registry_is_a_system_of_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DRAFTERS, "silent", "silent:prepare")
    prepare_systems(["silent"], None, budget=3)
    with pytest.raises(InputError, match="unknown system 'block'"):  # it has systems of other names
        prepare_systems(["block"], None, budget=3)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bigrams:size=4", r"drafter 'bigrams': no setting 'size'; its settings: length$"),
        ("bigrams:length=none", "drafter 'bigrams': length: .* integer, .*got 'none'$"),
        ("strict:length=4", "drafter 'strict': got an unexpected keyword argument 'length'; .* strict:prepare"),
    ],
)
def test_a_setting_that_it_does_not_have(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        prepare(name, None)


def test_what_it_does_not_take_is_refused_by_name() -> None:
    assert takes("bigrams:length=4") == {"budget"}
    checks.check_drafter("bigrams", {"budget": "--budget"})
    with pytest.raises(InputError, match=r"--drafter bigrams takes no --head and no --tree;"):
        checks.check_drafter("bigrams", {"head": "--head", "tree": "--tree", "budget": "--budget"})
    with pytest.raises(InputError, match="'bigrams' has no weights; drop --head"):
        prepare("bigrams", "somewhere")
    target = tiny_target("qwen3")
    for options, message in (({"policy": chain}, "no tree policy"), ({"branch_k": 4}, "no branch_k")):
        for name in ("bigrams", "silent"):  # whether or not its factory says early what it binds
            with pytest.raises(InputError, match=f"drafter '{name}' takes {message}"):
                prepare(name, None)(target, budget=3, **options)
    assert takes("silent") == {"policy", "budget", "branch_k"}
