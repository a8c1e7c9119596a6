"""`widthlab.certify`: what it returns, and that every bad input gets its sentence."""

import math

import numpy as np
import pytest
import torch
import xarray as xr
from owned import coins, loader, perceptron, signed_output
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own name for it
from torch.utils.data import DataLoader, Subset, SubsetRandomSampler, TensorDataset

import widthlab
from widthlab.errors import WidthlabError
from widthlab.statistics.alignment.estimates import certificate
from widthlab.statistics.alignment.gradients import alignment_grams
from widthlab.statistics.alignment.losses import supervised
from widthlab.statistics.alignment.pooling import Pooling
from widthlab.store import datasets

CRITERION = nn.CrossEntropyLoss(reduction="none")
POINTS = ["first", "second"]


def certify(model=None, points=POINTS, loss=CRITERION, train=None, test=None, **options):
    return widthlab.certify(
        perceptron() if model is None else model,
        points,
        loss,
        loader() if train is None else train,
        loader(48, seed=2) if test is None else test,
        **options,
    )


@pytest.fixture(scope="module")
def found():
    return certify(budgets=[(8, 8), (40, 20), (4096, 4096)], mismatch=True)


def test_it_is_the_certificate_of_the_gram_matrices(found):
    grams = alignment_grams(
        perceptron(), POINTS, supervised(CRITERION), loader(), loader(48, seed=2)
    )
    assert list(found) == POINTS
    for name, gram in grams.items():
        expected = certificate(gram, found.budgets, laws="different")
        np.testing.assert_allclose(found[name].b_exact_limit, expected.b_exact_limit)
        assert found[name].d_align == expected.d_align
        assert found[name].samples == (64, 48)


def test_the_name_stays_a_function(found):
    """Importing a module of that name would take its place."""
    assert callable(widthlab.certify)
    assert callable(widthlab.certify)


def test_certified_and_needed_agree(found):
    needed = found.needed()
    for name, budgets in found.certified.items():
        met = [m for m, k in found.budgets if m == k and needed[name] and m >= needed[name]]
        assert [m for m, k in budgets if m == k] == met
    assert found.certified["first"] == ((40, 20), (4096, 4096))
    assert found.needed(0.5)["first"] < needed["first"]


def test_the_decision_is_one_sentence_with_all_points(found):
    for words in (
        "certified at (M, K) = (40, 20) and (4096, 4096)",
        "first (M",
        "second",
        "at most 0.05",
    ):
        assert words in found.decision
    assert found.decision.endswith(".")
    assert found.decision.count(". ") == 0
    assert repr(found).endswith(found.decision)
    few = certify(budgets=[(8, 8)])
    assert "at none of these (M, K); more samples would do for first (M = K = " in few.decision


def test_noise_is_said_to_be_noise():
    """One fixed draw; over draws the tests of certificates count how often noise is certified."""
    noise = certify(loss=signed_output, train=coins(), test=coins(seed=2))
    assert "there is no bound at any (M, K) for first and second" in noise.decision
    assert noise.certified == {"first": (), "second": ()}
    assert noise.needed() == {"first": None, "second": None}
    assert "no bound" in repr(noise)
    assert noise.reasons[0].startswith("first: the ")
    assert noise.to_dataset()["needed"].isnull().all()


def test_the_table_has_bounds_controls_and_plug_in(found):
    headings, rows = found.table()
    assert headings[3:6] == ["B(8, 8) ≤", "B(40, 20) ≤", "B(4096, 4096) ≤"]
    assert [row[0] for row in rows] == POINTS
    assert "noise bounded" in headings
    assert "different laws" in found.title
    assert "0.05 of these 2 would have a bound on average" in found.cautions[0]


def test_the_dataset(found, tmp_path):
    dataset = found.to_dataset()
    assert dataset.sizes == {"point": 2, "budget": 3, "control": 2}
    assert dataset["train_samples"].values.tolist() == [8, 40, 4096]
    assert dataset["point"].values.tolist() == POINTS
    assert dataset["pooling"].values.tolist() == ["sum", "sum"]
    for name in dataset.data_vars:
        assert {"units", "description"} <= set(dataset[name].attrs), name
    one = dataset.sel(point="second")
    assert float(one["d_align_low"]) == found["second"].d_align.low
    assert one["meets_target"].values.tolist() == found["second"].meets(0.05).tolist()
    assert one["control_certified"].values.tolist() == [
        control.certified for control in found["second"].controls
    ]
    assert float(one["block_rate"][0]) == found.mismatches["second"]["block_rate"][0]
    assert np.isnan(one["pool_rate"][2])
    datasets.write(dataset, tmp_path / "out.zarr")
    with xr.open_zarr(tmp_path / "out.zarr") as again:
        xr.testing.assert_allclose(again.drop_vars("reason"), dataset.drop_vars("reason"))
    assert "block_rate" not in certify(budgets=[(8, 8)]).to_dataset()


