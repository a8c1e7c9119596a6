"""What muP is for: one step moves the features equally far at every width."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from widthlab import specs
from widthlab.models import build

WIDTHS = (64, 128, 256, 512, 1024)
SEEDS = 12


def _feature_update(architecture, width, optimiser, rate):
    """Root-mean-square change of the last signal under one full-batch step, over seeds."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(32, 20)).astype(np.float32))
    y = torch.from_numpy(rng.integers(0, 5, size=32))
    changes = []
    for seed in range(SEEDS):
        network = specs.Network(architecture=architecture, width=width, depth=2)
        model = build(network, (20,), 5, seed)
        last = dict(model.named_modules())[model.signals[-1]]
        seen = []
        last.register_forward_hook(lambda module, args, out, seen=seen: seen.append(out.detach()))
        factors = model.learning_rate_factors(optimiser)
        groups = [
            {"params": [p], "lr": rate * factors[name]} for name, p in model.named_parameters()
        ]
        step = torch.optim.Adam(groups) if optimiser == "adam" else torch.optim.SGD(groups)
        torch.nn.functional.cross_entropy(model(x), y).backward()
        step.step()
        model(x)
        changes.append(float((seen[1] - seen[0]).square().mean()))
    return np.sqrt(np.mean(changes))


@pytest.mark.parametrize("architecture", [specs.MLP, specs.ResidualMLP])
@pytest.mark.parametrize(("optimiser", "rate"), [("sgd", 0.1), ("adam", 0.001)])
def test_mup_feature_update_keeps_its_size(architecture, optimiser, rate):
    spec = architecture(parameterisation="mup", bias=True)
    updates = [_feature_update(spec, width, optimiser, rate) for width in WIDTHS]
    assert max(updates) / min(updates) < 2.0


@pytest.mark.parametrize("architecture", [specs.MLP, specs.ResidualMLP])
def test_ntk_feature_update_shrinks_as_the_square_root_of_width(architecture):
    """Fitted from 128 on: at 64 the corrections in depth / width still show."""
    spec = architecture(parameterisation="ntk")
    widths = WIDTHS[1:]
    updates = [_feature_update(spec, width, "sgd", 0.1) for width in widths]
    slope = np.polyfit(np.log(widths), np.log(updates), 1)[0]
    assert slope == pytest.approx(-0.5, abs=0.1)


def test_standard_parameterisation_does_not_keep_the_adam_update():
    """The contrast that makes the muP test meaningful for Adam: without factors it grows."""
    updates = [_feature_update(specs.MLP(), width, "adam", 0.001) for width in WIDTHS]
    assert updates[-1] / updates[0] > 2.5
