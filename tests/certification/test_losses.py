"""What is made of a loss and of a batch: pairs, and the mappings of transformers."""

from functools import partial

import numpy as np
import pytest
import torch
from owned import loader, neox, perceptron, sentences
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own name for it
from transformers import BertConfig, BertForMaskedLM

import widthlab
from widthlab.certification.losses import BatchLosses, outputs_and_labels
from widthlab.checkpoints.evaluation import loss_of
from widthlab.errors import WidthlabError
from widthlab.statistics.alignment.gradients import activation_gradients
from widthlab.statistics.alignment.pooling import Pooling

EACH = nn.CrossEntropyLoss(reduction="none")


@pytest.mark.parametrize(
    "loss",
    [
        "cross_entropy",
        EACH,
        partial(F.cross_entropy, reduction="none"),
        lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], reduction="none"),
    ],
)
def test_pairs(loss):
    model, batch = perceptron(), next(iter(loader()))
    expected = EACH(model(batch[0]), batch[1])
    torch.testing.assert_close(BatchLosses(loss)(model, batch), expected)


def test_half_the_squared_distance_to_the_class():
    model, (x, y) = perceptron(), next(iter(loader()))
    expected = 0.5 * (model(x) - F.one_hot(y, 3)).square().sum(1)
    torch.testing.assert_close(BatchLosses("mse")(model, (x, y)), expected)


@pytest.mark.parametrize(
    "loss", ["cross_entropy", EACH, nn.CrossEntropyLoss(reduction="none", ignore_index=-7)]
)
def test_a_sequence_has_the_mean_over_its_tokens(loss):
    """As transformers' own loss has it, sequence by sequence, padding left out."""
    model = neox()
    for batch in sentences():
        labels = batch["labels"].masked_fill(batch["attention_mask"] == 0, -100)
        expected = [
            model(
                input_ids=batch["input_ids"][i : i + 1],
                attention_mask=batch["attention_mask"][i : i + 1],
                labels=labels[i : i + 1],
            ).loss
            for i in range(4)
        ]
        found = BatchLosses(loss)(model, batch)
        torch.testing.assert_close(found, torch.stack(expected))
        pair = (batch["input_ids"][:, :-1], labels[:, 1:])
        torch.testing.assert_close(BatchLosses(loss)(model, pair), found)


def test_padding_has_no_part_in_the_gradients():
    """Other tokens there change nothing; means are over the tokens that are there."""
    model, points = neox(), ["gpt_neox.layers.*", "gpt_neox"]
    rows = []
    for filler in (0, 7):
        batches = sentences(filler=filler)
        losses = BatchLosses("cross_entropy")
        with activation_gradients(model, points, losses, batches, mask=losses.mask) as found:
            rows.append({name: np.array(part) for name, part in found.rows.items()})
    assert list(rows[0]) == ["gpt_neox", "gpt_neox.layers.0", "gpt_neox.layers.1"]
    for name, part in rows[0].items():
        np.testing.assert_allclose(part, rows[1][name], rtol=1e-5, atol=1e-8)
        assert np.abs(part).max() > 1e-5


def test_certificates_of_a_language_model():
    found = widthlab.certify(
        neox(), "gpt_neox.layers.*", EACH, sentences(16), sentences(16, seed=9), pooling="mean"
    )
    assert list(found) == ["gpt_neox.layers.0", "gpt_neox.layers.1"]
    assert found.samples == (16, 16)


def test_masks_are_those_of_the_losses():
    """Positions whose label counts; pairs and mappings alike, the last has no next label."""
    model, losses = neox(), BatchLosses("cross_entropy")
    (batch, *_) = sentences()
    batch["labels"][0, 1] = -100
    losses(model, batch)
    there = (batch["attention_mask"] == 1) & (batch["labels"] != -100)
    expected = torch.nn.functional.pad(there[:, 1:], (0, 1))
    assert torch.equal(losses.mask(batch), expected)
    labels = torch.where(there, batch["labels"], -100)[:, 1:]
    pair = (batch["input_ids"][:, :-1], labels)
    losses(model, pair)
    assert torch.equal(losses.mask(pair), expected[:, :-1])
    bare = {"input_ids": batch["input_ids"], "labels": torch.where(there, batch["labels"], -100)}
    losses(model, bare)
    assert torch.equal(losses.mask(bare), expected)


def test_a_mean_over_positions_is_the_same_from_pairs_and_from_mappings():
    model, rows = neox(), []
    mappings = sentences()
    pairs = [
        (b["input_ids"][:, :-1], b["labels"].masked_fill(b["attention_mask"] == 0, -100)[:, 1:])
        for b in mappings
    ]
    for batches in (mappings, pairs):
        losses = BatchLosses("cross_entropy")
        points = {"gpt_neox.layers.*": Pooling("mean")}
        with activation_gradients(model, points, losses, batches, mask=losses.mask) as found:
            rows.append({name: np.array(part) for name, part in found.rows.items()})
    for name, part in rows[0].items():
        np.testing.assert_allclose(part, rows[1][name], rtol=1e-4, atol=1e-7)


