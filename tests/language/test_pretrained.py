"""Pretrained checkpoints, fetched by a job of their own: from folders here, and no pickles."""

import json
import shutil
import socket

import numpy as np
import pytest
import tiny
import torch

from widthlab import plan, specs, stages, study
from widthlab.checkpoints.files import load_history, load_model
from widthlab.checkpoints.pretrained import fetch
from widthlab.data import prepare, pretrained
from widthlab.errors import WidthlabError
from widthlab.experiments.shared.base import network_of
from widthlab.specs_language import PYTHIA


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """Two networks of a family, their folders, and a text."""
    folder = tmp_path_factory.mktemp("pretrained")
    models = {
        16: tiny.save_neox(folder / "narrow", 16),
        32: tiny.save_neox(folder / "wide", 32, dtype=torch.float16),
    }
    (folder / "text.txt").write_text(tiny.TEXT, encoding="utf-8")
    return folder, models


@pytest.fixture
def here(saved, tmp_path, monkeypatch):
    """A copy of the folders, in which the test runs."""
    shutil.copytree(saved[0], tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def family(**fields):
    checkpoints = {16: "narrow", 32: "wide"}
    return specs.Pythia(**{"layers": 2, "checkpoints": checkpoints, **fields})


def text(**fields):
    return specs.TextFile(**{"path": "text.txt", "tokenizer": "narrow", "length": 16, **fields})


def checkpoint(width, of=None, seed=0, data=None):
    return specs.Checkpoint(
        network=network_of(of or family(), width, 3),
        data=data or text(),
        training=specs.Training(),
        seed=seed,
        study_seed=0,
    )


def fetched(folder, spec):
    fetch(spec, folder / "downloads", folder, lambda line: None)
    return folder


@pytest.mark.parametrize("width", [16, 32])
def test_it_is_the_network_of_its_own_library(here, saved, width):
    before = torch.get_rng_state()
    folder = fetched(here, checkpoint(width))
    model = load_model(folder, load_history(folder)["step"][-1])
    assert torch.equal(before, torch.get_rng_state())
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    x = prepare(text(), here).test_x[:6]
    with torch.no_grad():
        logits = model(x)
        expected = saved[1][width].float()(x).logits
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    assert len(model.signals) == 3
    assert {model.get_submodule(name) for name in model.signals}


def test_it_is_measured_in_the_number_format_that_is_asked_for(here, saved):
    folder = fetched(here, checkpoint(32, family(dtype="bfloat16")))
    model = load_model(folder, 0)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    buffers = dict(model.named_buffers())
    assert buffers
    assert {b.dtype for b in buffers.values()} == {torch.float32}
    double = load_model(folder, 0, dtype=torch.float64)
    assert {p.dtype for p in double.parameters()} == {torch.float64}


def test_its_text_is_in_the_tokens_of_its_own_tokenizer(here):
    from transformers import AutoTokenizer

    data = prepare(text(test_fraction=0.3), here)
    train = tiny.TEXT.encode()[: len(tiny.TEXT.encode()) - round(0.3 * len(tiny.TEXT.encode()))]
    tokens = AutoTokenizer.from_pretrained(here / "narrow")(train.decode())["input_ids"]
    order = torch.argsort(data.train_indices)
    assert data.train_x[order].flatten()[: len(tokens) - 1].tolist() == tokens[:-1]
    assert data.outputs == 300
    assert data.classes[0] == "<|endoftext|>"


def test_a_readout_that_is_the_embedding_is_written_twice(here):
    model = tiny.save_neox(here / "tied", 16, tie_word_embeddings=True)
    folder = fetched(here, checkpoint(16, family(checkpoints={16: "tied"})))
    x = torch.arange(12).reshape(2, 6)
    with torch.no_grad():
        torch.testing.assert_close(load_model(folder, 0)(x), model(x).logits)


def test_the_stage_publishes_it_under_an_address_of_its_own(here):
    work = plan.training_work(checkpoint(16))
    assert work.inputs == ()
    stages.make(here / "results", work, "cpu", lambda line: None)
    files = [path.name for path in (here / "results").rglob("*") if path.is_file()]
    assert "step-0000000.safetensors" in files
    assert not [name for name in files if name.endswith((".bin", ".pt", ".pkl"))]


# ── addresses ───────────────────────────────────────────────────────────────────────────────


def test_the_address_is_of_the_weights_and_of_nothing_else(here):
    address = plan.training_work(checkpoint(16)).address
    other = text(length=32)
    alone = family(checkpoints={16: "narrow"})
    for same in (checkpoint(16, seed=1), checkpoint(16, data=other), checkpoint(16, alone)):
        assert plan.training_work(same).address == address
    assert plan.training_work(checkpoint(16, family(dtype="bfloat16"))).address != address
    shutil.move("narrow", "moved")
    moved = family(checkpoints={16: "moved", 32: "wide"})
    assert plan.training_work(checkpoint(16, moved, data=text(tokenizer="moved"))).address == (
        address
    )


def test_other_weights_of_the_same_size_are_another_checkpoint(here):
    before, size = (
        plan.training_work(checkpoint(16)),
        (here / "narrow/model.safetensors").stat().st_size,
    )
    tiny.save_neox(here / "narrow", 16, seed=1)
    assert (here / "narrow/model.safetensors").stat().st_size == size
    assert plan.training_work(checkpoint(16)).address != before.address
    with pytest.raises(WidthlabError, match="narrow has changed since the study was read"):
        stages.make(here / "results", before, "cpu", lambda line: None)


def test_large_files_are_told_apart_by_samples_of_them(tmp_path, monkeypatch):
    monkeypatch.setattr(pretrained, "WHOLE_BYTES", 1000)
    monkeypatch.setattr(pretrained, "BLOCK_BYTES", 50)
    monkeypatch.setattr(pretrained, "PROBES", 10)
    tiny.save_neox(tmp_path, 16)
    before = pretrained.checkpoint_digest(str(tmp_path), 16, 2)
    assert pretrained.checkpoint_digest(str(tmp_path), 16, 2) == before
    tiny.save_neox(tmp_path, 16, seed=1)
    assert pretrained.checkpoint_digest(str(tmp_path), 16, 2) != before


def test_a_whole_study_is_the_same_when_its_folders_move(here):
    def addresses(place):
        data = {"name": "textfile", "path": str(place / "text.txt"), "length": 16}
        data["tokenizer"] = str(place / "narrow")
        model = {"name": "pythia", "layers": 2}
        model["checkpoints"] = {16: str(place / "narrow"), 32: str(place / "wide")}
        section = {"families": {"a": {"model": model, "width": [16, 32], "data": data}}}
        section |= {"train_samples": 16, "test_samples": 16, "step_samples": [2]}
        section |= {"held_out_samples": [2]}
        parsed = study.parse({"name": "a", "experiments": {"alignment": section}})
        work = list(plan.Plan.of(parsed).all_work())
        for one in work:  # what a job is told is read again as the same
            assert stages.work_of(one.stage, json.loads(one.json)).address == one.address
        return {one.address for one in work}

    first = addresses(here)
    shutil.copytree(here, here / "elsewhere", ignore=shutil.ignore_patterns("elsewhere"))
    assert addresses(here / "elsewhere") == first
    assert len(first) == 1 + 2 + 2 * 3 + 1


# ── the hub, without a network ──────────────────────────────────────────────────────────────


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*arguments, **named):
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


