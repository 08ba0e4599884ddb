"""What all tests share: hypothesis profiles, and one thread (the models are tiny)."""

import os
import tempfile

import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
os.environ["ONEGLANCE_CACHE"] = tempfile.mkdtemp(prefix="oneglance-tests-")  # not the user's measured costs

# `make test` is the same every time; `make fuzz` looks elsewhere each time
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "ci", parent=settings.get_profile("default"), derandomize=True, max_examples=150, print_blob=True
)
settings.register_profile("fuzz", parent=settings.get_profile("default"), max_examples=2000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
