"""The decoder of LLaMA's kind: its library's own network, drawn from our generator."""

import pytest
import torch
from torch.nn.functional import cross_entropy, one_hot

from widthlab import specs
from widthlab.checkpoints.evaluation import IGNORE, hits, loss_of, mask_of
from widthlab.costs import size
from widthlab.errors import WidthlabError
from widthlab.models import build, skeleton
from widthlab.statistics.alignment.gradients import activation_gradients

TOKENS, LENGTH = 50, 12


def llama(width=16, depth=2, seed=0, **fields):
    network = specs.Network(architecture=specs.Llama(**fields), width=width, depth=depth)
    return build(network, (LENGTH,), TOKENS, seed)


def batch(n=6, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(0, TOKENS, (n, LENGTH), generator=generator)
    y = torch.randint(0, TOKENS, (n, LENGTH), generator=generator)
    y[-1, 5:] = IGNORE
    return x, y


def test_weights_come_from_the_seed_and_the_global_random_state_is_left_alone():
    before = torch.get_rng_state()
    first, again, other = llama(), llama(), llama(seed=1)
    assert torch.equal(before, torch.get_rng_state())
    for (name, one), two, three in zip(
        first.named_parameters(), again.parameters(), other.parameters(), strict=True
    ):
        assert torch.equal(one, two)
        assert torch.equal(one, three) == ("norm" in name)


@pytest.mark.parametrize("initialisation", ["fan_in", "fixed"])
def test_weights_have_the_promised_spread(initialisation):
    """Five standard errors, over some twenty matrices: false alarms of 1e-5."""
    model = llama(width=64, initialisation=initialisation)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            assert (parameter == 1).all()
            continue
        std = 0.02 if initialisation == "fixed" else parameter.shape[1] ** -0.5
        if "embed" in name and initialisation == "fan_in":
            std = 1.0
        count = parameter.numel()
        parameter = parameter.detach()
        assert abs(float(parameter.std()) / std - 1) < 5 / (2 * count) ** 0.5, name
        assert abs(float(parameter.mean())) < 5 * std / count**0.5, name


def test_a_position_sees_the_tokens_up_to_it():
    model, (x, _) = llama().eval(), batch()
    changed = x.clone()
    changed[:, 7] = (changed[:, 7] + 1) % TOKENS
    with torch.no_grad():
        moved = (model(changed) - model(x)).abs().amax(dim=(0, 2))
    assert moved.shape == (LENGTH,)
    assert (moved[:7] == 0).all()
    assert (moved[7:] > 0).all()


def test_it_is_the_librarys_network_also_with_plain_attention():
    model, (x, _) = llama().eval(), batch()
    logits = model(x)
    assert logits.shape == (len(x), LENGTH, TOKENS)
    model.decoder.set_attn_implementation("eager")
    torch.testing.assert_close(model(x), logits, rtol=1e-4, atol=1e-5)


def test_the_skeleton_has_the_same_parameters_without_memory():
    network = specs.Network(architecture=specs.Llama(), width=32, depth=3)
    shapes = {name: p.shape for name, p in llama(32, 3).named_parameters()}
    bones = skeleton(network, (LENGTH,), TOKENS)
    assert {name: p.shape for name, p in bones.named_parameters()} == shapes
    assert all(p.is_meta for p in bones.parameters())


@pytest.mark.parametrize(("width", "depth", "ratio"), [(16, 1, 2.6875), (32, 3, 4.0), (64, 2, 1.0)])
def test_the_estimated_size_is_that_of_all_matrices(width, depth, ratio):
    architecture = specs.Llama(intermediate_ratio=ratio)
    network = specs.Network(architecture=architecture, width=width, depth=depth)
    model = build(network, (LENGTH,), TOKENS, 0)
    matrices = sum(p.numel() for p in model.parameters() if p.ndim == 2)
    assert size(network, (LENGTH,), TOKENS).parameters == matrices


def test_signals_are_the_stream_behind_the_embedding_and_every_layer():
    model, (x, _) = llama(depth=3).eval(), batch()
    seen = {}
    for name in model.signals:
        model.get_submodule(name).register_forward_hook(
            lambda module, inputs, output, name=name: seen.update({name: output})
        )
    logits = model(x)
    assert list(seen) == list(model.signals)
    assert len(seen) == 4
    assert all(h.shape == (len(x), LENGTH, 16) for h in seen.values())
    last = model.decoder.model.norm(seen[model.signals[-1]])
    torch.testing.assert_close(model.decoder.lm_head(last), logits)


def test_gradients_at_insertion_points_equal_those_of_one_sequence_at_a_time():
    model, (x, y) = llama().eval(), batch()
    batches = [(x[:4], y[:4]), (x[4:], y[4:])]

    def losses(network, part):
        return loss_of(network(part[0]), part[1], "cross_entropy")

    with activation_gradients(
        model, list(model.signals), losses, batches, mask=lambda part: mask_of(part[1])
    ) as found:
        rows = {name: torch.from_numpy(r.copy()) for name, r in found.rows.items()}
    model.decoder.set_attn_implementation("eager")
    for name in model.signals:
        for number in range(len(x)):
            shift = torch.zeros(16, requires_grad=True)
            hook = model.get_submodule(name).register_forward_hook(
                lambda module, inputs, output, shift=shift: output + shift
            )
            counted = y[number] != IGNORE
            # Positions behind the last that counts have no gradient: nothing later is asked for.
            logits = model(x[number : number + 1])[0]
            cross_entropy(logits[counted], y[number][counted]).backward()
            hook.remove()
            torch.testing.assert_close(rows[name][number], shift.grad, rtol=2e-4, atol=1e-6)


def test_padding_changes_nothing():
    model, (x, y) = llama().eval(), batch()
    other = x.clone()
    other[-1, 5:] = 0
    one, two = (loss_of(model(part), y, "cross_entropy") for part in (x, other))
    torch.testing.assert_close(one, two, rtol=1e-6, atol=0)


def test_hits_are_shares_of_the_positions_that_count():
    x, y = batch()
    outputs = llama().eval()(x)
    expected = []
    for row, labels in zip(outputs, y, strict=True):
        right = [int(r.argmax()) == int(label) for r, label in zip(row, labels, strict=True)]
        counted = [hit for hit, label in zip(right, labels, strict=True) if label != IGNORE]
        expected.append(sum(counted) / len(counted))
    assert hits(outputs, y).tolist() == pytest.approx(expected)
    right = one_hot(y.clamp_min(0), TOKENS).float()
    assert hits(right, y).tolist() == [1.0] * len(y)


@pytest.mark.parametrize(("width", "heads"), [(20, 4), (4, 4), (18, 2)])
def test_widths_that_do_not_divide_into_heads_are_refused(width, heads):
    with pytest.raises(ValueError, match=f"width {width} does not divide into {heads} heads"):
        specs.Network(architecture=specs.Llama(heads=heads), width=width, depth=1)


def test_it_takes_sequences_only_and_pretrained_ones_are_not_drawn():
    network = specs.Network(architecture=specs.Llama(), width=16, depth=1)
    with pytest.raises(WidthlabError, match="llama takes sequences of tokens"):
        build(network, (1, 8, 8), 10, 0)
    network = specs.Network(architecture=specs.Pythia(), width=128, depth=6)
    with pytest.raises(WidthlabError, match="never drawn at random"):
        build(network, (16,), 10, 0)
