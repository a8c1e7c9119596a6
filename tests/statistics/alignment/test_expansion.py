"""Expansions against closed forms of quadratic and linear losses, and what each verdict means."""

import numpy as np
import pytest
import torch
from networks import Decoder, Pictures, built, cross_entropy_by_sequence, pictures, sentences
from torch import nn

from widthlab.errors import WidthlabError
from widthlab.statistics.alignment.blocks import Block, Fit, Insertion
from widthlab.statistics.alignment.expansion import ABOUT, expansion
from widthlab.statistics.alignment.expansion_bounds import VERDICTS
from widthlab.statistics.alignment.losses import supervised
from widthlab.statistics.alignment.pooling import Pooling

CROSS_ENTROPY = supervised(nn.CrossEntropyLoss(reduction="none"))
KINDS = ("bias", "residual")


class Through(nn.Module):
    """f(x) = x, with a place to insert."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Identity()

    def forward(self, x):
        return self.inner(x)


def quadratic(model, batch):
    return 0.5 * (model(batch[0]) - batch[1]).square().sum(dim=1)


def linear(model, batch):
    return 0.5 + (model(batch[0]) * batch[1]).sum(dim=1)


def vectors(n, seed, features=3, shift=1.0, size=50):
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(2, n, features, generator=generator, dtype=torch.float64)
    return list(zip(x.split(size), (y + shift).split(size), strict=True))


def coins(n, seed, features=1, bias=0.9, size=1000):
    """Targets ±1/√F that are mostly +, for losses ½ + y·b of known slope 1."""
    generator = torch.Generator().manual_seed(seed)
    signs = torch.where(torch.rand(n, features, generator=generator) < bias, 1.0, -1.0).double()
    y = signs / features**0.5
    return list(zip(torch.ones_like(y).split(size), y.split(size), strict=True))


def named(code):
    return VERDICTS[int(code)]


def words(model, batch):
    return cross_entropy_by_sequence(model(batch[0]), batch[1], batch[2])


def test_a_quadratic_loss_has_its_closed_form():
    """½|z + b − y|²: the step is −η mean(z − y), and plain descent halves what is left."""
    parts = [vectors(n, seed) for n, seed in ((100, 1), (60, 2), (80, 3))]
    fit = Fit(optimiser="sgd", learning_rate=0.5, steps=3)
    found = expansion(Through(), "inner", quadratic, *parts, cap=1e6, scale=0.1, fit=fit)
    x, y = (torch.cat([batch[i] for batch in parts[0]]).numpy() for i in (0, 1))
    mu = (x - y).mean(axis=0)
    eta = 0.1 * np.sqrt(np.mean(np.sum(x**2, axis=1)) / np.sum(mu**2))
    assert float(found.eta) == pytest.approx(eta, rel=1e-12)
    stepped = -eta * mu
    states = [0 * mu, stepped, -mu + (stepped + mu) / 8]
    for part, name in zip(parts, found["part"].values, strict=True):
        x, y = (torch.cat([batch[i] for batch in part]).numpy() for i in (0, 1))
        losses = [0.5 * np.sum((x + b - y) ** 2, axis=1).mean() for b in states]
        np.testing.assert_allclose(found.plain_loss.sel(part=name), losses, rtol=1e-12)
    loss = found.loss
    assert float(found.delta_r) == pytest.approx(
        float(loss.sel(state="old", part="step_test") - loss.sel(state="stepped", part="step_test"))
    )
    assert float(found.delta_erm) == pytest.approx(
        float(loss.sel(state="stepped", part="train") - loss.sel(state="new", part="train"))
    )
    assert set(found.data_vars) == set(ABOUT)


@pytest.mark.parametrize("scale", [0.3, 1.0, 5.0])
def test_a_step_is_halved_until_it_is_of_first_order(scale):
    """½|z + b − y|² falls by η(1 − η/2)|μ|², half of η|μ|² or more where η ≤ 1."""
    parts = [vectors(n, seed) for n, seed in ((100, 1), (60, 2), (80, 3))]
    found = expansion(Through(), "inner", quadratic, *parts, cap=1e6, scale=scale)
    x, y = (torch.cat([batch[i] for batch in parts[0]]).numpy() for i in (0, 1))
    mu = (x - y).mean(axis=0)
    full = scale * np.sqrt(np.mean(np.sum(x**2, axis=1)) / np.sum(mu**2))
    halvings = max(0, int(np.ceil(np.log2(full))))
    assert int(found.halvings) == halvings
    assert float(found.eta) == pytest.approx(full / 2**halvings, rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_inequality_needs_is_the_growth_of_the_gap(kind):
    parts = [pictures(n, 4, seed) for n, seed in ((12, 1), (8, 2), (16, 3))]
    found = expansion(built(Pictures), "stem", CROSS_ENTROPY, *parts, cap=1.2, block=kind)
    gap = found.loss.sel(part="step_test") - found.loss.sel(part="train")
    growth = gap.sel(state="new") - gap.sel(state="stepped")
    assert float(found.needed) == pytest.approx(float(growth), abs=1e-12)
    slack = 2 * (found.epsilon_train + found.epsilon_test)
    np.testing.assert_array_equal(found.holds, float(found.needed) <= slack)
    assert 0 < float(found.clipped.max()) < 1
    assert float(found.loss.max()) <= 1.2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["sum", "mean", "whole"])
def test_a_new_block_changes_nothing_and_trains_alone(kind, how):
    model, batches = built(Pictures), pictures(8, 4)
    inserted = Insertion(model, "stem", CROSS_ENTROPY)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    block = Block(kind, Pooling(how), inserted.activation(batches[0]))
    plain = inserted.values(None, batches)
    np.testing.assert_array_equal(inserted.values(block, batches), plain)
    inserted.train(block, batches, Fit(steps=10, learning_rate=1e-2), seed=0)
    assert inserted.values(block, batches).mean() < plain.mean() - 1e-5
    assert block.bias_norm > 0
    assert (block.residual_norms > 0) == (kind == "residual")
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    for key, value in model.state_dict().items():
        torch.testing.assert_close(value, before[key], rtol=0, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_is_ignored_and_batches_do_not_matter(kind):
    model, parts = built(Decoder), [sentences(n, seed=n) for n in (8, 6, 10)]
    options = {"cap": 20.0, "block": kind, "mask": lambda batch: batch[2], "scale": 0.2}
    found = expansion(model, "mlp", words, *parts, **options)
    other = [
        [(torch.where(mask, x, 3), torch.where(mask, y, 5), mask) for x, y, mask in part]
        for part in parts
    ]
    again = expansion(model, "mlp", words, *other, **options)
    whole = [[tuple(torch.cat(field) for field in zip(*part, strict=True))] for part in parts]
    halves = [(*(field[:4] for field in whole[0][0]),), (*(field[4:] for field in whole[0][0]),)]
    rebatched = expansion(model, "mlp", words, halves, *whole[1:], **options)
    assert float(found.delta_erm) > 0
    for name in found.data_vars:
        np.testing.assert_allclose(again[name], found[name], rtol=1e-9, err_msg=name)
        np.testing.assert_allclose(rebatched[name], found[name], rtol=1e-6, err_msg=name)


def test_the_seed_decides_the_block_and_the_order_of_batches():
    parts = [pictures(12, 4, seed) for seed in (1, 2, 3)]
    fit = Fit(full_batch=False, learning_rate=1e-2)

    def loss(seed):
        options = {"cap": 5.0, "block": "residual", "fit": fit, "seed": seed}
        return expansion(built(Pictures), "stem", CROSS_ENTROPY, *parts, **options).loss.values

    np.testing.assert_array_equal(loss(1), loss(1))
    assert np.all(loss(1)[2] != loss(2)[2])
    np.testing.assert_array_equal(loss(1)[:2], loss(2)[:2])


def test_the_slopes_are_those_of_single_samples_below_the_cap():
    """½|z + b − y|² has slope |z + b − y|, and none above the cap."""
    batches = vectors(40, 5)
    block = Block("bias", Pooling(), batches[0][0])
    inserted = Insertion(Through(), "inner", quadratic)
    slopes = np.linalg.norm((batches[0][0] - batches[0][1]).numpy(), axis=1)
    cap = float(np.median(0.5 * slopes**2))
    for most, top in ((np.inf, slopes.max()), (cap, slopes[0.5 * slopes**2 < cap].max())):
        assert inserted.steepest(block, batches, most) == pytest.approx((top, top), rel=1e-12)
    spread = Block("bias", Pooling("mean"), torch.zeros(1, 4, 3))
    three = Insertion(Through(), "inner", lambda model, batch: model(batch).square().sum((1, 2)))
    images = torch.ones(2, 4, 3)
    assert three.steepest(spread, [images], np.inf) == pytest.approx((2 * 3**0.5, 2 * 12**0.5))


@pytest.mark.parametrize(
    ("n", "proven", "verdict"),
    [
        (4_000, True, "improves"),
        (4_000, False, "not certified"),
        (400, True, "not certified"),
        (60, True, "vacuous bound"),
    ],
)
def test_the_paired_bound_certifies_with_samples_and_a_proven_constant(n, proven, verdict):
    """One feature and a loss of slope 1: the bound is of the size of the gain at n ≈ 760."""
    parts = [coins(n, seed, bias=0.99, size=max(20, n // 4)) for seed in (1, 2, 3)]
    constants = (1.0, 1.0) if proven else None
    # The cap is so that nothing is clipped, and R = 1/4 a power of 2, of which peeling is kind.
    found = expansion(
        Through(), "inner", linear, *parts, cap=2.0, scale=0.25, fit=Fit(steps=0),
        lipschitz=constants,
    )  # fmt: skip
    assert named(found.verdict.sel(bound="paired")) == verdict
    assert float(found.bias_norm) == pytest.approx(0.25)
    needed = float(found.samples_needed.sel(bound="paired"))
    assert (needed <= n) == (n == 4_000)
    assert bool(found.holds.all())


def test_the_paired_inequality_holds_as_often_as_it_says():
    """Networks that chose nothing, 300 times: the sides compare as the level promises."""
    holds, needed = [], []
    for number in range(300):
        parts = [coins(40, 10 * number + i, features=3, bias=0.5, size=20) for i in range(3)]
        found = expansion(
            Through(), "inner", linear, *parts, cap=2.0, scale=0.2, fit=Fit("sgd", 0.1, 5),
            lipschitz=(1.0, 1.0),
        )  # fmt: skip
        holds.append(bool(found.holds.sel(bound="paired")))
        needed.append(float(found.needed))
    assert np.mean(holds) >= 0.95
    # Without ε it would be wrong more often than not: what the block has learned is noise.
    assert np.mean(np.array(needed) > 0) > 0.6


def test_fresh_samples_tell_learning_from_noise():
    good = [coins(n, seed, bias=0.99, size=n // 4) for n, seed in ((200, 1), (200, 2), (8000, 3))]
    options = {"cap": 2.0, "scale": 0.25, "fit": Fit(steps=0)}
    found = expansion(Through(), "inner", linear, *good, **options)
    assert named(found.fresh_verdict) == "improves"
    assert float(found.change) == pytest.approx(-0.25 * 0.98, abs=0.01)
    assert np.all(found.change_high > found.change_low)
    widths = found.change_high - found.change_low
    assert bool((widths >= widths.sel(interval="student")).all())
    bad = [good[0], good[1], [(x, -y) for x, y in good[2]]]
    assert named(expansion(Through(), "inner", linear, *bad, **options).fresh_verdict) == "worsens"
    few = [*good[:2], coins(12, 4, bias=0.99, size=12)]
    few = expansion(Through(), "inner", linear, *few, **options)
    assert named(few.fresh_verdict) == "not certified"


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_that_diverges_is_a_result(kind):
    parts = [vectors(40, seed, size=10) for seed in (1, 2, 3)]
    fit = Fit("sgd", 1e200, 30)
    found = expansion(Through(), "inner", quadratic, *parts, cap=3.0, fit=fit, block=kind)
    assert np.isfinite(found.loss).all()
    assert float(found.clipped.sel(state="new", part="fresh")) == 1
    assert {named(code) for code in found.verdict.values} == {"vacuous bound"}
    assert named(found.fresh_verdict) != "improves"


def test_what_cannot_be_done_is_refused():
    parts = [vectors(40, seed, size=10) for seed in (1, 2, 3)]

    def run(**changes):
        options = {"model": Through(), "point": "inner", "losses": quadratic, "cap": 3.0}
        options |= dict(zip(("train", "step_test", "fresh"), parts, strict=True))
        return expansion(**{**options, **changes})

    for changes, words in (
        ({"cap": 0.0}, "cap and scale must be positive"),
        ({"level": 1.0}, "level between 0 and 1"),
        ({"fresh": []}, "at least one batch each"),
        ({"point": "innner"}, "'innner' is not a module"),
        ({"block": "attention"}, "a block must be bias or residual, not 'attention'"),
        (
            {"losses": lambda model, batch: model(batch[0]).sum(1) * 0},
            "gradient at 'inner' is zero",
        ),
        ({"train": parts[0][:1]}, "in one batch"),
    ):
        with pytest.raises(WidthlabError, match=words):
            run(**changes)
    with pytest.raises(WidthlabError, match="positive learning_rate"):
        Fit(learning_rate=0.0)
    with pytest.raises(WidthlabError, match="sgd or adam, not 'lion'"):
        Fit(optimiser="lion")
