"""The folder that the script makes of llama2.c's weights holds the model that was trained."""

import subprocess
import sys
from pathlib import Path

import pytest

from oneglance.decoder import Decoder
from oneglance.drafters.ngram import NgramDrafter, NgramSettings
from oneglance.targets import open_target
from oneglance.targets.chat import encode

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data" / "tinylm"
SCRIPT = ROOT / "scripts" / "text_target.py"


def convert(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *map(str, arguments)], capture_output=True, text=True, check=False)


@pytest.mark.skipif(not DATA.is_dir(), reason="the weights of stories260K are not here")
def test_stories_are_told(tmp_path: Path) -> None:
    """As llama2.c tells them: its own greedy text begins so. A wrong permutation or a wrong merge tells no story."""
    out = tmp_path / "stories"
    done = convert("llama2c", DATA / "stories260K.bin", DATA / "tok512.bin", out)
    assert done.returncode == 0, done.stderr
    target = open_target(str(out))
    assert (target.num_layers, target.hidden_size, target.vocab_size, target.context_length) == (5, 64, 512, 512)
    assert encode(target, "Once upon a time").token_ids == [1, 403, 407, 261, 378]
    text = "Zoë said: “naïve café”\n\tx = 1"
    assert target.tokenizer.decode(target.tokenizer.encode(text, add_special_tokens=False)) == text
    decoder = Decoder(target, NgramDrafter(target, NgramSettings(), budget=10))
    told = decoder.generate("Once upon a time", max_new_tokens=40)
    assert told.text.startswith(", there was a little girl named Lily. She loved to play outside in the park.")
    assert told.token_ids == decoder.plain().generate("Once upon a time", max_new_tokens=40).token_ids
    again = convert("llama2c", DATA / "stories260K.bin", DATA / "tok512.bin", out)
    assert again.returncode == 1
    assert "exists; choose another folder" in again.stderr


def test_damaged_weights_are_refused(tmp_path: Path) -> None:
    (tmp_path / "short.bin").write_bytes(b"\x40\0\0\0" * 7 + b"\0" * 64)
    done = convert("llama2c", tmp_path / "short.bin", tmp_path / "none.bin", tmp_path / "out")
    assert done.returncode == 1
    assert "download them again" in done.stderr
    assert not (tmp_path / "out").exists()
