"""Train heads in this process and its siblings: ``accelerate launch tests/train/spread.py FOLDER``.

Each ``FOLDER/*.recipe.json`` is trained into ``FOLDER/two/NAME``. With ``NAME.stop`` beside it, which holds a number of
steps, it is left after them, as a killed run is, and gone on with. Names that hold "chunked" see few blocks at a time.
"""

import json
import sys
from pathlib import Path

import torch

from oneglance.testing import tiny_target
from oneglance.train import step
from oneglance.train.recipe import HeadRecipe
from oneglance.train.trainer import HeadTrainer

if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, target, chunk = Path(sys.argv[1]), tiny_target("qwen3_vl"), step.CHUNK
    for path in sorted(folder.glob("*.recipe.json")):
        name = path.name.removesuffix(".recipe.json")
        step.CHUNK = 4 if "chunked" in name else chunk
        recipe, stop = HeadRecipe(**json.loads(path.read_text())), folder / f"{name}.stop"
        if stop.is_file():
            reports = HeadTrainer(recipe, target, folder / "two" / name).run()
            while next(reports).step < int(stop.read_text()):
                pass
            reports.close()
        trainer = HeadTrainer(recipe, target, folder / "two" / name)
        list(trainer.run(resume=stop.is_file()))
        kept = sum(p.to_local().numel() for p in trainer.head.parameters())
        (folder / "two" / name / f"kept-{trainer.accelerator.process_index}").write_text(str(kept))
    torch.distributed.destroy_process_group()