def test_poolings_and_patterns():
    mixed = certify(points={"first": Pooling("whole"), "s*d": Pooling("mean")})
    assert [pooling.how for pooling in mixed.poolings.values()] == ["whole", "mean"]


def test_poolings_by_a_word():
    found = certify(pooling="mean", points="first")
    assert found.poolings["first"].how == "mean"
    assert "pooling mean" in found.title


def test_the_level_of_all_points_together():
    found = certify(simultaneous=True, budgets=[(64, 64)])
    assert found.error_rate == pytest.approx(0.0125)
    assert found["first"].d_align.low < certify()["first"].d_align.low
    assert found.cautions == []
    assert "of all points together" in found.title
    many = certify(simultaneous=True, budgets=[(64, 64)], level=0.999)
    assert (many["first"].flips + 1) * many.error_rate == pytest.approx(1)


def test_equal_laws_use_all_samples():
    found = certify(laws="equal", points="first")
    assert found["first"].laws == "equal"
    assert found["first"].signal.total == 64 + 48


@pytest.mark.parametrize("mode", [True, False])
def test_the_model_is_left_as_it_was(mode):
    model = perceptron().train(mode)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    certify(model)
    assert model.training is mode
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


class Exploding(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(5, 3)

    def forward(self, x):
        return torch.sqrt(self.first(x) - 1e3)


def averaged(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"points": "frist"}, "'frist' is not a module of Perceptron; the nearest are first"),
        ({"points": []}, "at least one insertion point"),
        ({"points": ["first", "side"]}, "does not depend on the output of insertion point 'side'"),
        ({"points": ["first", "unused"]}, "'unused' is not reached in the forward pass"),
        ({"train": loader(16)}, "the training loader gives all samples in one batch; give several"),
        ({"test": loader(16)}, "the test loader gives all samples in one batch; give several"),
        ({"train": loader(3, 1)}, "at least 4 samples, but the training loader gave 3"),
        ({"test": loader(3, 2)}, "at least 4 samples, but the test loader gave 3"),
        ({"test": []}, "at least 4 samples, but the test loader gave 0"),
        ({"model": Exploding(), "points": "first"}, "'first' is not finite for sample 0 of"),
        ({"loss": nn.CrossEntropyLoss()}, 'averaged or summed over samples \\(reduction="mean"\\)'),
        ({"loss": averaged}, 'a single number; it seems to be averaged .* reduction="none"'),
        ({"loss": lambda m, b: averaged(m, b).reshape(1)}, "one number for a batch of 16 samples"),
        ({"loss": lambda m, b: averaged(m, b).expand(16)}, "do not average the loss over them"),
        ({"loss": F.cross_entropy}, "a single number; it seems to be averaged"),
        ({"loss": "hinge"}, "must be cross_entropy or mse, a criterion or a function, not 'hinge'"),
        ({"loss": 3.0}, "must be a criterion or a function, not 3.0"),
        ({"budgets": []}, "at least one budget"),
        ({"budgets": [(8, 0)]}, "pair \\(M, K\\) of whole numbers of at least 1, not \\(8, 0\\)"),
        ({"budgets": [8]}, "pair \\(M, K\\) of whole numbers of at least 1, not 8"),
        ({"budgets": [("a", "b")]}, "pair \\(M, K\\) of whole .* not \\('a', 'b'\\)"),
        ({"budgets": 5}, "budgets must be pairs \\(M, K\\), .* not 5"),
        ({"pools": (64,)}, "pools must be two numbers of at least 1, .* not \\(64,\\)"),
        ({"pools": None}, "pools must be two numbers of at least 1, .* not None"),
        (
            {"pools": (math.nan, 64)},
            "pools must be two numbers of at least 1, .* not \\(nan, 64\\)",
        ),
        ({"pools": (0.5, 64)}, "pools must be two numbers of at least 1"),
        ({"points": 3}, "points must be names or patterns of modules, .* not 3"),
        ({"points": [3]}, "an insertion point is the name of a module or a pattern, not 3"),
        ({"points": {"first": "max"}}, "pooling must be sum, mean, whole, not 'max'"),
        ({"pooling": None}, "pooling must be sum, mean, whole, not None"),
        ({"target": None}, "target of a bound must lie between 0 and 1, not None"),
        ({"seed": -1}, "the seed must be a whole number of at least 0, not -1"),
        ({"seed": None}, "the seed must be a whole number of at least 0, not None"),
        ({"train": 3}, "train_loader must give batches, .* but it is a int"),
        ({"model": 3}, "the model must be a torch.nn.Module, not a int"),
        ({"level": 1.5, "simultaneous": True}, "level must lie between 0 and 1, not 1.5"),
        ({"level": 0.99995}, "sign flips, more than 20,000; take a lower level"),
        ({"loss": None}, "must be a criterion or a function, not None"),
        ({"budgets": [(8, 8)], "pools": (4, 9)}, "beyond the pools of 4 training and 9 test"),
        ({"target": 1.0}, "target of a bound must lie between 0 and 1, not 1"),
        ({"level": 1.0}, "level must lie between 0 and 1, not 1"),
        ({"laws": "other"}, "laws must be equal or different, not 'other'"),
        ({"pooling": "max"}, "pooling must be sum, mean, whole, not 'max'"),
    ],
)
def test_what_is_refused(options, message):
    with pytest.raises(WidthlabError, match=message):
        certify(**options)


