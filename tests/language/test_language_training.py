"""A language model is trained by the same run as any network, and read back."""

import hashlib
import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from widthlab import specs, training
from widthlab.checkpoints import evaluation
from widthlab.checkpoints.evaluation import evaluate
from widthlab.checkpoints.files import load_history, load_model
from widthlab.checkpoints.schedule import Seeds
from widthlab.costs import Size, training_cost
from widthlab.data import prepare
from widthlab.data.prepared import IGNORE
from widthlab.experiments.shared.measured_gradients import BATCH, batch_of
from widthlab.models import build

CPU = torch.device("cpu")


def checkpoint(seed=0, data=None, **changes):
    how = {"optimiser": "adam", "learning_rate": 0.01, "batch_size": 8, "steps": 30, **changes}
    return specs.Checkpoint.model_validate(
        {
            "network": {"architecture": {"name": "llama", "heads": 2}, "width": 16, "depth": 1},
            "data": {"name": "textfile", "length": 24, "train_samples": 60, "test_samples": 20}
            | (data or {}),
            "training": {"snapshots": 3, "save_every": 7, **how},
            "seed": seed,
            "study_seed": 0,
        }
    )


def run(spec, folder, log=lambda line: None):
    torch.set_num_threads(1)
    data = prepare(spec.data, folder)
    return data, training.train(
        spec, data, out=folder / "out", scratch=folder / "scratch", device=CPU, log=log
    )


def test_it_learns_and_is_read_back_with_the_losses_of_its_history(tmp_path):
    spec = checkpoint(steps=60)
    before = torch.get_rng_state()
    data, summary = run(spec, tmp_path)
    assert torch.equal(before, torch.get_rng_state())
    assert summary.status == "finished"
    history = load_history(tmp_path / "out")
    # Logits of variance 1 at first: log V + ½ to leading order, and less than uniform at last.
    assert history["train_loss"][0] == pytest.approx(math.log(256) + 0.5, abs=0.4)
    assert history["train_loss"][-1] < math.log(256) - 1.5
    assert history["test_loss"][-1] < math.log(256) - 1.5
    model = load_model(tmp_path / "out", 60)
    assert not model.training
    found = evaluate(model, data.test_x, data.test_y, "cross_entropy", data.normalise, 256)
    assert found == (history["test_loss"][-1], history["test_accuracy"][-1])


def test_evaluation_is_the_mean_over_sequences_of_the_mean_over_tokens(tmp_path, monkeypatch):
    data = prepare(checkpoint(data={"test_samples": None}).data, tmp_path)
    x, y = data.test_x[-40:], data.test_y[-40:].clone()
    y[3, 5:], y[11, 20:] = IGNORE, IGNORE
    spec = checkpoint()
    model = build(spec.network, data.input_shape, data.outputs, 0).eval()
    losses, right = [], []
    with torch.no_grad():
        for tokens, labels in zip(x, y, strict=True):
            logits, counted = model(tokens[None])[0], labels != IGNORE
            losses.append(float(cross_entropy(logits[counted], labels[counted])))
            hit = logits.argmax(1) == labels
            right.append(float(hit[counted].double().mean()))
    expected = sum(losses) / 40, sum(right) / 40
    for values in (evaluation.CHUNK_VALUES, 3 * 24 * 256, 1):
        monkeypatch.setattr(evaluation, "CHUNK_VALUES", values)
        found = evaluate(model, x, y, "cross_entropy", data.normalise, 256)
        assert found == pytest.approx(expected, rel=1e-5)


def test_few_logits_are_held_at_once(tmp_path):
    """A chunk is as many sequences as have CHUNK_VALUES logits."""
    seen = []

    class Counts(torch.nn.Module):
        def forward(self, x):
            seen.append(len(x))
            return torch.zeros(*x.shape, 4096)

    x = torch.zeros(100, 64, dtype=torch.int64)
    evaluate(Counts(), x, x, "cross_entropy", lambda raw: raw, 4096)
    assert seen == [16] * 6 + [4]


@pytest.mark.parametrize("how", [{}, {"optimiser": "sgd", "momentum": 0.9, "clip_norm": 1.0}])
def test_one_step_is_that_of_a_plain_loop(tmp_path, how):
    spec = checkpoint(steps=1, batch_size="full", snapshots=2, **how)
    data, _ = run(spec, tmp_path)
    model = build(spec.network, data.input_shape, data.outputs, Seeds.of(spec).initialisation)
    loss = cross_entropy(model(data.train_x).flatten(0, 1), data.train_y.flatten())
    loss.backward()
    if "clip_norm" in how:
        torch.nn.utils.clip_grad_norm_(model.parameters(), how["clip_norm"])
        torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9).step()
    else:
        torch.optim.Adam(model.parameters(), lr=0.01).step()
    state = load_model(tmp_path / "out", 1).state_dict()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(state[name], parameter.detach(), rtol=1e-4, atol=1e-5)


def test_an_interrupted_run_ends_with_the_same_bytes(tmp_path):
    spec = checkpoint()
    run(spec, tmp_path / "whole")

    class StopError(Exception):
        pass

    def log(line):
        if line.startswith("step 17/"):
            raise StopError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "LOG_SECONDS", 0.0)
        with pytest.raises(StopError):
            run(spec, tmp_path / "killed", log)
    lines = []
    run(spec, tmp_path / "killed", lines.append)
    assert any("resuming after step 14" in line for line in lines)
    digests = [
        {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in (tmp_path / name / "out").iterdir()
        }
        for name in ("whole", "killed")
    ]
    assert digests[0] == digests[1]
    assert len(digests[0]) == 4


def test_large_networks_are_measured_in_small_batches():
    sizes = [Size(1.0, 1.0, activations) for activations in (1e3, 2**26, 2**29, 1e12)]
    assert [batch_of(size) for size in sizes] == [BATCH, 16, 2, 1]


def test_memory_grows_with_tokens_and_vocabulary():
    short, long, rich = (
        training_cost(checkpoint(data=changes)).memory
        for changes in (
            {"length": 64},
            {"length": 640},
            {"length": 64, "tokenizer": "bpe", "vocabulary": 2560},
        )
    )
    assert long > 5 * short
    assert rich > 5 * short
