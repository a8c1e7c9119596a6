"""Texts as sequences of tokens: cut, tokenised, padded and chosen as promised."""

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from widthlab import specs
from widthlab.data import load, prepare, save
from widthlab.data.corpus import embedded_corpus, text_digest
from widthlab.data.prepared import IGNORE
from widthlab.data.textfile import _byte_pairs, split_text
from widthlab.errors import WidthlabError

NOWHERE = Path("/nonexistent")
REAL = Path(__file__).parents[3] / "shared/data/text/wikitext2-valid.txt"
TEXT = "".join(f"Line {n}: der Fuß of {n * n} naïve foxes.\n" for n in range(200))


@pytest.fixture
def write(tmp_path):
    def written(text=TEXT, name="text.txt"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return written


def spec(path, **fields):
    return specs.TextFile(path=path, **{"length": 16, **fields})


def in_order(x, y, indices):
    """Return the tokens and labels of a part as one line each, by the sequences' numbers."""
    order = torch.argsort(indices)
    return x[order].flatten().numpy(), y[order].flatten().numpy()


@pytest.mark.parametrize("length", [2, 7, 16, 100])
def test_the_sequences_of_both_parts_are_the_text_and_each_label_is_the_next_token(write, length):
    data = prepare(spec(write(), length=length, test_fraction=0.3), NOWHERE)
    parts = split_text(TEXT.encode(), 0.3)
    assert b"".join(parts) == TEXT.encode()
    for part, x, y, indices in (
        (parts[0], data.train_x, data.train_y, data.train_indices),
        (parts[1], data.test_x, data.test_y, data.test_indices),
    ):
        assert x.dtype == y.dtype == torch.int64
        assert x.shape == y.shape == (-(-(len(part) - 1) // length), length)
        tokens, labels = in_order(x, y, indices)
        bytes_ = np.frombuffer(part, dtype=np.uint8)
        pairs = len(part) - 1
        assert np.array_equal(tokens[:pairs], bytes_[:-1])
        assert np.array_equal(labels[:pairs], bytes_[1:])
        assert (labels[pairs:] == IGNORE).all()
    assert data.input_shape == (length,)
    assert data.outputs == 256
    assert data.classes[65] == "A"
    assert data.normalise(data.train_x) is data.train_x


def test_no_character_is_cut():
    text = "ß" * 50
    for fraction in np.linspace(0.01, 0.99, 60):
        train, test = (part.decode("utf-8") for part in split_text(text.encode(), float(fraction)))
        assert train + test == text


def test_byte_pairs_are_learned_from_the_training_part_alone(write):
    """Two texts that differ in their ends have the same tokens in their beginnings."""
    other = TEXT[: int(len(TEXT) * 0.95)]
    texts = TEXT, other + "z" * (len(TEXT.encode()) - len(other.encode()))
    first, second = (
        prepare(spec(write(text), tokenizer="bpe", vocabulary=400, test_fraction=0.1), NOWHERE)
        for text in texts
    )
    assert first.classes == second.classes
    assert torch.equal(first.train_x, second.train_x)
    assert first.test_x.shape != second.test_x.shape or not torch.equal(first.test_x, second.test_x)


def test_byte_pairs_hold_the_whole_text_in_fewer_tokens(write):
    asked = spec(write(), tokenizer="bpe", vocabulary=400, test_fraction=0.25)
    data = prepare(asked, NOWHERE)
    assert data.outputs == len(set(data.classes)) == 400
    train = split_text(TEXT.encode(), 0.25)[0].decode()
    tokens, labels = in_order(data.train_x, data.train_y, data.train_indices)
    tokens = [*tokens[labels != IGNORE], labels[labels != IGNORE][-1]]
    assert _byte_pairs(asked, train).decode(tokens) == train
    assert len(tokens) < len(train) / 2


def test_a_smaller_choice_is_the_beginning_of_a_larger_one(write):
    path = write()
    all_, some = (
        prepare(spec(path, train_samples=n, test_samples=n and 5), NOWHERE) for n in (None, 20)
    )
    assert some.train_x.shape == (20, 16)
    assert torch.equal(some.train_x, all_.train_x[:20])
    assert torch.equal(some.test_indices, all_.test_indices[:5])
    assert not torch.equal(some.train_indices, torch.arange(20))
    other = prepare(spec(path, train_samples=20, split_seed=1), NOWHERE)
    assert not torch.equal(other.train_indices, some.train_indices)


def test_what_is_known_unread_bounds_what_there_is(write):
    for text in (TEXT, "ß" * 1000):
        for fraction in (0.1, 0.37, 0.5, 0.9):
            for tokenizer in ("bytes", "bpe"):
                asked = spec(
                    write(text),
                    test_fraction=fraction,
                    tokenizer=tokenizer,
                    vocabulary=257 if tokenizer == "bpe" else None,
                )
                data, most = prepare(asked, NOWHERE), asked.most()
                assert len(data.train_y) <= most[0]
                assert len(data.test_y) <= most[1]
                if tokenizer == "bytes":
                    assert most[0] <= len(data.train_y) + 1
                    assert most[1] <= len(data.test_y) + 1


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe"])
def test_the_same_text_gives_the_same_bytes_and_they_are_read_back(write, tmp_path, tokenizer):
    asked = spec(write(), tokenizer=tokenizer, vocabulary=300 if tokenizer == "bpe" else None)
    data = prepare(asked, NOWHERE)
    for name in ("a", "b"):
        save(prepare(asked, NOWHERE), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    loaded = load(tmp_path / "a")
    for field in fields(data):
        got, want = getattr(loaded, field.name), getattr(data, field.name)
        assert torch.equal(got, want) if isinstance(want, torch.Tensor) else got == want


# ── the embedded corpus ─────────────────────────────────────────────────────────────────────


def test_the_embedded_corpus_is_english_prose_with_its_digest_and_needs_no_file():
    asked = specs.TextFile()
    text = embedded_corpus()
    assert asked.fingerprint == text_digest(text.encode())
    assert asked.size == len(text.encode()) > 200_000
    assert text.count(" the ") > 2000
    data = prepare(asked, NOWHERE)
    assert len(data.train_y) > 2000


def test_no_paragraph_of_the_embedded_corpus_is_in_both_parts():
    train, test = (part.decode() for part in split_text(embedded_corpus().encode(), 0.1))
    paragraphs = [set(part.split("\n\n")) for part in (train, test)]
    assert len(paragraphs[1]) > 100
    assert not paragraphs[0] & paragraphs[1]


# ── what is wrong is said ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "changes", "words"),
    [
        (None, {}, "missing.txt is not a file that can be read"),
        (b"caf\xe9 au lait", {}, "not text in UTF-8 (byte 3 is 0xe9)"),
        (b"", {}, "is empty"),
        ("short", {}, "length: 16 is too long, the test part of the text has 1 bytes only"),
        (TEXT, {"length": 10_000}, "length: 10000 is too long"),
        (TEXT, {"length": 1}, "greater than or equal to 2"),
        (TEXT, {"tokenizer": "bites"}, "'bites' is not known; did you mean 'bytes'?"),
        (TEXT, {"tokenizer": "../no/such"}, "'../no/such' is not known"),
        (TEXT, {"vocabulary": 300}, "vocabulary belongs to tokenizer: bpe"),
        (TEXT, {"tokenizer": "bpe", "vocabulary": 100}, "greater than or equal to 257"),
        (TEXT, {"revision": "main"}, "revision belongs to a tokenizer on the hub"),
        (TEXT, {"tokenizer": "."}, "folder . has no tokenizer.json"),
    ],
)
def test_bad_input_is_refused_when_the_study_is_read(write, text, changes, words, tmp_path):
    path = str(tmp_path / "missing.txt") if text is None else write(text)
    with pytest.raises(ValidationError) as error:
        spec(path, **changes)
    (problem,) = error.value.errors()
    assert words in str(problem.get("ctx", {}).get("error", problem["msg"]))


@pytest.mark.parametrize(
    ("text", "changes", "words"),
    [
        (TEXT, {"tokenizer": "bpe", "vocabulary": 5000}, "different byte pairs, fewer than 5000"),
        (TEXT, {"train_samples": 600}, "train_samples: 600 is more than"),
        # Bytes would do; that the text has fewer tokens shows when they are made.
        (
            "the cat sat. " * 300,
            {"tokenizer": "bpe", "vocabulary": 262, "length": 300},
            "length: 300 is too long, the test part of the text has",
        ),
    ],
)
def test_what_is_seen_only_in_tokens_is_refused_by_the_job(write, text, changes, words):
    asked = spec(write(text), **changes)
    with pytest.raises(WidthlabError, match=words):
        prepare(asked, NOWHERE)


def test_a_text_that_changed_since_the_study_was_read_is_refused(write):
    asked = spec(write())
    write(TEXT + "more")
    with pytest.raises(WidthlabError, match="has changed since the study was read"):
        prepare(asked, NOWHERE)


def test_reading_a_study_of_text_needs_no_tensor_library():
    code = (
        "import sys; from widthlab import study;"
        "from widthlab.plan import Plan;"
        "data = {'name': 'textfile', 'tokenizer': 'bpe'};"
        "family = {'model': {'name': 'llama'}, 'width': [16], 'data': data};"
        "pythia = {'model': {'name': 'pythia'}, 'width': [128],"
        "    'data': {'name': 'textfile', 'tokenizer': 'EleutherAI/pythia-14m', 'length': 16}};"
        "section = {'families': {'a': family, 'b': pythia}};"
        "Plan.of(study.parse({'name': 'a', 'experiments': {'alignment': section}}));"
        "heavy = {'torch', 'transformers', 'tokenizers', 'huggingface_hub', 'xarray'};"
        "sys.exit(repr(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not REAL.exists(), reason="../shared/data/text is not here")
def test_a_real_text():
    data = prepare(
        specs.TextFile(path=str(REAL), tokenizer="bpe", train_samples=100, test_samples=10), NOWHERE
    )
    assert data.train_x.shape == (100, 128)
    assert data.outputs == 1024
