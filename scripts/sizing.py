"""How large a data set and a training run get: memory, time and storage for 1, 8 and 64 GPUs and 10⁶ to 10⁸ prompts.

    python scripts/sizing.py            # the tables of docs/scale.md
    python scripts/sizing.py --write    # put them there

Nothing here is measured. Every figure follows from the assumptions below by the arithmetic of this file, so that a
figure of your own can be put in its place: change a line and run it again. The standard library is enough.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "scale.md"
MARK = "<!-- made by scripts/sizing.py -->"
END = "<!-- end -->"
GPUS = (1, 8, 64)
PROMPTS = (10**6, 10**7, 10**8)
GPUS_A_NODE = 8


@dataclass(frozen=True)
class Assumptions:
    """One target, one head and one kind of GPU; the comment after a line is how the table names it."""

    target_params: float = 8.8e9  # weights of the target (Qwen3-VL-8B)
    target_layers: int = 36  # its decoder layers
    hidden: int = 4096  # its hidden size H
    kv_width: int = 1024  # width of its keys in a layer (8 heads of 128)
    kept_layers: int = 5  # layers that the head reads, K
    head_params: float = 1.05e9  # weights of the head
    head_layers: int = 5  # its layers
    block: int = 16  # slots of its block, B
    anchors: int = 512  # blocks that are trained in one pass of a row
    prompt_tokens: int = 700  # tokens of a prompt, its image counted
    answer_tokens: int = 256  # tokens of an answer
    image_bytes: int = 250_000  # bytes of an image on disk
    gpu_bandwidth: float = 3.35e12  # bytes/s of memory traffic a GPU
    gpu_flops: float = 989e12  # bfloat16 operations/s a GPU
    bandwidth_share: float = 0.6  # share of that traffic that decoding reaches
    flops_share: float = 0.35  # share of those operations that a long pass reaches
    accepted: float = 1.0  # tokens a pass of the target (more with a head)
    requests: int = 64  # answers in flight, a GPU
    disk_bandwidth: float = 2e9  # bytes/s that a node reads from shared storage
    files_rate: float = 2000.0  # images/s that a node opens and decodes
    days_between_failures: float = 180.0  # days between failures of one GPU's process

    @property
    def row_tokens(self) -> int:
        return self.prompt_tokens + self.answer_tokens


@dataclass(frozen=True)
class Collecting:
    """Answers of the target, from one server a GPU."""

    by: Assumptions

    @property
    def cache_bytes(self) -> float:
        """Keys and values of one request at its longest, bfloat16."""
        return 2 * 2 * self.by.kv_width * self.by.target_layers * self.by.row_tokens

    @property
    def memory(self) -> float:
        return 2 * self.by.target_params + self.by.requests * self.cache_bytes

    @property
    def pass_s(self) -> float:
        """One decoding pass of all requests: weights and caches are read once, or arithmetic takes longer."""
        traffic = 2 * self.by.target_params + self.by.requests * self.cache_bytes
        reading = traffic / (self.by.bandwidth_share * self.by.gpu_bandwidth)
        computing = 2 * self.by.target_params * self.by.requests / (self.by.flops_share * self.by.gpu_flops)
        return max(reading, computing)

    @property
    def prefill_s(self) -> float:
        """Of one prompt."""
        return 2 * self.by.target_params * self.by.prompt_tokens / (self.by.flops_share * self.by.gpu_flops)

    @property
    def prompts_a_second(self) -> float:
        """Of one GPU: its requests in turn are prefilled and decoded."""
        decoding = self.by.answer_tokens / self.by.accepted * self.pass_s / self.by.requests
        return 1 / (self.prefill_s + decoding)

    @property
    def tokens_a_second(self) -> float:
        return self.prompts_a_second * self.by.answer_tokens


@dataclass(frozen=True)
class Training:
    """A head beside its frozen target, whose features are computed on the way and thrown away."""

    by: Assumptions

    def memory(self, gpus: int, sharded: bool) -> float:
        """Bytes a GPU: target in bfloat16; head in float32 with gradient and two moments; activations of one row."""
        weights = 2 * self.by.target_params
        states = 16 * self.by.head_params / (gpus if sharded else 1)
        features = 2 * self.by.kept_layers * self.by.hidden * self.by.row_tokens
        rows = self.by.anchors * self.by.block
        layers = self.by.head_layers * rows * 34 * self.by.hidden  # bytes of a layer's activations a row
        return weights + states + features + layers

    @property
    def rows_a_second(self) -> float:
        """Of one GPU: a pass of the target over the row, and forward and backward of the head over its blocks."""
        target = 2 * self.by.target_params * self.by.row_tokens
        head = 6 * self.by.head_params * (self.by.row_tokens + self.by.anchors * self.by.block)
        return self.by.flops_share * self.by.gpu_flops / (target + head)


@dataclass(frozen=True)
class Storage:
    """Bytes of a data set."""

    by: Assumptions

    @property
    def trace(self) -> float:
        """One line of a trace: ids of prompt and answer as JSON numbers, about 7 bytes each, and a frame."""
        return 7 * self.by.row_tokens + 300

    @property
    def features(self) -> float:
        """One row's kept layers, bfloat16."""
        return 2 * self.by.kept_layers * self.by.hidden * self.by.row_tokens


