"""Stepping an activation along −μ_M: does the held-out loss move as the gradients predict?

A parameter b, zero at first, is added to the activation and set to −η μ_M. To first order the loss
of K held-out samples then changes by −η μ_M·g_K. Draws are disjoint blocks of M training and K
test samples, so that they are independent; every test sample gets the step of its own block, and
one pass over the test data serves all draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray
from scipy.stats import binomtest
from torch import Tensor, nn

from widthlab.errors import WidthlabError
from widthlab.scaling import bootstrap_interval
from widthlab.statistics.alignment.gradients import ActivationGradients, Mask
from widthlab.statistics.alignment.losses import Losses, sample_losses
from widthlab.statistics.alignment.points import (
    batch_beside,
    evaluating,
    first_tensor,
    with_first,
)
from widthlab.statistics.draws import tapped

Array = NDArray[np.float64]

RESOLUTION = 100.0
"""A step is resolved where its predicted changes are this many rounding errors of the loss."""

ABOUT = {
    "observed": "change of a block's mean loss when b = −η μ_M",
    "predicted": "−η μ_M·g_K, the change to first order",
    "sign_agreement": "share of draws whose observed change has the predicted sign",
    "sign_agreement_low": "lower end of Clopper and Pearson's interval",
    "sign_agreement_high": "upper end of Clopper and Pearson's interval",
    "ratio": "observed over predicted, the slope through the origin over draws; 1 to first order",
    "ratio_low": "lower end of its bootstrap interval over draws",
    "ratio_high": "upper end of its bootstrap interval over draws",
    "resolved": "whether the predicted changes are well above the loss's rounding error",
    "first_order_end": "largest step up to which the ratio of resolved steps stays within "
    "`tolerance` of 1; NaN where none does",
}
"""What `intervention` returns, by name."""


def intervention(
    model: nn.Module,
    point: str,
    losses: Losses,
    train: ActivationGradients,
    test: ActivationGradients,
    batches: Iterable[Any],
    steps: Sequence[float],
    *,
    train_samples: int,
    test_samples: int,
    mask: Mask | None = None,
    tolerance: float = 0.1,
    level: float = 0.95,
    seed: int | np.random.SeedSequence = 0,
) -> xr.Dataset:
    """Compare observed with predicted changes of the held-out loss over step sizes η and draws.

    `train` and `test` are gradients that were measured at `point`, of the same model, and `batches`
    are the test batches again, in the same order; `losses` and `mask` as for
    `activation_gradients`. Steps are in units of activation² per loss. There are
    min(n₁ // M, n₂ // K) draws of M = `train_samples` and K = `test_samples`. b has the features
    that the point's pooling leaves, and is spread by its adjoint: for `sum`, b is a bias for each
    channel.

    The loss runs in the network's precision; where a step is too small for it, `resolved` is false
    and `first_order_end` passes over it. The dataset has dimensions (step, draw) and the variables
    of `ABOUT`. Raises WidthlabError for a point without gradients, too few samples for one draw,
    steps that are not positive, and test batches that do not give the losses of `test` again.
    """
    _check(point, train, test, steps, train_samples, test_samples)
    generator = np.random.default_rng(seed)
    first, second = train.rows[point], test.rows[point]
    draws = min(len(first) // train_samples, len(second) // test_samples)
    chosen = generator.permutation(len(first))[: draws * train_samples].reshape(draws, -1)
    held_out = generator.permutation(len(second))[: draws * test_samples].reshape(draws, -1)
    mu = np.stack([_mean(first, rows) for rows in chosen])
    g = np.stack([_mean(second, rows) for rows in held_out])
    size = np.asarray(sorted(steps), dtype=np.float64)
    predicted = -size[:, None] * np.sum(mu * g, axis=1)

    # Block of every test sample; the last row of steps, zeros, is for those in none.
    block = np.full(len(second), draws)
    block[held_out] = np.arange(draws)[:, None]
    directions = np.concatenate([-mu, np.zeros((1, mu.shape[1]))])
    stepped = _Stepped(model, point, losses, test, batches, mask, directions, block)
    base, epsilon = stepped.losses(0.0)
    if len(base) != len(test.losses) or not np.allclose(base, test.losses, rtol=1e-3, atol=1e-6):
        raise WidthlabError(
            "the test batches do not give the losses again that were measured with their "
            "gradients; give the same loader, without shuffling or random augmentation"
        )
    changes = np.stack([stepped.losses(float(eta))[0] - base for eta in size])
    observed = changes[:, held_out].mean(axis=2)
    rounding = epsilon * float(np.abs(base).mean())
    resolved = np.abs(predicted).mean(axis=1) >= RESOLUTION * rounding
    found = _summary(observed, predicted, level)
    found["first_order_end"] = _end(size, found["ratio"], resolved, tolerance)
    return xr.Dataset(
        {
            name: (dims, value, {"units": unit, "description": ABOUT[name]})
            for name, (dims, value, unit) in {
                "observed": (("step", "draw"), observed, "loss"),
                "predicted": (("step", "draw"), predicted, "loss"),
                "resolved": (("step",), resolved, "1"),
                **{
                    name: (("step",) if np.ndim(value) else (), value, "1")
                    for name, value in found.items()
                },
            }.items()
        },
        coords={
            "step": ("step", size, {"units": "activation^2/loss", "description": "η"}),
            "draw": np.arange(draws),
        },
        attrs={
            "description": "held-out loss changes of steps along −μ_M, observed and predicted",
            "point": point,
            "pooling": train.points[point].how,
            "train_samples": train_samples,
            "test_samples": test_samples,
            "tolerance": tolerance,
            "level": level,
            "rounding": rounding,
        },
    )


class _Stepped:
    """The test losses of a model whose activation at a point is moved."""

    def __init__(
        self,
        model: nn.Module,
        point: str,
        losses: Losses,
        test: ActivationGradients,
        batches: Iterable[Any],
        mask: Mask | None,
        directions: Array,
        block: NDArray[np.int64],
    ) -> None:
        self.model, self.point, self.measure = model, point, losses
        self.pooling, self.batches, self.mask = test.points[point], batches, mask
        self.directions, self.block = directions, block

    def losses(self, eta: float) -> tuple[Array, float]:
        """Return the losses (n,) when sample i is moved by η times its block's direction, and ε."""
        found: list[Array] = []
        epsilon, seen = 0.0, 0
        move: Callable[[Tensor], Tensor] = torch.clone

        def tap(index: int, output: Any) -> Any:
            return with_first(output, move(first_tensor(self.point, output)))

        with evaluating(self.model), torch.no_grad(), tapped(self.model, [self.point], tap):
            for batch in self.batches:
                batch = batch_beside(self.model, batch)
                move = self._mover(eta, seen, None if self.mask is None else self.mask(batch))
                loss = sample_losses(self.measure, self.model, batch)
                epsilon = max(epsilon, torch.finfo(loss.dtype).eps)
                seen += len(loss)
                found.append(loss.to("cpu", torch.float64).numpy())
        return (np.concatenate(found) if found else np.empty(0)), epsilon

    def _mover(self, eta: float, seen: int, mask: Tensor | None) -> Callable[[Tensor], Tensor]:
        def move(h: Tensor) -> Tensor:
            block = self.block[seen : seen + len(h)]
            if len(block) < len(h):
                return h  # more samples than were measured, which the caller notices
            b = torch.from_numpy(eta * self.directions[block]).to(h)
            return h + self.pooling.spread(b, h.shape, mask)

        return move


def _mean(rows: NDArray[np.floating], chosen: NDArray[np.int64]) -> Array:
    return np.asarray(rows[np.sort(chosen)].mean(axis=0, dtype=np.float64))


def _slope(pairs: Array) -> Array:
    """Return Σ observed·predicted / Σ predicted² of pairs (batch, draws, 2)."""
    observed, predicted = pairs[..., 0], pairs[..., 1]
    total = np.sum(predicted**2, axis=1)
    product = np.sum(observed * predicted, axis=1)
    return np.where(total > 0, product / np.where(total > 0, total, 1.0), np.nan)


def _summary(observed: Array, predicted: Array, level: float) -> dict[str, Any]:
    """Return sign agreement and ratio with their intervals, each (steps,)."""
    agree = (np.sign(observed) == np.sign(predicted)) & (predicted != 0)
    counts, draws = agree.sum(axis=1), observed.shape[1]
    signs = [binomtest(int(n), draws).proportion_ci(level, method="exact") for n in counts]
    ratios = [
        bootstrap_interval(np.stack(pair, axis=1), _slope, level=level)
        for pair in zip(observed, predicted, strict=True)
    ]
    return {
        "sign_agreement": counts / draws,
        "sign_agreement_low": np.array([interval.low for interval in signs]),
        "sign_agreement_high": np.array([interval.high for interval in signs]),
        "ratio": np.array([ratio.value for ratio in ratios]),
        "ratio_low": np.array([ratio.low for ratio in ratios]),
        "ratio_high": np.array([ratio.high for ratio in ratios]),
    }


def _end(steps: Array, ratios: Array, resolved: NDArray[np.bool_], tolerance: float) -> float:
    """Return the last resolved step before the first whose ratio is off."""
    end = float("nan")
    for step, ratio in zip(steps[resolved], ratios[resolved], strict=True):
        if not abs(ratio - 1) <= tolerance:
            break
        end = float(step)
    return end


def _check(
    point: str,
    train: ActivationGradients,
    test: ActivationGradients,
    steps: Sequence[float],
    train_samples: int,
    test_samples: int,
) -> None:
    for name, gradients in (("training", train), ("test", test)):
        if point not in gradients.rows:
            raise WidthlabError(
                f"no {name} gradients were measured at '{point}', but at "
                f"{', '.join(gradients.rows)}"
            )
    if train.points[point] != test.points[point]:
        raise WidthlabError(f"training and test gradients at '{point}' are pooled differently")
    size = np.asarray(steps, dtype=np.float64)
    if size.ndim != 1 or not len(size) or not np.all(np.isfinite(size) & (size > 0)):
        raise WidthlabError(f"steps must be positive numbers, not {list(steps)}")
    n1, n2 = len(train.losses), len(test.losses)
    if not (1 <= train_samples <= n1 and 1 <= test_samples <= n2):
        raise WidthlabError(
            f"an intervention with M = {train_samples} and K = {test_samples} needs as many "
            f"samples, at least 1, but {n1} training and {n2} test samples were measured"
        )