def test_what_is_no_sequence_has_no_mask():
    model, (x, y) = perceptron(), next(iter(loader()))
    for loss, labels in (
        ("cross_entropy", y),
        (nn.MultiLabelMarginLoss(reduction="none"), torch.tensor([[0, 1, -1]]).repeat(16, 1)),
        (lambda model, batch: model(batch[0])[:, 0], torch.zeros(16, 3, dtype=torch.int64)),
    ):
        losses = BatchLosses(loss)
        assert losses(model, (x, labels)).shape == (16,)
        assert losses.mask((x, labels)) is None
    losses = BatchLosses(lambda model, batch: batch["values"])
    batch = {"values": torch.ones(1), "attention_mask": torch.tensor([[1, 0]])}
    losses(model, batch)
    assert losses.mask(batch).tolist() == [[True, False]]


def test_real_targets():
    """Half the squared distance; torch's own criterion is twice it, summed over outputs."""
    model, (x, _) = perceptron(), next(iter(loader()))
    y = torch.randn(16, 3, generator=torch.Generator().manual_seed(4))
    expected = (model(x) - y).square().sum(1)
    torch.testing.assert_close(BatchLosses("mse")(model, (x, y)), expected / 2)
    found = BatchLosses(nn.MSELoss(reduction="none"))(model, (x, y))
    torch.testing.assert_close(found, expected)
    shares = y.softmax(1)
    found = BatchLosses("cross_entropy")(model, (x, shares))
    torch.testing.assert_close(found, F.cross_entropy(model(x), shares, reduction="none"))


@pytest.mark.parametrize(
    ("loss", "labels", "message"),
    [
        (
            "mse",
            torch.zeros(16, 2),
            r"mse cannot compare outputs of shape \(16, 3\) with labels of",
        ),
        ("mse", torch.zeros(16, 3, dtype=torch.int64), "mse has no labels of shape .* whole"),
        (nn.MSELoss(reduction="none"), torch.zeros(16, 1), "MSELoss cannot compare outputs"),
        (
            "cross_entropy",
            torch.zeros(16, 1, dtype=torch.int64),
            r"labels of shape \(16, 1\) \(int",
        ),
        ("cross_entropy", torch.full((16,), 3), "labels run from 3 to 3, but the model has 3"),
        (EACH, torch.full((16,), 3), "CrossEntropyLoss fails on outputs .*: Target 3 is out of"),
        (EACH, torch.zeros(16, 1, dtype=torch.int64), "CrossEntropyLoss fails on outputs"),
        ("cross_entropy", [0] * 16, "labels must be a tensor .* not a list"),
        ("cross_entropy", None, "labels must be a tensor .* not a NoneType"),
    ],
)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_labels_that_do_not_fit(loss, labels, message):
    model, (x, _) = perceptron(), next(iter(loader()))
    with pytest.raises(WidthlabError, match=message):
        BatchLosses(loss)(model, (x, labels))


def test_sequences_have_no_squared_distance():
    (batch, *_) = sentences()
    with pytest.raises(WidthlabError, match="mse has no labels of shape"):
        BatchLosses("mse")(neox(), batch)
    with pytest.raises(WidthlabError, match="mse is not that of sequences"):
        loss_of(torch.zeros(2, 4, 5), torch.zeros(2, 4, dtype=torch.int64), "mse")


class Pooled(nn.Module):
    """A model for (x, mask) in a mapping, whose classes are of the whole sequence."""

    def forward(self, values, extra=None):
        return (values.mean(1), "more")


def test_labels_that_are_not_those_of_a_causal_model_are_not_shifted():
    values = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(0))
    outputs, labels = outputs_and_labels(Pooled(), {"values": values, "labels": torch.arange(4)})
    assert (outputs.shape, labels.tolist()) == ((4, 5), [0, 1, 2, 3])


def test_labels_of_masked_language_models_are_not_shifted():
    """As their own loss has it: the mean over all labels of sequences of one length."""
    config = BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=8,
    )
    model = BertForMaskedLM(config).eval()
    tokens = torch.randint(0, 20, (3, 6), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": tokens, "labels": tokens.flip(1)}
    torch.testing.assert_close(BatchLosses(EACH)(model, batch).mean(), model(**batch).loss)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"values": torch.zeros(2, 3, 5)}, "with the keys values has no labels"),
        ((1, 2, 3), "not a tuple of 3; give the loss as a function"),
        (torch.zeros(2), "not a Tensor"),
    ],
)
def test_batches_that_are_refused(batch, message):
    with pytest.raises(WidthlabError, match=message):
        outputs_and_labels(Pooled(), batch)


def test_outputs_that_are_refused():
    model = nn.Module()
    model.forward = lambda x: {"h": x}
    with pytest.raises(WidthlabError, match="returns a dict and no tensor of outputs"):
        outputs_and_labels(model, (torch.zeros(2), torch.zeros(2)))
