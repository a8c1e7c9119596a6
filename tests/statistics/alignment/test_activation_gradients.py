"""Streamed activation gradients against one backward pass for each sample, and what is refused."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from networks import Decoder, Pictures, built, cross_entropy_by_sequence, pictures, sentences
from torch import nn

from widthlab.errors import WidthlabError
from widthlab.statistics.alignment.gradients import activation_gradients, alignment_grams
from widthlab.statistics.alignment.losses import supervised
from widthlab.statistics.alignment.points import insertion_points
from widthlab.statistics.alignment.pooling import Pooling

LOSS = supervised(nn.CrossEntropyLoss(reduction="none"))


def sequence_loss(model, batch):
    return cross_entropy_by_sequence(model(batch[0]), *batch[1:])


def direct(model, name, losses, batches):
    """The slow twin: the gradient of every sample's loss alone, by a hook and backward()."""
    model.eval()
    found = []

    def keep(module, args, output):
        # What follows overwrites the output in place, so the gradient is caught on a copy.
        h = output[0] if isinstance(output, tuple) else output
        h = h.clone()
        h.register_hook(found.append)
        return (h, *output[1:]) if isinstance(output, tuple) else h

    handle = model.get_submodule(name).register_forward_hook(keep)
    for batch in batches:
        for i in range(len(batch[0])):
            losses(model, tuple(part[i : i + 1] for part in batch)).sum().backward()
    handle.remove()
    model.zero_grad()
    return [gradient[0] for gradient in found]


def measured(model, points, losses, batches, **options):
    with activation_gradients(model, points, losses, batches, **options) as found:
        return {name: np.array(rows) for name, rows in found.rows.items()}, found.losses


def rows_of(gradients, reduce):
    return torch.stack([reduce(gradient).flatten() for gradient in gradients]).numpy()


@pytest.mark.parametrize("how", ["sum", "mean", "whole"])
def test_images_equal_one_backward_pass_for_each_sample(how):
    model = built(Pictures)
    reduce = {
        "sum": lambda g: g.sum((1, 2)),
        "mean": lambda g: g.mean((1, 2)),
        "whole": lambda g: g,
    }[how]
    points = {"stem": Pooling(how), "stem.*": Pooling(how), "relu": Pooling(how)}
    found, losses = measured(model, points, LOSS, pictures())
    assert list(found) == ["stem", "stem.0", "stem.1", "relu"]
    for name, rows in found.items():
        twin = rows_of(direct(model, name, LOSS, pictures()), reduce)
        np.testing.assert_allclose(rows, twin, rtol=1e-9, atol=1e-14)
    each = torch.cat([LOSS(model, batch) for batch in pictures(sizes=[1] * 7)])
    np.testing.assert_allclose(losses, each.detach().numpy())


@pytest.mark.parametrize("how", ["sum", "mean", "whole"])
def test_text_equals_one_backward_pass_for_each_sequence(how):
    """Features last, and a module that returns a tuple."""
    model = built(Decoder)
    names = ["embedding", "attention", "mlp.1", "head"]
    found, _ = measured(model, dict.fromkeys(names, Pooling(how)), sequence_loss, sentences())
    reduce = {"sum": lambda g: g.sum(0), "mean": lambda g: g.mean(0), "whole": lambda g: g}[how]
    for name in names:
        twin = rows_of(direct(model, name, sequence_loss, sentences()), reduce)
        np.testing.assert_allclose(found[name], twin, rtol=1e-9, atol=1e-14)


def test_masked_tokens_are_ignored():
    """Other tokens in the padding change nothing, and means are over what is not padding."""
    model, batches = built(Decoder), sentences()
    changed = [(torch.where(m, x, 6 - x), torch.where(m, y, 3), m) for x, y, m in batches]
    points = {"mlp": Pooling("mean"), "head": Pooling("sum"), "attention": Pooling("whole")}
    one, _ = measured(model, points, sequence_loss, batches, mask=lambda batch: batch[2])
    two, _ = measured(model, points, sequence_loss, changed, mask=lambda batch: batch[2])
    for name, rows in one.items():
        np.testing.assert_allclose(rows, two[name], rtol=1e-12, atol=1e-15)
    lengths = torch.cat([m for *_, m in batches]).sum(1)
    twin = direct(model, "mlp", sequence_loss, batches)
    means = [g[:n].mean(0) for g, n in zip(twin, lengths, strict=True)]
    np.testing.assert_allclose(one["mlp"], torch.stack(means).numpy(), rtol=1e-9, atol=1e-14)


