"""Training against a plain loop, on real digits, and where it goes wrong."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import runs
import torch

from widthlab import training
from widthlab.checkpoints.evaluation import CHUNK_SAMPLES, evaluate, loss_of
from widthlab.checkpoints.files import (
    load_history,
    load_model,
    load_snapshot,
    snapshot_path,
    write_history,
)
from widthlab.checkpoints.schedule import BatchOrder, Seeds, learning_rate
from widthlab.data import prepare
from widthlab.errors import WidthlabError
from widthlab.models import build
from widthlab.training import make_optimiser


def _plain_loss(outputs, labels, kind):
    total = 0.0
    for row, label in zip(outputs, labels, strict=True):
        if kind == "mse":
            for index, value in enumerate(row):
                total = total + 0.5 * (value - float(index == label)) ** 2
        else:
            total = total + torch.log(torch.exp(row).sum()) - row[label]
    return total / len(labels)


@pytest.mark.parametrize("kind", ["mse", "cross_entropy"])
def test_losses_equal_their_definitions(kind):
    rng = np.random.default_rng(0)
    outputs = torch.from_numpy(rng.normal(size=(7, 4)))
    labels = torch.from_numpy(rng.integers(0, 4, size=7))
    got = loss_of(outputs, labels, kind)
    assert got.shape == (7,)
    torch.testing.assert_close(got.mean(), _plain_loss(outputs, labels, kind))


def test_evaluation_in_chunks_is_the_mean_over_all():
    samples = 2 * CHUNK_SAMPLES + 3
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(samples, 5)))
    labels = torch.from_numpy(rng.integers(0, 3, size=samples))
    model = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.BatchNorm1d(3)).double()
    loss, accuracy = evaluate(model, x, labels, "mse", lambda raw: 2 * raw)
    model.eval()
    outputs = model(2 * x).detach()
    assert loss == pytest.approx(float(loss_of(outputs, labels, "mse").mean()), rel=1e-12)
    assert accuracy == pytest.approx(float((outputs.argmax(1) == labels).double().mean()))
    assert torch.count_nonzero(model[1].running_mean) == 0


def _plain_training(spec):
    """The same training with every update written out, in order of the steps."""
    how, seeds = spec.training, Seeds.of(spec)
    data = prepare(spec.data, None)
    x, y = data.train()
    model = build(spec.network, data.input_shape, data.outputs, seeds.initialisation)
    factors = model.learning_rate_factors(how.optimiser)
    parameters = dict(model.named_parameters())
    first = {name: torch.zeros_like(p) for name, p in parameters.items()}
    second = {name: torch.zeros_like(p) for name, p in parameters.items()}
    order = BatchOrder(len(y), how.batch_size, seeds.order)
    for step in range(how.steps):
        batch = torch.from_numpy(order(step))
        loss = loss_of(model(x[batch]), y[batch], how.loss).mean()
        grads = dict(zip(parameters, torch.autograd.grad(loss, parameters.values()), strict=True))
        norm = math.sqrt(sum(float(g.square().sum()) for g in grads.values()))
        shrink = min(1.0, (how.clip_norm or math.inf) / norm)
        for name, parameter in parameters.items():
            rate = learning_rate(how, step) * factors[name]
            grad = shrink * grads[name] + how.weight_decay * parameter.detach()
            if how.optimiser == "sgd":
                first[name] = how.momentum * first[name] + grad
                update = first[name]
            else:
                first[name] = 0.9 * first[name] + 0.1 * grad
                second[name] = 0.999 * second[name] + 0.001 * grad**2
                root = (second[name] / (1 - 0.999 ** (step + 1))).sqrt()
                update = first[name] / (1 - 0.9 ** (step + 1)) / (root + 1e-8)
            with torch.no_grad():
                parameter -= rate * update
    return {name: p.detach() for name, p in parameters.items()}


@pytest.mark.parametrize(
    "options",
    [
        {"momentum": 0.9, "weight_decay": 0.01, "schedule": "cosine", "warmup_steps": 3},
        {"clip_norm": 0.05, "loss": "mse"},
        {"optimiser": "adam", "learning_rate": 0.01, "weight_decay": 0.01, "schedule": "linear"},
    ],
    ids=["momentum", "clipping", "adam"],
)
@pytest.mark.parametrize("parameterisation", ["standard", "mup", "ntk"])
def test_training_equals_a_plain_loop(tmp_path, options, parameterisation):
    network = {"name": "mlp", "activation": "tanh", "parameterisation": parameterisation,
               "bias_variance": 0.1}  # fmt: skip
    spec = runs.checkpoint(network, steps=15, **options)
    runs.run(spec, tmp_path)
    got = load_snapshot(tmp_path / "out", 15)
    for name, expected in _plain_training(spec).items():
        torch.testing.assert_close(got[name], expected, rtol=1e-4, atol=1e-5)


def test_full_batch_takes_all_samples_in_every_step(tmp_path):
    full = runs.checkpoint({"name": "mlp"}, batch_size="full", steps=8)
    runs.run(full, tmp_path / "full")
    large = runs.checkpoint({"name": "mlp"}, batch_size=50, steps=8)
    runs.run(large, tmp_path / "large")
    states = [load_snapshot(tmp_path / name / "out", 8) for name in ("full", "large")]
    for name, tensor in states[0].items():
        torch.testing.assert_close(tensor, states[1][name], rtol=1e-4, atol=1e-5)


def test_mup_factors_reach_the_optimiser():
    spec = runs.checkpoint({"name": "mlp", "parameterisation": "mup"}, width=128)
    model = build(spec.network, (16,), 2, 0)
    factors = model.learning_rate_factors("sgd")
    groups = make_optimiser(model, spec.training).param_groups
    found = {id(p): group["factor"] for group in groups for p in group["params"]}
    assert {name: found[id(p)] for name, p in model.named_parameters()} == factors
    assert set(found.values()) == {2.0, 1.0, 0.5}


def test_a_tiny_network_learns_the_digits(tmp_path):
    spec = runs.checkpoint({"name": "mlp"}, width=32, data={"name": "digits"}, batch_size=64,
                           steps=200, momentum=0.9, learning_rate=0.05)  # fmt: skip
    summary = runs.run(spec, tmp_path)
    history = load_history(tmp_path / "out")
    assert (summary.status, summary.diverged_step) == ("finished", None)
    assert history["step"] == list(summary.snapshots) == [0, 1, 4, 14, 53, 200]
    assert history["test_accuracy"][-1] > 0.85
    assert history["test_accuracy"][0] < 0.4
    assert history["learning_rate"] == [0.05] * 6
    data = prepare(spec.data, None)
    for position, step in enumerate(summary.snapshots):
        model = load_model(tmp_path / "out", step)
        assert not model.training
        for part, (x, labels) in (("train", data.train()), ("test", data.test())):
            outputs = model(x).detach()
            loss = float(loss_of(outputs, labels, "cross_entropy").double().mean())
            accuracy = float((outputs.argmax(1) == labels).double().mean())
            assert history[f"{part}_loss"][position] == pytest.approx(loss, rel=1e-5)
            assert history[f"{part}_accuracy"][position] == pytest.approx(accuracy)


@pytest.mark.parametrize("loss", ["mse", "cross_entropy"])
def test_divergence_is_an_outcome_and_keeps_what_came_before(tmp_path, loss):
    network = {"name": "mlp", "activation": "linear"}
    spec = runs.checkpoint(network, learning_rate=1e6, loss=loss, steps=400, snapshots=100)
    lines = []
    summary = runs.run(spec, tmp_path, lines.append)
    assert summary.status == "diverged"
    assert 0 < summary.diverged_step < 400
    assert f"diverged after {summary.diverged_step} steps" in lines[-1]
    history = load_history(tmp_path / "out")
    assert (history["status"], history["diverged_step"]) == ("diverged", summary.diverged_step)
    assert len(history["step"]) > 0
    assert max(history["step"]) <= summary.diverged_step
    on_disk = sorted((tmp_path / "out").glob("*.safetensors"))
    assert on_disk == [snapshot_path(tmp_path / "out", step) for step in summary.snapshots]
    for step in summary.snapshots:
        state = load_snapshot(tmp_path / "out", step)
        assert all(bool(torch.isfinite(tensor).all()) for tensor in state.values())
    first = runs.digests(tmp_path)
    assert runs.run(spec, tmp_path).diverged_step == summary.diverged_step
    assert runs.digests(tmp_path) == first


def test_history_has_null_where_a_value_is_not_finite(tmp_path):
    write_history(tmp_path, {"status": "x", "test_loss": [1.0, math.inf, math.nan]})
    text = (tmp_path / "history.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail)["test_loss"] == [1.0, None, None]
    read = load_history(tmp_path)["test_loss"]
    assert read[0] == 1.0
    assert math.isnan(read[1])


def test_training_neither_reads_nor_changes_global_random_states(tmp_path):
    torch.manual_seed(1)
    spec = runs.checkpoint(learning_rate=0.01)
    before = torch.get_rng_state()
    runs.run(spec, tmp_path / "a")
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    runs.run(spec, tmp_path / "b")
    assert runs.digests(tmp_path / "a") == runs.digests(tmp_path / "b")


def test_seeds_change_the_run(tmp_path):
    runs.run(runs.checkpoint(seed=0), tmp_path / "a")
    runs.run(runs.checkpoint(seed=1), tmp_path / "b")
    assert runs.digests(tmp_path / "a") != runs.digests(tmp_path / "b")


def test_batches_of_one_do_not_go_with_batch_normalisation(tmp_path):
    with pytest.raises(WidthlabError, match="batch_size: 1 does not go"):
        runs.run(runs.checkpoint(batch_size=1), tmp_path)
    assert runs.run(runs.checkpoint({"name": "mlp"}, batch_size=1), tmp_path).status == "finished"


def test_progress_tells_step_loss_accuracy_rate_and_time(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "LOG_SECONDS", 0.0)
    lines = []
    runs.run(runs.checkpoint(), tmp_path, lines.append)
    assert lines[0].startswith("training on cpu: ")
    progress = [line for line in lines if line.startswith("step ")]
    assert len(progress) == 40
    for word in ("step 40/40", "loss ", "accuracy ", "rate 0.1", "steps/s", "s left"):
        assert word in progress[-1]


def test_missing_snapshots_are_named(tmp_path):
    with pytest.raises(WidthlabError, match=r"step-0000003\.safetensors is missing"):
        load_snapshot(tmp_path, 3)
    with pytest.raises(WidthlabError, match=r"history\.json is missing"):
        load_history(tmp_path)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_run_is_repeatable_and_agrees_with_the_cpu(tmp_path, monkeypatch):
    spec = runs.checkpoint({"name": "mlp"}, steps=10)
    runs.run(spec, tmp_path / "cpu")
    monkeypatch.setattr(runs, "CPU", torch.device("cuda"))
    for name in ("a", "b"):
        runs.run(spec, tmp_path / name)
    assert runs.digests(tmp_path / "a") == runs.digests(tmp_path / "b")
    cpu, gpu = (load_snapshot(tmp_path / name / "out", 10) for name in ("cpu", "a"))
    for key, tensor in cpu.items():
        torch.testing.assert_close(gpu[key], tensor, rtol=1e-3, atol=1e-4)
