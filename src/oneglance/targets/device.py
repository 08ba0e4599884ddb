"""Waiting for a device, whatever its kind."""

from __future__ import annotations

import torch


def synchronise(device: torch.device) -> None:
    """Wait for a device's kernels, so that their time is not taken for that of the next step. The accept rule, which
    copies from the rows, would wait for them anyway."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
