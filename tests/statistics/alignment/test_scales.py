"""A parameter of the matching norm weighs as much as the activation."""

import pytest
import torch
from torch import nn

from widthlab.statistics.alignment.pooling import Pooling
from widthlab.statistics.alignment.scales import matching_norms


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 5, 3, padding=1)

    def forward(self, x):
        return self.conv(x).mean(dim=(2, 3))


@pytest.mark.parametrize("how", ["sum", "mean", "whole"])
def test_adding_b_changes_the_activation_by_its_own_size(how):
    torch.manual_seed(0)
    model = Images()
    x = torch.randn(12, 1, 4, 6)
    pooling = Pooling(how)
    batches = [(x[:5], None), (x[5:], None)]
    norm = matching_norms(model, {"conv": pooling}, batches)["conv"]
    h = model.conv(x).detach()
    b = torch.randn(1, pooling.features(h.shape))
    added = pooling.spread((norm / b.norm() * b).expand(12, -1), h.shape)
    assert added.square().sum().item() == pytest.approx(h.square().sum().item(), rel=1e-5)


def test_what_is_masked_weighs_nothing():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(7, 3))
    tokens = torch.randint(0, 7, (4, 5))
    mask = torch.arange(5)[None] < torch.tensor([5, 3, 1, 4])[:, None]
    norm = matching_norms(model, "0", [(tokens, mask)], mask=lambda batch: batch[1])["0"]
    h = model(tokens).detach()[mask]
    assert norm == pytest.approx(h.square().sum(dim=1).mean().sqrt().item(), rel=1e-6)
