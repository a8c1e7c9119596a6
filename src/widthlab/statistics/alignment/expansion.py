"""Direct train–test expansion: does an inserted block that learns from M samples help on others?

f_old is the network with a block that adds nothing, f_η the same with the block's bias at −η μ_M,
f_new what a short training of the block on the M samples makes of it. With

    Δ_R = L_K(f_old) − L_K(f_η),   Δ_ERM = L_M(f_η) − L_M(f_new)

on K test and M training samples, and ε_M, ε_K the largest distances of L_M and L_K from the
expected loss over all blocks of a class that holds f_η and f_new,

    L_K(f_new) ≤ L_K(f_old) − Δ_R − Δ_ERM + 2 (ε_M + ε_K),

since what is needed instead of the last term is exactly how much the train–test gap grows from
f_η to f_new. The loss improves for certain where Δ_R + Δ_ERM > 2 (ε_M + ε_K). Source: the project's
theory, section 4 (second theorem).

Two uniform bounds give ε (`theory.generalisation`). The `generic` one is of the clipped loss, in
[0, cap]. The `paired` one is of its difference from the loss of f_old, which is what the inequality
needs, since what f_old itself adds to L_M and L_K cancels; it knows that a small block changes
losses little. Both take a Lipschitz constant of the loss. Where none is given the largest slope
that was seen stands for it, from below: then a bound that comes out vacuous is so for certain, and
one that does not certifies nothing. Both are for a network that has not seen the M samples before.

The usable version has no class: on fresh samples, which chose nothing, f_old and f_new are two
fixed models, and the mean of the paired differences has an interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor, nn

from widthlab.errors import WidthlabError
from widthlab.statistics.alignment.blocks import Block, Fit, Insertion, Kind
from widthlab.statistics.alignment.expansion_bounds import (
    BOUNDS,
    METHODS,
    PARTS,
    STATES,
    VERDICTS,
    Reached,
    fresh_change,
    inequality,
)
from widthlab.statistics.alignment.gradients import Mask, activation_gradients
from widthlab.statistics.alignment.losses import Losses
from widthlab.statistics.alignment.pooling import Pooling
from widthlab.statistics.alignment.scales import matching_norms
from widthlab.statistics.draws import nth_seed

Array = NDArray[np.float64]

ABOUT = {
    "loss": "mean clipped loss of each part with the block in each state",
    "plain_loss": "the same without clipping",
    "clipped": "share of samples whose loss is above the cap",
    "delta_r": "Δ_R, what the step gains on the step's test samples",
    "delta_erm": "Δ_ERM, what training gains behind the step on the training samples",
    "left_side": "loss of f_new on the step's test samples",
    "right_side": "L(f_old) − Δ_R − Δ_ERM + 2(ε_M + ε_K)",
    "needed": "growth of the train–test gap from f_η to f_new: the slack that would have done",
    "epsilon_train": "ε_M, uniform over blocks of the size that was reached",
    "epsilon_test": "ε_K, uniform over blocks of the size that was reached",
    "holds": "whether the left side is at most the right side",
    "largest_rise": "most by which the loss could rise in any case",
    "verdict": "of the inequality, by the uniform bound",
    "samples_needed": "M = K at which the bound, all else as here, would certify; inf without gain",
    "change": "mean of L(f_new) − L(f_old) over fresh samples, clipped",
    "change_low": "lower end of its interval",
    "change_high": "upper end of its interval",
    "fresh_verdict": "of f_new against f_old on fresh samples, by the empirical Bernstein interval",
    "eta": "step size η",
    "halvings": "how often the step was halved for the training loss to fall by at least half of "
    "what its gradient predicts",
    "bias_norm": "|b| of f_η and f_new, the larger",
    "residual_norm": "|V| |(U, a)| of f_new; 0 of a bias",
    "slope_bias": "largest change of a sample's loss per unit of |b|",
    "slope_activation": "largest change of a sample's loss per unit of the activation's norm",
}
"""What `expansion` returns, by name."""

HALVINGS = 16
"""How often a step is halved at most."""

UNITS = {
    "clipped": "1",
    "holds": "1",
    "verdict": "1",
    "fresh_verdict": "1",
    "samples_needed": "samples",
    "eta": "activation^2/loss",
    "halvings": "1",
    "bias_norm": "activation",
    "residual_norm": "1",
    "slope_bias": "loss/activation",
    "slope_activation": "loss/activation",
}
"""Units of what is not a loss."""


def expansion(
    model: nn.Module,
    point: str,
    losses: Losses,
    train: Sequence[Any],
    step_test: Sequence[Any],
    fresh: Sequence[Any],
    *,
    cap: float,
    block: Kind = "bias",
    pooling: Pooling | None = None,
    scale: float = 0.05,
    fit: Fit | None = None,
    hidden_ratio: float = 1.0,
    lipschitz: tuple[float, float] | None = None,
    mask: Mask | None = None,
    level: float = 0.95,
    seed: int | np.random.SeedSequence = 0,
) -> xr.Dataset:
    """Insert a block behind a module, step it along −μ_M, train it, and say what came of it.

    `train`, `step_test` and `fresh` are lists of batches of disjoint samples, at least two of
    `train`; `losses` and `mask` as for `activation_gradients`. Losses are clipped at `cap` (cross-
    entropy is unbounded) for all that is compared, but not in training; one that is not a number
    counts as the cap. `scale` is the size of the step at most, of what is added over that of the
    activation; the step is halved until it is of first order on the training samples, since of
    longer ones the gradient says nothing. `lipschitz` are proven constants of the loss per unit of
    |b| and of the activation's Euclidean norm; see the module for what happens without.
    Probabilities of error are 1 − level: of ε_M and ε_K together, and of every fresh interval.

    The dataset has the variables of `ABOUT`; numbers of verdicts index `VERDICTS`. Raises
    WidthlabError as `activation_gradients`, and for a cap, scale or level that is not positive, no
    samples, and a gradient that is zero.
    """
    if not (cap > 0 and scale > 0 and 0 < level < 1):
        raise WidthlabError(
            f"cap and scale must be positive and level between 0 and 1, not {cap}, {scale} and "
            f"{level}"
        )
    if not (len(step_test) and len(fresh)):
        raise WidthlabError("step_test and fresh need at least one batch each")
    pooling, fit = pooling or Pooling(), fit or Fit()
    inserted = Insertion(model, point, losses, mask)
    with activation_gradients(model, {point: pooling}, losses, train, mask=mask) as gradients:
        if list(gradients.rows) != [point]:
            raise WidthlabError(f"expansion takes one insertion point, not a pattern: '{point}'")
        mu = np.asarray(gradients.rows[point].mean(axis=0, dtype=np.float64))
    if not np.any(mu):
        raise WidthlabError(f"the mean gradient at '{point}' is zero, so there is no step to take")

    matching = matching_norms(model, {point: pooling}, train, losses=losses, mask=mask)[point]
    eta = scale * matching / float(np.linalg.norm(mu))
    activations = _Sizes(inserted, pooling, train)
    drawn = torch.Generator().manual_seed(nth_seed(seed, 0))
    like = activations.like
    added = Block(block, pooling, like, hidden_ratio=hidden_ratio, generator=drawn)
    parts = dict(zip(PARTS, (train, step_test, fresh), strict=True))
    plain, slopes, norms = [], [], []
    for state in STATES:
        if state == "stepped":
            eta, halvings = _line_search(inserted, added, train, mu, eta)
        elif state == "new":
            inserted.train(added, train, fit, nth_seed(seed, 1))
        plain.append([inserted.values(added, batches) for batches in parts.values()])
        slopes.append(inserted.steepest(added, [*train, *step_test], cap))
        norms.append((added.bias_norm, added.residual_norms))
    seen: tuple[float, float] = tuple(np.max(slopes, axis=0))
    largest = np.max(norms[1:], axis=0)
    constants = seen if lipschitz is None else lipschitz
    sizes = activations.typical, activations.largest
    reached = Reached(added, constants, (largest[0], norms[2][1]), *sizes)
    found = inequality(plain, reached, cap, level, proven=lipschitz is not None)
    found |= fresh_change(plain, cap, level)
    found |= {
        "eta": eta,
        "halvings": halvings,
        "bias_norm": largest[0],
        "residual_norm": norms[2][1],
    }
    found |= {"slope_bias": seen[0], "slope_activation": seen[1]}
    return _dataset(found).assign_attrs(
        description="direct train–test expansion: an inserted block, stepped and trained",
        point=point,
        block=block,
        pooling=pooling.how,
        features=len(mu),
        train_samples=len(plain[0][0]),
        step_test_samples=len(plain[0][1]),
        fresh_samples=len(plain[0][2]),
        cap=cap,
        scale=scale,
        level=level,
        optimiser=fit.optimiser,
        learning_rate=fit.learning_rate,
        training_steps=fit.steps,
        lipschitz="seen, a lower bound" if lipschitz is None else "given",
    )


def _line_search(
    inserted: Insertion, block: Block, train: Sequence[Any], mu: Array, eta: float
) -> tuple[float, int]:
    """Set the block's bias to −η μ_M with η halved until the step is one of first order.

    That is, the training loss falls by at least half of the η|μ_M|² that its gradient predicts
    (Armijo 1966). Returns η and how often it was halved.
    """
    before, slope = inserted.values(block, train).mean(), float(mu @ mu)
    for halvings in range(HALVINGS + 1):
        with torch.no_grad():
            block.b.copy_(torch.from_numpy(-eta * mu))
        gain = before - inserted.values(block, train).mean()
        if gain >= 0.5 * eta * slope or halvings == HALVINGS:
            break
        eta /= 2
    return eta, halvings


class _Sizes:
    """Norms |ẑ| of the activation with a one at every position, ẑ = (z, 1), over the samples."""

    def __init__(self, inserted: Insertion, pooling: Pooling, batches: Sequence[Any]) -> None:
        squares: list[Tensor] = []
        for batch in batches:
            z = inserted.activation(batch)
            lifted = z.double().square().sum(pooling.channels(z.ndim)) + 1
            mask = None if inserted.mask is None else inserted.mask(batch)
            if mask is not None and z.ndim > 2:
                lifted = lifted * mask.to(lifted)
            squares.append(lifted.flatten(1).sum(1).cpu() if lifted.ndim > 1 else lifted.cpu())
            self.like = z[:1]
        square = torch.cat(squares)
        self.typical = float(square.mean().sqrt())
        self.largest = float(square.max().sqrt())


def _dataset(found: dict[str, Any]) -> xr.Dataset:
    by_state = ("loss", "plain_loss", "clipped")
    made = {}
    for name, value in found.items():
        dims: tuple[str, ...] = ()
        if name in by_state:
            dims = ("state", "part")
        elif np.ndim(value):
            dims = ("interval",) if name in ("change_low", "change_high") else ("bound",)
        words = {"units": UNITS.get(name, "loss"), "description": ABOUT[name]}
        if name in ("verdict", "fresh_verdict"):
            words["meanings"] = ", ".join(f"{n} {word}" for n, word in enumerate(VERDICTS))
        made[name] = (dims, value, words)
    coords = {"state": list(STATES), "part": list(PARTS), "bound": list(BOUNDS)}
    return xr.Dataset(made, coords={**coords, "interval": list(METHODS)})
