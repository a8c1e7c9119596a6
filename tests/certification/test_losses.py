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
from widthlab.certification.losses import losses_of, outputs_and_labels, padding
from widthlab.errors import WidthlabError
from widthlab.statistics.alignment.gradients import activation_gradients

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
    torch.testing.assert_close(losses_of(loss)(model, batch), expected)


def test_half_the_squared_distance_to_the_class():
    model, (x, y) = perceptron(), next(iter(loader()))
    expected = 0.5 * (model(x) - F.one_hot(y, 3)).square().sum(1)
    torch.testing.assert_close(losses_of("mse")(model, (x, y)), expected)


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
        found = losses_of(loss)(model, batch)
        torch.testing.assert_close(found, torch.stack(expected))
        pair = (batch["input_ids"][:, :-1], labels[:, 1:])
        torch.testing.assert_close(losses_of(loss)(model, pair), found)


def test_padding_has_no_part_in_the_gradients():
    """Other tokens there change nothing; means are over the tokens that are there."""
    model, points = neox(), ["gpt_neox.layers.*", "gpt_neox"]
    rows = []
    for filler in (0, 7):
        batches = sentences(filler=filler)
        with activation_gradients(
            model, points, losses_of("cross_entropy"), batches, mask=padding
        ) as found:
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


def test_masks():
    assert padding((torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64))) is None
    assert padding((torch.zeros(2, 3), torch.zeros(2, 3))) is None
    assert padding(torch.zeros(2, 3)) is None
    assert padding({"input_ids": 0}) is None
    labels = torch.tensor([[3, -100], [-100, 1]])
    assert padding((0, labels)).tolist() == [[True, False], [False, True]]
    mask = torch.tensor([[1, 0]])
    assert padding({"attention_mask": mask}).tolist() == [[True, False]]


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
    torch.testing.assert_close(losses_of(EACH)(model, batch).mean(), model(**batch).loss)


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
