"""Text as sequences of tokens, of which each predicts the next."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from widthlab import specs
from widthlab.data.corpus import read_text, text_digest
from widthlab.data.prepared import IGNORE, Prepared
from widthlab.data.pretrained import TOKENIZER, download, tokenizer_digest
from widthlab.data.splits import Indices, take
from widthlab.errors import WidthlabError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def prepare_textfile(spec: specs.TextFile, folder: Path) -> Prepared:
    """Return a text as tokens (n, T) with labels (n, T), the tokens that follow.

    The text is cut once, at a character, into training and test part; each is cut into sequences
    one behind the other, of which those asked for are chosen at random (a smaller choice is the
    beginning of a larger one). Indices count the sequences of a part. The last of a part is padded
    with the token 0 and the label IGNORE. Raises WidthlabError where the text has changed, is too
    short, or a tokenizer cannot be had.
    """
    text = read_text(spec.path)
    if spec.fingerprint is not None and text_digest(text) != spec.fingerprint:
        raise WidthlabError(
            "path: the embedded text of this Python is not that of the study; use the same version "
            "of Python, or give the text as a file"
            if spec.path is None
            else f"path: {spec.path} has changed since the study was read; run the same command "
            "again to use it as it is now"
        )
    parts = split_text(text, spec.test_fraction)
    words, tokens = _tokenised(spec, parts, folder)
    streams = np.random.SeedSequence(spec.split_seed).spawn(2)
    chosen = []
    for key, part, wanted, stream in zip(
        ("train_samples", "test_samples"),
        tokens,
        (spec.train_samples, spec.test_samples),
        streams,
        strict=True,
    ):
        if len(part) <= spec.length:
            raise WidthlabError(
                f"length: {spec.length} is too long, the {key.partition('_')[0]} part of the text "
                f"has {len(part)} tokens only; choose a shorter length, a longer text, or another "
                "test_fraction"
            )
        x, y = sequences(part, spec.length)
        order = take(np.random.default_rng(stream).permutation(len(x)), wanted, key, spec.name)
        chosen.append(tuple(map(torch.from_numpy, (x[order], y[order], order))))
    (train_x, train_y, train), (test_x, test_y, test) = chosen
    return Prepared(
        train_x=train_x,
        train_y=train_y,
        test_x=test_x,
        test_y=test_y,
        train_indices=train,
        test_indices=test,
        classes=words,
        mean=(),
        std=(),
    )


def split_text(text: bytes, test_fraction: float) -> tuple[bytes, bytes]:
    """Return the beginning and the end of a text; no character is cut."""
    cut = len(text) - round(len(text) * test_fraction)
    # The bytes of a character in UTF-8 after its first are 10xxxxxx.
    while cut < len(text) and text[cut] & 0b1100_0000 == 0b1000_0000:
        cut += 1
    return text[:cut], text[cut:]


def sequences(tokens: Indices, length: int) -> tuple[Indices, Indices]:
    """Return tokens (n, T) and labels (n, T) of a text: of every token but the last, the next one.

    The last sequence is padded with the token 0, and IGNORE as its label.
    """
    pairs = len(tokens) - 1
    count = -(-pairs // length)
    x = np.zeros(count * length, dtype=np.int64)
    y = np.full(count * length, IGNORE, dtype=np.int64)
    x[:pairs], y[:pairs] = tokens[:-1], tokens[1:]
    return x.reshape(count, length), y.reshape(count, length)


def _tokenised(
    spec: specs.TextFile, parts: tuple[bytes, bytes], folder: Path
) -> tuple[tuple[str, ...], list[Indices]]:
    """Return the vocabulary, and the tokens of both parts."""
    if spec.tokenizer == "bytes":
        words = tuple(repr(bytes([byte]))[2:-1] for byte in range(spec.tokens))
        return words, [np.frombuffer(part, dtype=np.uint8).astype(np.int64) for part in parts]
    texts = [part.decode("utf-8") for part in parts]
    tokenizer = _byte_pairs(spec, texts[0]) if spec.tokenizer == "bpe" else _saved(spec, folder)
    vocabulary = tokenizer.get_vocab_size(with_added_tokens=True)
    words = tuple(tokenizer.id_to_token(token) or "" for token in range(vocabulary))
    return words, [
        np.array(tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.int64)
        for text in texts
    ]


def _byte_pairs(spec: specs.TextFile, text: str) -> Tokenizer:
    """Return a tokenizer of byte pairs trained on a text, which needs no token for the unknown."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=spec.tokens,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text], trainer)
    found = tokenizer.get_vocab_size()
    if found < spec.tokens:
        raise WidthlabError(
            f"vocabulary: the text has {found} different byte pairs, fewer than {spec.tokens}; "
            f"write {found} or less, or give a longer text"
        )
    return tokenizer


def _saved(spec: specs.TextFile, folder: Path) -> Tokenizer:
    """Return the tokenizer of a pretrained model, from a folder or from the hub."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from tokenizers import Tokenizer

    place = Path(spec.tokenizer)
    if spec.from_hub:
        place = download(spec.tokenizer, spec.revision or "main", [TOKENIZER], folder)
    elif tokenizer_digest(spec.tokenizer) != spec.tokenizer_fingerprint:
        raise WidthlabError(
            f"tokenizer: {place / TOKENIZER} has changed since the study was read; run the same "
            "command again to use it as it is now"
        )
    try:
        return Tokenizer.from_file(str(place / TOKENIZER))
    # The library has one class of error for all that can be wrong with a file.
    except Exception as error:
        raise WidthlabError(
            f"tokenizer: {place / TOKENIZER} is not a tokenizer ({error}); save one there with "
            "the tokenizer's save_pretrained"
        ) from error