def test_a_mask_drops_gradients_that_are_not_zero():
    """A loss on all tokens, but rows from the unmasked positions only."""
    model, batches = built(Decoder), sentences()

    def everywhere(model, batch):
        return cross_entropy_by_sequence(model(batch[0]), batch[1])

    found, _ = measured(model, "head", everywhere, batches, mask=lambda batch: batch[2])
    masks = torch.cat([m for *_, m in batches])
    twin = direct(model, "head", everywhere, batches)
    kept = [(g * m[:, None]).sum(0) for g, m in zip(twin, masks, strict=True)]
    np.testing.assert_allclose(found["head"], torch.stack(kept).numpy(), rtol=1e-9, atol=1e-14)


def test_batches_and_their_order_do_not_matter():
    model = built(Pictures)
    one, _ = measured(model, "stem", LOSS, pictures())
    two, _ = measured(model, "stem", LOSS, pictures(sizes=(1, 4, 2)))
    three, _ = measured(model, "stem", LOSS, pictures()[::-1])
    np.testing.assert_allclose(two["stem"], one["stem"], rtol=1e-10)
    np.testing.assert_allclose(three["stem"], np.roll(one["stem"], 4, axis=0), rtol=1e-10)


def test_one_forward_and_one_backward_pass_for_all_points():
    """Passes are counted at the last module; the first batch is differentiated once more."""
    model = built(Pictures)
    passes = {"forward": 0, "backward": 0}

    def forward(module, args, output):
        passes["forward"] += 1
        output.register_hook(lambda g: passes.update(backward=passes["backward"] + 1))

    model.head.register_forward_hook(forward)
    measured(model, ["stem", "relu", "body"], LOSS, pictures(sizes=(3, 2, 2)))
    assert passes == {"forward": 3, "backward": 4}


def test_the_model_is_left_as_it_was():
    model = built(Pictures).train()
    model.head.weight.requires_grad_(False)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    measured(model, "body", LOSS, pictures())
    assert model.training
    assert model.stem[1].training
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    trained = [name for name, p in model.named_parameters() if not p.requires_grad]
    assert trained == ["head.weight"]
    assert all(p.grad is None for p in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


def test_grams_are_those_of_the_rows():
    model = built(Pictures)
    train, test = pictures(), pictures(5, (2, 3), seed=9)
    grams = alignment_grams(model, ["body"], LOSS, train, test)["body"]
    both = np.concatenate(
        [measured(model, "body", LOSS, part)[0]["body"] for part in (train, test)]
    )
    np.testing.assert_allclose(grams.pooled, both @ both.T, rtol=1e-12)


def test_rows_lie_on_disk_and_go_away():
    with activation_gradients(built(Pictures), "body", LOSS, pictures()) as found:
        path = found.rows["body"].base.filename
        assert path.exists()
    assert not path.exists()


@pytest.mark.parametrize("axis", [None, 1, -1])
@pytest.mark.parametrize("how", ["sum", "mean", "whole"])
@pytest.mark.parametrize("shape", [(3, 4), (3, 5, 4), (3, 4, 2, 5)])
@pytest.mark.parametrize("masked", [False, True])
def test_spread_is_the_adjoint_of_pool(shape, how, axis, masked):
    generator = torch.Generator().manual_seed(3)
    pooling = Pooling(how, axis)
    channels = pooling.channels(len(shape))
    gradient = torch.randn(shape, generator=generator, dtype=torch.float64)
    positions = [n for i, n in enumerate(shape) if i not in (0, channels)]
    mask = torch.rand((shape[0], *positions), generator=generator) < 0.6 if masked else None
    rows = pooling.pool(gradient, mask)
    assert rows.shape == (3, pooling.features(torch.Size(shape)))
    b = torch.randn(rows.shape, generator=generator, dtype=torch.float64)
    left = (pooling.spread(b, torch.Size(shape), mask) * gradient).flatten(1).sum(1)
    torch.testing.assert_close(left, (b * rows).sum(1))


def test_a_view_that_is_overwritten():
    """The activation is what the module returned, not what an operation in place makes of it."""
    model = nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (2, 3)), nn.ReLU(inplace=True))
    model = nn.Sequential(model.double(), nn.Flatten())
    points = {"0.0": Pooling(), "0.1": Pooling("whole")}
    found, _ = measured(model, points, squares, vectors())
    h = model[0][0](torch.cat(vectors())).detach()
    np.testing.assert_allclose(found["0.1"], (2 * h.relu()).numpy(), rtol=1e-12)