def test_budgets_from_a_generator_and_poolings_by_words():
    found = certify(
        budgets=((m, m) for m in (8, 16)), points={"first": "mean", "second": "sum"}, mismatch=True
    )
    assert found.budgets == ((8, 8), (16, 16))
    assert [pooling.how for pooling in found.poolings.values()] == ["mean", "sum"]
    assert found.to_dataset()["block_rate"].shape == (2, 2)


def test_mismatches_are_counted_at_the_level_of_each_point(found):
    together = certify(budgets=[(8, 8)], mismatch=True, simultaneous=True)
    one, other = together.mismatches["first"], found.mismatches["first"]
    assert one.attrs["level"] == pytest.approx(0.975)
    assert float(one["block_rate_high"][0]) > float(other["block_rate_high"][0])


def batches_of(data, indices=None):
    sampler = None if indices is None else SubsetRandomSampler(indices)
    return DataLoader(data, batch_size=8, sampler=sampler)


def test_loaders_that_share_samples():
    data = loader(64).dataset
    parts = Subset(data, range(40)), Subset(data, range(40, 64)), Subset(data, range(30, 64))
    certify(train=batches_of(parts[0]), test=batches_of(parts[1]))
    certify(train=batches_of(data, range(32)), test=batches_of(data, range(32, 64)))
    with pytest.raises(WidthlabError, match="read the same data set; give held-out samples"):
        certify(train=batches_of(data), test=batches_of(data))
    for train, test in ((parts[0], parts[2]), (parts[0], Subset(parts[2], [9, 10, 11, 12]))):
        with pytest.raises(
            WidthlabError, match=r"share .* samples of one data set, for .* sample 3"
        ):
            certify(train=batches_of(train), test=batches_of(test))
    with pytest.raises(WidthlabError, match="share 8 samples"):
        certify(train=batches_of(data, range(32)), test=batches_of(data, range(24, 64)))


def test_repeated_samples_are_a_caution():
    """Copies that no loader tells; independent samples of the same law are not counted."""
    x, y = loader(64).dataset.tensors
    other_x, other_y = loader(48, seed=2).dataset.tensors
    test = TensorDataset(torch.cat([other_x, x[:5]]), torch.cat([other_y, y[:5]]))
    found = certify(test=DataLoader(test, batch_size=7))
    assert found.repeated == 5
    assert "5 of 53 test samples have the gradients of a training sample" in repr(found)
    assert found.to_dataset().attrs["repeated_samples"] == 5
    assert certify().repeated == 0


def test_one_loader_for_both_is_refused():
    both = loader()
    with pytest.raises(WidthlabError, match="the training and the test loader are the same"):
        certify(train=both, test=both)
