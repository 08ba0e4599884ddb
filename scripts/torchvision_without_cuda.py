"""Make torchvision from PyPI importable beside a CPU build of torch, in the environment of the Python that runs this.

Its wheel is built for CUDA; without its library the operators that it registers fakes for do not exist and the import
fails. Their schemas are all that image transforms need. ``make test-vllm`` uses this, the package never.
"""

import sysconfig
from pathlib import Path

SHIM = """
import importlib.abc
import sys


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            library = torch.library.Library("torchvision", "DEF")
            for operator in ("nms", "qnms"):
                library.define(operator + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            sys.modules["_torchvision_without_cuda"].keep = library
        return None


sys.meta_path.insert(0, Finder())
"""


def main() -> None:
    """Write the module and the line that imports it at every start."""
    folder = Path(sysconfig.get_path("purelib"))
    (folder / "_torchvision_without_cuda.py").write_text(SHIM)
    (folder / "_torchvision_without_cuda.pth").write_text("import _torchvision_without_cuda\n")


if __name__ == "__main__":
    main()