def test_published_families_are_planned_without_a_network(no_network):
    sections = {}
    for layers, checkpoints in PYTHIA.items():
        data = {"name": "textfile", "tokenizer": checkpoints[min(checkpoints)], "length": 512}
        sections[f"layers{layers}"] = {
            "model": {"name": "pythia", "layers": layers, "revision": "step143000"},
            "width": sorted(checkpoints),
            "seeds": 1,
            "data": data | {"train_samples": 64, "test_samples": 64},
        }
    parsed = study.parse(
        {
            "name": "a",
            "experiments": {
                "alignment": {"families": sections, "train_samples": 64, "test_samples": 64}
            },
        }
    )
    found = plan.Plan.of(parsed)
    assert len(found.checkpoints) == 5
    assert all(np.isfinite(work.cost.memory) for work in found.all_work())
    largest = max(work.cost.memory for work in found.checkpoints.values())
    # 6.9 billion parameters, in the 16 bits that they come in and as long again for a copy.
    assert largest == pytest.approx(4 * 6.86e9, rel=0.02)


def test_other_revisions_and_names_have_other_addresses():
    first, second, third = (
        plan.training_work(
            checkpoint(
                128,
                specs.Pythia(**changes),
                data=specs.TextFile(tokenizer="EleutherAI/pythia-14m"),
            )
        ).address
        for changes in ({}, {"revision": "step1000"}, {"checkpoints": {128: "someone/else"}})
    )
    assert len({first, second, third}) == 3


