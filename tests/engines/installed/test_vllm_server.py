"""The built-in model on a real vLLM, with and without its heads: same text, as many accepted tokens as here.

VLLM_PROMPTS pages (default 50) go to every server. EAGLE3_HEAD names an EAGLE-3 head for the built-in target, as
``oneglance train recipes/reader-eagle3.yaml`` makes one; without it that part is skipped.
"""

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import oneglance
from oneglance.cli import main
from oneglance.drafters.checkpoint import BUILTIN as HEADS
from oneglance.engines import Launch, depth_of, vllm
from oneglance.engines.arms import serving
from oneglance.engines.client import Answer, Client, Counters
from oneglance.engines.hooks import problems
from oneglance.targets import BUILTIN as TARGETS
from oneglance.tasks import TASKS, Example, draw
from oneglance.train.export import export

PROMPTS = int(os.environ.get("VLLM_PROMPTS", "50"))
EAGLE3 = os.environ.get("EAGLE3_HEAD")
NEW = 64
CPU = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}
FLAGS = ("--dtype", "float32", "--enforce-eager", "--max-model-len", "1024")
TARGET, HEAD = str(TARGETS["builtin:reader"]), str(HEADS["builtin:reader"])
WHOLE = Launch(TARGET, HEAD, depth_of(HEAD, None), extra=FLAGS)
BLOCKS = [WHOLE, replace(WHOLE, tensor_parallel=2)]
SHORT = [replace(WHOLE, depth=depth) for depth in (1, 3, 7)]
CHAINS = (1, 2, 3, 5, 7)  # Table 6's knob