def test_patterns_are_compared_part_by_part():
    model = built(Decoder)
    assert list(insertion_points(model, "*")) == ["embedding", "attention", "norm", "mlp", "head"]
    assert list(insertion_points(model, ["mlp.*", "attention"])) == [
        "attention",
        "mlp.0",
        "mlp.1",
        "mlp.2",
    ]
    mixed = insertion_points(model, {"mlp.0": Pooling("mean"), "mlp.*": Pooling("whole")})
    assert [pooling.how for pooling in mixed.values()] == ["mean", "whole", "whole"]


class Mixing(nn.Module):
    """Samples affect one another."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)

    def forward(self, x):
        h = self.body(x)
        return h - h.mean(dim=0)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)

    def forward(self, x):
        return self.body(torch.tanh(self.body(x)))


class Ignoring(nn.Module):
    def __init__(self):
        super().__init__()
        self.side, self.body = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        self.side(x)
        return self.body(x)


class Positions(nn.Module):
    """The first axis of `body` is not the samples'."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)

    def forward(self, x):
        return self.body(x.expand(2, -1, -1)).mean(dim=0)


class Dictionary(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Module()
        self.body.forward = lambda x: {"h": x}

    def forward(self, x):
        return self.body(x)["h"]


@dataclass
class Output:
    loss: torch.Tensor | None
    nothing: str
    hidden: torch.Tensor
    other: torch.Tensor


class Wrapping(nn.Module):
    """`body` returns a dataclass, as modules of transformers do."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.body = nn.Module()
        self.body.forward = lambda x: Output(x.sum(), "", torch.tanh(x), x)

    def forward(self, x):
        output = self.body(self.inner(x))
        assert (output.nothing, output.other.shape) == ("", x.shape)
        return output.hidden**2 + output.other


def test_the_first_tensor_of_a_dataclass_is_the_activation():
    model = built(Wrapping)
    found, _ = measured(model, "body", squares, vectors())
    with torch.no_grad():
        x = model.inner(torch.cat(vectors()))
        h = torch.tanh(x)
        expected = 2 * (h**2 + x) * 2 * h
    np.testing.assert_allclose(found["body"], expected.numpy(), rtol=1e-12)


def squares(model, batch):
    return (model(batch) ** 2).sum(dim=1)


def vectors(n=6, size=3):
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    return list(x.split(size))


@pytest.mark.parametrize(
    ("kind", "points", "losses", "message"),
    [
        (Ignoring, "bodi", squares, "'bodi' is not a module of Ignoring; the nearest are body"),
        (Ignoring, [], squares, "at least one insertion point"),
        (Ignoring, "side", squares, "depends on none of the insertion points side"),
        (Ignoring, ["side", "body"], squares, "not depend on the output of insertion point 'side'"),
        (Mixing, "body", squares, "one sample depends on others through 'body'"),
        (Twice, "body", squares, "'body' is called more than once"),
        (Positions, "body", lambda m, x: (m(x) ** 2).sum(1), "samples' axis first"),
        (Dictionary, "body", squares, "'body' returns a dict"),
        (Ignoring, "body", lambda m, x: squares(m, x).mean(), "a single number; it seems to be av"),
        (Ignoring, "body", lambda m, x: m(x) ** 2, "of shape \\(3, 4\\)"),
        (Ignoring, "body", lambda m, x: 1.0, "not a float"),
        (Ignoring, "body", lambda m, x: squares(m, x).detach(), "do not detach the loss"),
        (Ignoring, "body", lambda m, x: squares(m, x).log() * 0 / 0, "not finite for sample 0 of"),
    ],
)
def test_what_is_refused(kind, points, losses, message):
    with pytest.raises(WidthlabError, match=message):
        measured(built(kind), points, losses, vectors())


def test_loaders_that_are_refused():
    model = built(Twice)
    with pytest.raises(WidthlabError, match="the loader gives all samples in one batch"):
        measured(Ignoring().double(), "body", squares, vectors(size=6))
    with pytest.raises(WidthlabError, match="at least 4 samples, but the loader gave 3"):
        measured(Ignoring().double(), "body", squares, vectors(3, 1))
    with pytest.raises(WidthlabError, match="the loader gave 0"):
        measured(model, "body", squares, [])


def never(model, batch):
    raise AssertionError("no batch should have been run")


def test_a_single_batch_is_refused_before_it_is_run():
    """Of a list and of an iterator; and a single test batch before the training samples."""
    model = Ignoring().double()
    for batches in (vectors(size=6), iter(vectors(size=6))):
        with pytest.raises(WidthlabError, match="the loader gives all samples in one batch"):
            measured(model, "body", never, batches)
    for batches in (vectors(size=6), iter(vectors(size=6))):
        with pytest.raises(WidthlabError, match="the test loader gives all samples in one batch"):
            alignment_grams(model, "body", never, vectors(), batches)


def test_an_iterator_is_used_up_once():
    model = Ignoring().double()
    one, _ = measured(model, "body", squares, iter(vectors()))
    two, _ = measured(model, "body", squares, vectors())
    np.testing.assert_array_equal(one["body"], two["body"])


def test_points_that_are_not_reached_or_have_no_gradient():
    with pytest.raises(WidthlabError, match="'unused' is not reached in the forward pass"):
        measured(built(Pictures), ["body", "unused"], LOSS, pictures())
    model = nn.Sequential(nn.Identity(), nn.Embedding(7, 3)).double()
    tokens = torch.arange(6).split(3)
    with pytest.raises(WidthlabError, match=r"'0' returns torch.int64 numbers"):
        measured(model, "0", squares, list(tokens))


def test_sequences_of_different_lengths():
    """They may be pooled over positions, but not taken whole."""
    model = built(Decoder)
    batches = [*sentences(4, 5), *sentences(4, 3, seed=5)]
    found, _ = measured(model, "mlp", sequence_loss, batches)
    assert found["mlp"].shape == (8, 6)
    with pytest.raises(WidthlabError, match="18 features in batch 2 but 30 before"):
        measured(model, {"mlp": Pooling("whole")}, sequence_loss, batches)


def test_poolings_that_are_refused():
    with pytest.raises(WidthlabError, match="sum, mean, whole, not 'max'"):
        Pooling("max")
    with pytest.raises(WidthlabError, match="channels' axis 3 is not one of the axes 1 to 2"):
        Pooling("sum", 3).pool(torch.ones(2, 3, 4))
    with pytest.raises(WidthlabError, match="1 axes"):
        Pooling().pool(torch.ones(2))
    with pytest.raises(WidthlabError, match=r"it must be \(2, 3\), true where"):
        Pooling().pool(torch.ones(2, 3, 4), torch.ones(2, 4))


def test_half_precision_is_pooled_in_single():
    gradient = torch.full((2, 3000, 1), 1.0, dtype=torch.bfloat16)
    rows = Pooling("sum").pool(gradient)
    assert rows.dtype == torch.float32
    assert rows.tolist() == [[3000.0], [3000.0]]
