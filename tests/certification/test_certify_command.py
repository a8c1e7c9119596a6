"""`widthlab certify`: networks that are not ours on image folders and text, and its errors."""

import re
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
import xarray as xr
from click.testing import CliRunner
from owned import neox
from PIL import Image
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from widthlab import cli
from widthlab.certification.batches import Choice, image_batches, text_batches
from widthlab.errors import WidthlabError

FACTORY = """
import torchvision, torch

def resnet():
    return torchvision.models.resnet18(num_classes=2)

def broken():
    raise KeyError("a part that is missing")

def number():
    return 3

def leaving():
    raise SystemExit(2)

class Failing(torch.nn.Module):
    # Fails in the forward pass, from some batch on.
    def __init__(self, error, good=0):
        super().__init__()
        self.layer4, self.error, self.good = torch.nn.Linear(3, 2), error, good

    def forward(self, x):
        self.good -= 1
        if self.good < 0:
            raise self.error
        return self.layer4(x.mean((2, 3)))

def keyless():
    return Failing(KeyError("missing"))

def nameless():
    return Failing(AttributeError("no such part"))

def late():
    return Failing(KeyError("missing"), good=1)
"""
README = Path(__file__).parents[2] / "README.md"
SHARED = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A module with factories, images in two classes, weights, a text and a tiny GPT-NeoX."""
    folder = tmp_path_factory.mktemp("owned")
    (folder / "nets.py").write_text(FACTORY)
    (folder / "dividing.py").write_text("1 / 0")
    (folder / "exiting.py").write_text("raise SystemExit(3)")
    generator = np.random.default_rng(0)
    for part, count in (("train", 10), ("test", 8)):
        for name, level in (("dark", 60), ("light", 180)):
            (folder / "images" / part / name).mkdir(parents=True)
            for i in range(count):
                pixels = np.clip(generator.normal(level, 40, (16, 16, 3)), 0, 255)
                Image.fromarray(pixels.astype(np.uint8)).save(
                    folder / "images" / part / name / f"{i}.png"
                )
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = torchvision.models.resnet18(num_classes=2)
    save_file(model.state_dict(), folder / "weights.safetensors")
    wrapped = {f"module.{name}": tensor for name, tensor in model.state_dict().items()}
    torch.save({"state_dict": wrapped, "step": 3}, folder / "weights.pt")
    torch.save(model, folder / "whole.pt")
    torch.save([1, 2], folder / "list.pt")
    (folder / "damaged.safetensors").write_bytes(b"no")
    neox().save_pretrained(folder / "neox")
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    text = " ".join(words[i] for i in generator.integers(0, 10, 2000))
    (folder / "text.txt").write_text(text)
    neox(12).save_pretrained(folder / "spoken")
    tokenizer = Tokenizer(models.WordLevel(unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator([text], trainers.WordLevelTrainer(special_tokens=["?"]))
    tokenizer.save(str(folder / "spoken" / "tokenizer.json"))
    (folder / "binary.txt").write_bytes(bytes(range(128, 256)))
    return folder


@pytest.fixture(autouse=True)
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def run(*arguments):
    result = CliRunner().invoke(cli.main, ["certify", "--device", "cpu", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


RESNET = ("--model", "nets:resnet", "--data", "images", "--size", "32", "--points", "layer4")
NEOX = ("--model", "neox", "--data", "text.txt", "--points", "gpt_neox.layers.*", "--length", "16")


def test_a_resnet_on_an_image_folder(folder):
    code, out, err = run(*RESNET, "--points", "layer[12]", "--budget", "8,8", "--budget", "99,99")
    assert code == 0, err
    assert "20 training and 16 test samples" in out
    for words in ("layer1", "layer2", "layer4", "B(8, 8) ≤", "B(99, 99) ≤", "noise bounded"):
        assert words in out
    assert out.strip().splitlines()[-1].startswith("That a step harms the held-out loss with")


def test_weights_of_ones_own(folder):
    """Both files hold the same; the numbers are those of the weights and not of the seed."""
    options = (*RESNET, "--mean", "0.5,0.5,0.5", "--std", "0.2,0.2,0.2")
    outs = [run(*options)[1]]
    for checkpoint in ("weights.safetensors", "weights.pt"):
        for seed in ("0", "1"):
            code, out, err = run(*options, "--checkpoint", checkpoint, "--seed", seed)
            assert code == 0, err
            outs.append(out if seed == "0" else None)
    assert outs[1] == outs[3] != outs[0]


def test_random_weights_follow_the_seed(folder):
    first, again, other = (run(*RESNET, "--seed", seed)[1] for seed in ("0", "0", "1"))
    assert first == again != other


@pytest.mark.parametrize("model", ["neox", "spoken"])
def test_a_language_model_from_disk_on_text(folder, tmp_path, model):
    """By bytes, and by the words of the tokenizer in its folder."""
    for name in ("out.zarr", "out.nc"):
        code, out, err = run(*NEOX, "--model", model, "--out", str(tmp_path / name), "--mismatch")
        assert code == 0, err
        assert "gpt_neox.layers.1" in out
        engine = {"engine": "scipy"} if name.endswith("nc") else {"engine": "zarr"}
        with xr.open_dataset(tmp_path / name, **engine) as dataset:
            assert dataset["point"].values.tolist() == ["gpt_neox.layers.0", "gpt_neox.layers.1"]
            assert dataset["b_exact_limit"].dims == ("point", "budget")
            assert {"needed", "block_rate", "control_certified"} <= set(dataset)
            assert dataset.attrs["decision"] in out


def test_that_nothing_is_certified_is_no_error(folder):
    code, out, err = run(*RESNET, "--train-samples", "6", "--test-samples", "6", "--budget", "1,1")
    assert code == 0, err
    assert "certified" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--model", "nothing"), "nothing is no folder of a transformers model; name one, or a fa"),
        (("--model", "nothing:net"), "nothing:net cannot be imported: No module named 'nothing'"),
        (("--model", "nets:none"), "nets:none cannot be imported: module 'nets' has no att"),
        (("--model", "nets:torch"), "nets:torch is no function, but a module"),
        (("--model", "nets:number"), "returns a int; it must return a torch.nn.Module"),
        (("--model", "nets:broken"), "when it was called without arguments: KeyError: 'a part"),
        (("--model", "dividing:net"), "cannot be imported: ZeroDivisionError: division by zero"),
        (("--model", "exiting:net"), "exiting:net cannot be imported: SystemExit: 3"),
        (("--model", "nets:leaving"), "called without arguments: SystemExit: 2"),
        (
            ("--model", "nets:keyless"),
            "does not run on batches of shape (2, 3, 32, 32) from images: KeyError: 'missing'",
        ),
        (("--model", "nets:nameless"), "(2, 3, 32, 32) from images: no such part"),
        (("--model", "nets:late"), "ran on two samples, but failed while it was measured: KeyE"),
        (("--model", "neox"), "neox cannot be read as a model of transformers for images"),
        (("--model", "images"), "images cannot be read as a model of transformers for images"),
        (("--checkpoint", "none.pt"), "--checkpoint: none.pt is not a file"),
        (("--checkpoint", "whole.pt"), "holds other objects than tensors, which would run code"),
        (("--checkpoint", "list.pt"), "does not hold the tensors of a model by name"),
        (("--checkpoint", "text.txt"), "text.txt is damaged, or no file of torch"),
        (("--checkpoint", "damaged.safetensors"), "damaged.safetensors is damaged"),
        (
            ("--checkpoint", "neox/model.safetensors"),
            "lacks conv1.weight, bn1.weight, bn1.bias and",
        ),
        (("--data", "none"), "none is neither a folder nor a file"),
        (("--data", "binary.txt"), "binary.txt is not text in UTF-8"),
        (("--data", "text.txt"), "nets:resnet does not run on batches of shape (2, 128) from t"),
        (("--data", "text.txt", "--length", "9000"), "--data: length: 9000 is too long"),
        (("--data", "neox"), "holds 0 class folders"),
        (("--points", "lair1"), "insertion point 'lair1' is not a module of ResNet"),
        (("--train-samples", "3"), "at least 4 samples, but the training loader gave 3"),
        (("--train-samples", "99"), "99 is more than the 20 that data set"),
        (("--size", "2"), "--data: size: Input should be greater than or equal to 4"),
        (("--out", "out.csv"), "out.csv must end in .zarr or .nc"),
        (("--out", "none/out.nc"), "there is no folder none"),
        (("--out", "images/out.zarr", "--level", "2"), "level must lie between 0 and 1, not 2"),
        (("--mean", "1,1,1"), "--mean and --std are given together"),
        (("--mean", "1,1,1", "--std", "1,1,0"), "--std must be positive"),
        (("--mean", "1,1,1", "--std", "1,nan,1"), "--std must be finite numbers, not (1.0, nan"),
        (("--mean", "nan,1,1", "--std", "1,1,1"), "--mean must be finite numbers, not (nan"),
        (("--target", "2"), "the target of a bound must lie between 0 and 1, not 2"),
    ],
)
def test_errors_are_one_sentence(folder, options, message):
    code, out, err = run(*RESNET, *options)
    assert (code, out) == (1, ""), err
    assert err.startswith("Error: ")
    assert len(err.strip().splitlines()) == 1
    assert message in err


def test_sequences_have_no_squared_distance(folder):
    code, out, err = run(*NEOX, "--loss", "mse")
    assert (code, out) == (1, "")
    assert err.startswith("Error: the loss mse has no labels of shape (2, 16) of whole numbers")


def test_numbers_that_are_no_budget(folder):
    code, _, err = run(*RESNET, "--budget", "8")
    assert code == 2
    assert "'8' is not M,K: 2 numbers with commas between" in err


def test_tokens_that_the_model_does_not_know(folder):
    code, _, err = run(*NEOX, "--model", "spoken", "--data", "text.txt")
    assert code == 0
    (folder / "spoken" / "tokenizer.json").rename(folder / "kept")
    try:
        code, _, err = run(*NEOX, "--model", "spoken")
    finally:
        (folder / "kept").rename(folder / "spoken" / "tokenizer.json")
    assert code == 1
    assert "knows 12; put its own tokenizer (tokenizer.json) into its folder" in err


def test_an_existing_file_is_not_overwritten(folder):
    code, _, err = run(*RESNET, "--out", "images/../images", "--out", "weights.nc")
    assert code == 0, err
    code, _, err = run(*RESNET, "--out", "weights.nc")
    assert code == 1
    assert "weights.nc exists already" in err


def test_sequences_are_those_of_the_text(folder):
    """Whose own tests say how they are cut; here, how many are taken and with what tokens."""
    choice = Choice(batch_size=4, train_samples=20)
    train, test = text_batches(Path("text.txt"), choice, length=16)
    assert train.x.shape == train.y.shape == (20, 16)
    assert train.x.max() > 12
    assert sum(len(x) for x, _ in train) == 20
    counted = (test.y != -100)[:, 1:]
    assert torch.equal(test.x[:, 1:][counted], test.y[:, :-1][counted])
    words, _ = text_batches(Path("text.txt"), choice, length=16, tokenizer=Path("spoken"))
    assert words.x.max() < 12
    with pytest.raises(WidthlabError, match="20 is more than"):
        text_batches(Path("text.txt"), choice, length=1000)


def test_another_kind_of_tokenizer_is_refused(folder, tmp_path):
    (tmp_path / "tokenizer.model").touch()
    with pytest.raises(WidthlabError, match=r"has a tokenizer, but no tokenizer.json; save one"):
        text_batches(Path("text.txt"), Choice(), length=16, tokenizer=tmp_path)


def test_batches_are_at_least_two(folder):
    train, _ = image_batches(Path("images"), Choice(train_samples=6, batch_size=64), size=8)
    assert [len(x) for x, _ in train] == [3, 3]
    assert len(train) == 2
    # Class-balanced, and normalised by the training samples.
    assert train.y.tolist().count(0) == 3
    assert torch.cat([x for x, _ in train]).mean((0, 2, 3)).abs().max() < 1e-5


def test_an_image_folder_that_is_not_split(folder):
    train, test = image_batches(Path("images/train"), Choice(), size=8)
    assert (len(train.x), len(test.x)) == (16, 4)


def test_normalisation_as_given(folder):
    options = {"size": 8, "mean": (0.5, 0.4, 0.3), "std": (0.1, 0.2, 0.3)}
    train, _ = image_batches(Path("images"), Choice(), **options)
    x = torch.cat([x for x, _ in train])
    expected = (train.x / 255 - torch.tensor(options["mean"]).reshape(3, 1, 1)) / torch.tensor(
        options["std"]
    ).reshape(3, 1, 1)
    torch.testing.assert_close(x, expected)


def test_a_folder_without_images_is_refused(folder):
    with pytest.raises(WidthlabError, match="class folders"):
        image_batches(Path("neox"), Choice(), size=8)


def _blocks(language):
    """The blocks of code of this language in the README's section on networks of one's own."""
    text = README.read_text(encoding="utf-8")
    section = text.split("## On your own network\n")[1].split("\n## ")[0]
    return re.findall(rf"```{language}\n(.*?)```", section, flags=re.DOTALL)


def test_the_commands_of_the_readme(folder, tmp_path, monkeypatch):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    shutil.copytree(folder / "neox", tmp_path / "pythia")
    shutil.copy(folder / "text.txt", tmp_path / "book.txt")
    monkeypatch.chdir(tmp_path)
    (commands,) = _blocks("sh")
    lines = [shlex.split(line) for line in commands.strip().splitlines()]
    assert [line[:2] for line in lines] == [["widthlab", "certify"]] * 3
    for line in lines:
        code, out, err = run(*line[2:])
        assert code == 0, err
        assert "That a step harms the held-out loss" in out
    assert (tmp_path / "certificates.zarr").is_dir()


def test_the_python_of_the_readme(folder, capsys):
    (code,) = _blocks("python")
    train, test = image_batches(Path("images"), Choice(batch_size=8), size=16)
    names = {
        "model": torchvision.models.resnet18(num_classes=2),
        "train_loader": train,
        "test_loader": test,
    }
    exec(code, names)
    assert names["certification"].budgets == ((64, 64),)
    assert "layer2" in capsys.readouterr().out


@pytest.mark.skipif(not SHARED.is_dir(), reason="../shared/data is not here")
def test_natural_images_and_text(folder):
    few = ("--train-samples", "16", "--test-samples", "16")
    factory = "torchvision.models:resnet18"
    code, out, err = run(
        *("--model", factory, "--data", str(SHARED / "cifar10-jpeg"), "--points", "layer*"), *few
    )
    assert code == 0, err
    text = str(SHARED / "text" / "wikitext2-valid.txt")
    code, out, err = run(*NEOX, "--data", text, *few)
    assert code == 0, err
    assert "That a step harms" in out