@cache
def examples() -> tuple[Example, ...]:
    """Suite pages as drawn: nothing resizes them, since resamplers differ."""
    names = list(TASKS)
    return tuple(draw(names[i % len(names)], i // len(names), split="eval") for i in range(PROMPTS))


@dataclass(frozen=True)
class Served:
    """What a server gave, and what it counted meanwhile."""

    texts: list[str]
    token_ids: list[list[int]]
    counted: Counters

    def counts(self) -> dict[str, Any]:
        return {"prompts": len(self.texts), **asdict(self.counted), "per_draft": self.counted.accepted_per_draft}


def plain_words() -> list[str]:
    words = vllm.command(WHOLE)
    at = words.index("--speculative-config")
    return words[:at] + words[at + 2 :]


@contextmanager
def started(words: list[str], log: Path) -> Iterator[Client]:
    with serving(words, log, environment=CPU) as client:
        yield client
    assert "oneglance leaves vLLM as it is" not in log.read_text(encoding="utf-8")


def ask_all(client: Client) -> list[Answer]:
    return [client.ask(one.prompt, images=[one.image], max_new_tokens=NEW) for one in examples()]


@cache
def drafted(launch: Launch, folder: Path) -> Served:
    """Answers with a head."""
    name = f"{launch.drafter}-{launch.depth}-{launch.tensor_parallel}-{Path(launch.head).name}"
    with started(vllm.command(launch), folder / f"{name}.log") as client:
        before = client.counters()
        found = ask_all(client)
        after = client.counters()
    assert before is not None
    assert after is not None
    return Served([one.text for one in found], [list(one.token_ids or ()) for one in found], after - before)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("servers")


@pytest.fixture(scope="session")
def plain(folder: Path) -> list[Answer]:
    with started(plain_words(), folder / "plain.log") as client:
        return ask_all(client)


@pytest.fixture(scope="session")
def ours() -> list[oneglance.Generation]:
    """Without the rescorer, which vLLM cannot use."""
    decoder = oneglance.load(dtype="float32", drafter="block:rescorer=none", tree="chain", budget=WHOLE.depth)
    return [decoder.generate(one.prompt, images=[one.image], max_new_tokens=NEW) for one in examples()]


def named(launch: Launch) -> str:
    return f"depth {launch.depth}, TP {launch.tensor_parallel}"


def test_the_plugins_hooks_are_there() -> None:
    assert problems(vllm.HOOKS) == []


def test_plain_text_is_ours(plain: Any, ours: Any) -> None:
    assert [list(answer.token_ids) for answer in plain] == [generation.token_ids for generation in ours]
    assert [answer.text for answer in plain] == [generation.text for generation in ours]


@pytest.mark.parametrize("launch", [*BLOCKS, *SHORT], ids=named)
def test_text_is_that_of_plain_vllm(launch: Launch, folder: Path, plain: Any, record_property: Any) -> None:
    found = drafted(launch, folder)
    same = sum(a == b.text for a, b in zip(found.texts, plain, strict=True))
    record_property("counts", {**found.counts(), "same_text_as_plain": same})
    assert same == len(plain)
    assert found.counted.accepted > 0


@pytest.mark.parametrize("launch", BLOCKS, ids=named)
def test_as_many_tokens_are_accepted_as_here(launch: Launch, folder: Path, ours: Any, record_property: Any) -> None:
    """Shows the feature point, the draft slots and the norms of the context: with one wrong, text stays and this falls.

    A server counts accepted tokens before it cuts an answer, so ours are those of the verdicts. A shorter block is
    another pass there and the same one here, so that only whole blocks compare.
    """
    counted = drafted(launch, folder).counted
    rounds = [done for generation in ours for done in generation.rounds if len(done.tree)]
    accepted = sum(done.verdict.num_accepted for done in rounds)
    record_property("here", {"drafts": len(rounds), "accepted": accepted, "per_draft": accepted / len(rounds)})
    assert counted.drafts == pytest.approx(len(rounds), rel=0.05)
    assert counted.accepted_per_draft == pytest.approx(accepted / len(rounds), rel=0.05)


@pytest.mark.skipif(EAGLE3 is None, reason="EAGLE3_HEAD names no head; recipes/reader-eagle3.yaml trains one")
@pytest.mark.parametrize("passes", CHAINS)
def test_an_eagle3_head_in_chains_of_many_lengths(
    passes: int, folder: Path, plain: Any, record_property: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A longer chain accepts no less a round, and none changes the text."""
    exported = folder / "eagle3"
    if not exported.exists():
        export(str(EAGLE3), exported, "vllm", dtype="float32")
    found = drafted(replace(WHOLE, head=str(exported), depth=passes, drafter="eagle3"), folder)
    same = sum(a == b.text for a, b in zip(found.texts, plain, strict=True))
    record_property("counts", {**found.counts(), "same_text_as_plain": same})
    assert same == len(plain)
    assert found.counted.accepted > 0
    assert found.counted.proposed == passes * found.counted.drafts


@pytest.mark.parametrize("layout", ["speculators", "specforge"])
def test_a_converted_head_serves(layout: str, folder: Path, plain: Any, record_property: Any) -> None:
    """It drafts as the original one: the same counts, so the same layers were read."""
    exported = folder / layout
    export(HEAD, exported, layout, dtype="float32", target=TARGET)
    found = drafted(replace(WHOLE, head=str(exported)), folder)
    record_property("counts", found.counts())
    assert found.texts == [answer.text for answer in plain]
    assert found.counted.accepted_per_draft == pytest.approx(
        drafted(WHOLE, folder).counted.accepted_per_draft, rel=0.02
    )


def test_bench_reads_a_servers_counters(folder: Path, capsys: pytest.CaptureFixture[str], record_property: Any) -> None:
    with started(vllm.command(WHOLE), folder / "bench.log") as client:
        url = client.server.url
        words = ["bench", "--systems", f"plain,server@{url}", "--tasks", "docvqa", "--limit", "3", "--warmup", "0"]
        assert main([*words, "--max-new-tokens", str(NEW), "--dtype", "float32", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    (row,) = (row for row in rows if row["system"] == f"server@{url}")
    record_property("row", {key: row[key] for key in ("n", "identical", "tau")})
    assert (row["n"], row["identical"]) == (3, 3)
    assert row["tau"] > 2


def test_one_of_two_servers_is_killed_while_it_collects(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is lost and nothing is doubled."""
    words = [
        "collect",
        "--tasks",
        "textvqa",
        "--limit",
        "24",
        "--max-new-tokens",
        "24",
        "--json",
        "--out",
        str(tmp_path),
    ]
    traces = tmp_path / "traces.jsonl"
    with (
        started(plain_words(), folder / "other.log") as other,
        ThreadPoolExecutor(1) as pool,
    ):
        with started(plain_words(), folder / "mortal.log") as mortal:
            urls = ["--url", mortal.server.url, "--url", other.server.url, "--concurrency", "2"]
            running = pool.submit(main, [*words, *urls])
            while not traces.exists() or traces.read_text(encoding="utf-8").count("\n") < 3:
                assert not running.done(), "it was killed too late to matter"
                time.sleep(0.05)
        assert running.result() == 0
    ids = [json.loads(line)["id"] for line in traces.read_text(encoding="utf-8").splitlines()]
    report = json.loads(capsys.readouterr().out)
    assert len(ids) == len(set(ids)) == 24 - sum(report["skipped"].values())  # an empty answer is counted, and no trace
    assert report["done"] == 24
    assert set(report["skipped"]) <= {"empty"}