def size(count: float) -> str:
    for unit, scale in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count / 1e3:.3g} kB"


def duration(seconds: float) -> str:
    for unit, scale in (("years", 365 * 86400.0), ("days", 86400.0), ("hours", 3600.0)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 60:.3g} minutes"


def power(count: int) -> str:
    return f"10^{len(str(count)) - 1}"


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def assumptions_table(by: Assumptions) -> str:
    names = comments()
    shown = [[names[field.name], f"{getattr(by, field.name):,.6g}"] for field in fields(by)]
    return table(["assumed", "value"], shown)


def comments() -> dict[str, str]:
    """What stands after each assumption in this file, so that table and source cannot differ."""
    found = {}
    for line in Path(__file__).read_text(encoding="utf-8").splitlines():
        name, colon, rest = line.strip().partition(": ")
        if line.startswith("    ") and colon and "  # " in rest and name.isidentifier():
            found.setdefault(name, rest.split("  # ", 1)[1])
    return found


def collecting_table(by: Assumptions) -> str:
    one = Collecting(by)
    rows = []
    for gpus in GPUS:
        rate = one.prompts_a_second * gpus
        times = [duration(prompts / rate) for prompts in PROMPTS]
        rows.append([str(gpus), size(one.memory), f"{one.tokens_a_second * gpus:,.3g}", f"{rate:,.3g}", *times])
    head = ["GPUs", "memory a GPU", "answer tokens/s", "prompts/s", *(f"{power(p)} prompts" for p in PROMPTS)]
    return table(head, rows)


def training_table(by: Assumptions) -> str:
    one = Training(by)
    rows = []
    for gpus in GPUS:
        rate = one.rows_a_second * gpus
        times = [duration(prompts / rate) for prompts in PROMPTS]
        memory = [size(one.memory(gpus, sharded)) for sharded in (False, True)]
        rows.append([str(gpus), *memory, f"{rate:,.3g}", *times])
    head = ["GPUs", "memory a GPU, copies", "memory a GPU, sharded", "rows/s"]
    return table([*head, *(f"one epoch of {power(p)}" for p in PROMPTS)], rows)


def storage_table(by: Assumptions) -> str:
    one = Storage(by)
    rows = [
        [f"{power(p)} prompts", size(p * one.trace), size(p * by.image_bytes), size(p * one.features)] for p in PROMPTS
    ]
    return table(["", "traces", "images", "features, if all were kept"], rows)


def limits_table(by: Assumptions) -> str:
    """Where a run meets something other than its GPUs."""
    training, storage = Training(by), Storage(by)
    rows = []
    for gpus in GPUS:
        nodes = -(-gpus // GPUS_A_NODE)
        rate = training.rows_a_second * gpus / nodes  # rows/s of a node
        rows.append(
            [
                str(gpus),
                f"{by.files_rate / rate:.3g} ×",
                f"{by.disk_bandwidth / (rate * by.image_bytes):.3g} ×",
                f"{by.disk_bandwidth / (rate * storage.features):.3g} ×",
                duration(86400 * by.days_between_failures / gpus),
            ]
        )
    head = ["GPUs", "images opened", "images read", "features read from disk", "a process fails every"]
    return table(head, rows)


def page(by: Assumptions) -> str:
    parts = {
        "Collecting answers": collecting_table(by),
        "Training a head": training_table(by),
        "Storage": storage_table(by),
        "Room before something else is the limit": limits_table(by),
        "Assumptions": assumptions_table(by),
    }
    return "\n\n".join(f"### {title}\n\n{text}" for title, text in parts.items())


def written(text: str, made: str) -> str:
    """A page with the part between its marks replaced."""
    before, _, rest = text.partition(MARK)
    _, _, after = rest.partition(END)
    return f"{before}{MARK}\n\n{made}\n\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/scale.md")
    options = parser.parse_args()
    made = page(Assumptions())
    if options.write:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), made), encoding="utf-8")
    else:
        print(made)


if __name__ == "__main__":
    main()