def hub(**changes):
    return checkpoint(
        16,
        family(checkpoints={16: "owner/narrow"}, revision="step1000"),
        data=text(tokenizer="owner/narrow"),
    )


def test_what_is_downloaded_is_named_by_revision_and_holds_no_pickle(here, saved, monkeypatch):
    asked = []

    def download(name, *, revision, cache_dir, allow_patterns):
        asked.append((name, revision, str(cache_dir), allow_patterns))
        return str(saved[0] / "narrow")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    fetched(here, hub())
    data = prepare(text(tokenizer="owner/narrow", revision="step1000"), here / "downloads")
    place = str(here / "downloads/hub")
    weights = ["config.json", "*.safetensors", "*.safetensors.index.json"]
    assert asked == [
        ("owner/narrow", "step1000", place, weights),
        ("owner/narrow", "step1000", place, ["tokenizer.json"]),
    ]
    assert data.outputs == 300


@pytest.mark.parametrize("part", ["weights", "tokenizer"])
def test_what_cannot_be_downloaded_is_said_in_a_sentence(here, monkeypatch, part):
    def fail(*arguments, **named):
        raise OSError("no route\nto host")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)

    def fetch_part():
        if part == "weights":
            return fetched(here, hub())
        return prepare(text(tokenizer="owner/narrow"), here)

    with pytest.raises(WidthlabError, match=r"owner/narrow, revision \w+, could not be down.*give"):
        fetch_part()


# ── what is wrong is said ───────────────────────────────────────────────────────────────────


def only_pickles(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def other_kind(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "llama"}))


def no_configuration(folder):
    (folder / "config.json").unlink()


@pytest.mark.parametrize(
    ("spoil", "fields", "words"),
    [
        (only_pickles, {}, "narrow has no weights as safetensors"),
        (other_kind, {}, "narrow is a model of kind llama, but pythia takes gpt_neox only"),
        (no_configuration, {}, "narrow has no config.json that can be read"),
        (None, {"layers": 3}, "narrow has num_hidden_layers 2, but the study says 3"),
        (None, {"checkpoints": {32: "narrow"}}, "narrow has hidden_size 16, but the study says 32"),
        (None, {"checkpoints": {16: "./no/such"}}, "'./no/such' is neither a folder nor the name"),
        (None, {"checkpoints": {}, "layers": 5}, "no published family has 5 layers"),
    ],
)
def test_bad_checkpoints_are_refused_when_the_study_is_read(here, spoil, fields, words):
    if spoil:
        spoil(here / "narrow")
    with pytest.raises(ValueError) as error:
        family(**fields)
    assert words in str(error.value)


def test_weights_that_are_missing_are_not_made_up(here):
    from safetensors.torch import load_file, save_file

    path = here / "narrow/model.safetensors"
    tensors = load_file(path)
    tensors.pop("gpt_neox.layers.1.mlp.dense_h_to_4h.weight")
    save_file(tensors, path, {"format": "pt"})
    with pytest.raises(WidthlabError, match=r"narrow lacks the weights gpt_neox.layers.1.mlp"):
        fetched(here, checkpoint(16))


def test_a_width_that_the_family_lacks_is_refused():
    with pytest.raises(ValueError, match="pythia has no checkpoint of width 64; there are 128, 25"):
        specs.Network(architecture=specs.Pythia(), width=64, depth=6)
    with pytest.raises(ValueError, match="depth of these checkpoints is 6"):
        specs.Network(architecture=specs.Pythia(), width=128, depth=5)
