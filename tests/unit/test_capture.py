"""Features of a pass are what its modules take and give, and capturing them leaves no trace."""

import pytest
import torch
from torch import Tensor, nn

from oneglance.targets.capture import captured_features


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(self.first(x))
        return out


def test_captured_features_in_the_order_of_the_points() -> None:
    module, x = Two(), torch.randn(1, 3, 2)
    points = [(module.second, "output"), (module.first, "input"), (module.second, "input")]
    with captured_features(points) as features:
        out = module(x)
    assert torch.equal(features[0], out)
    assert torch.equal(features[1], x)
    assert torch.equal(features[2], module.first(x))
    before = list(features)
    module(x + 1)
    assert all(a is b for a, b in zip(features, before, strict=True)), "the modules are as before"


def test_modules_are_as_before_after_a_failure() -> None:
    module = Two()
    with pytest.raises(RuntimeError), captured_features([(module.first, "input"), (module.second, "output")]):
        module(torch.randn(1, 3, 5))
    assert "forward" not in vars(module.first)
    assert "forward" not in vars(module.second)


def test_a_forward_of_somebody_else_is_called_and_stays() -> None:
    """accelerate moves the inputs of a module to its device that way."""
    module, x = Two(), torch.randn(1, 3, 2)
    ordinary = module.second.forward
    module.second.forward = doubled = lambda x: 2 * ordinary(x)
    with captured_features([(module.second, "output")]) as features:
        out = module(x)
    assert torch.equal(out, 2 * ordinary(module.first(x)))
    assert torch.equal(features[0], out)
    assert vars(module.second)["forward"] is doubled


def test_a_layer_may_be_kept_twice_and_returns_tuples() -> None:
    class Tuple(nn.Module):
        def forward(self, *, hidden_states: Tensor) -> tuple[Tensor, None]:
            return hidden_states + 1, None

    module, x = Tuple(), torch.zeros(1, 2, 3)
    with captured_features([(module, "input"), (module, "output"), (module, "input")]) as features:
        module(hidden_states=x)
    assert [float(f.sum()) for f in features] == [0.0, 6.0, 0.0]
