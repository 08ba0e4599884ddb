"""Objective weights against their definitions, written out slot by slot."""

import math

import pytest
import torch

from oneglance.train.objectives import OBJECTIVES, dpace, offsets, survival
from oneglance.train.step import slot_losses


def case() -> tuple[torch.Tensor, torch.Tensor]:
    q = torch.tensor([[0.9, 0.5, 0.25, 0.8], [0.3, 0.6, 0.7, 0.1]])
    hidden = torch.tensor([[True, True, True, True], [False, True, True, False]])
    return -q.log(), hidden


def test_offsets_count_from_the_first_hidden_slot() -> None:
    _, hidden = case()
    assert offsets(hidden)[hidden].tolist() == [0, 1, 2, 3, 0, 1]


def test_coverage_decays_by_offset() -> None:
    nll, hidden = case()
    weights = OBJECTIVES["coverage"]().weigh(nll, hidden)
    assert weights.tolist() == [
        pytest.approx([1.0, 0.8, 0.64, 0.512]),
        pytest.approx([0.0, 1.0, 0.8, 0.0]),
    ]


def test_exponential_decay_matches_its_gamma() -> None:
    nll, hidden = case()
    weights = OBJECTIVES["exp_decay"](gamma=7.0).weigh(nll, hidden)
    assert weights[0].tolist() == pytest.approx([math.exp(-k / 7) for k in range(4)])


def test_survival_is_the_chance_to_be_reached() -> None:
    nll, hidden = case()
    s = [0.95, 0.75, 0.625]
    assert survival(nll, hidden)[0].tolist() == pytest.approx([1.0, s[0], s[0] * s[1], s[0] * s[1] * s[2]])
    assert survival(nll, hidden)[1].tolist() == pytest.approx([0.0, 1.0, 0.8, 0.0])


def test_dpace_is_the_gradient_of_the_expected_accepted_length() -> None:
    nll, hidden = case()
    log_s = torch.log(0.5 * torch.exp(-nll) + 0.5).requires_grad_(True)
    expected = sum(
        torch.exp(log_s[row, slots[: k + 1]].sum())
        for row in range(2)
        for slots in [hidden[row].nonzero()[:, 0]]
        for k in range(len(slots))
    )
    (gradient,) = torch.autograd.grad(expected, log_s)
    assert torch.allclose(dpace(nll, hidden), gradient * hidden, atol=1e-6)


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_weights_are_detached_and_zero_where_nothing_is_hidden(name: str) -> None:
    nll, hidden = case()
    nll.requires_grad_(True)
    weights = OBJECTIVES[name]().weigh(nll, hidden)
    assert not weights.requires_grad
    assert (weights[~hidden] == 0).all()
    assert (weights[hidden] > 0).all()


def test_chunked_losses_and_gradients_equal_whole_ones() -> None:
    torch.manual_seed(0)
    lm_head = torch.nn.Linear(8, 11, bias=False)
    labels = torch.randint(-1, 11, (300, 3))
    labels[labels < 0] = -100
    states = torch.randn(300, 3, 8, requires_grad=True)
    chunked, predicted = slot_losses(states, labels, lm_head)
    whole = torch.nn.functional.cross_entropy(
        lm_head(states).flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="none"
    ).view(300, 3)
    assert torch.allclose(chunked, whole, atol=1e-6)
    assert torch.equal(predicted, lm_head(states).argmax(-1))
    first = torch.autograd.grad(chunked.sum(), states, retain_graph=True)[0]
    assert torch.allclose(first, torch.autograd.grad(whole.sum(), states)[0], atol=1e-6)


def test_soft_labels_reach_their_minimum_at_the_teacher() -> None:
    torch.manual_seed(0)
    lm_head = torch.nn.Linear(8, 11, bias=False)
    teacher = torch.randn(4, 3, 8)
    labels = torch.zeros(4, 3, dtype=torch.long)
    own, _ = slot_losses(teacher.clone(), labels, lm_head, teacher)
    other, _ = slot_losses(teacher + 0.1 * torch.randn_like(teacher), labels, lm_head, teacher)
    assert (other > own).all()
