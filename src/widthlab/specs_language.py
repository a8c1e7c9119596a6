"""The typed building blocks of studies of language models: texts and decoders.

A part of `specs`, which hands these types on. Files are looked at when a study is read, and never
a network.
"""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from widthlab.errors import WidthlabError
from widthlab.specs_base import (
    WHOLE,
    Count,
    Data,
    Fraction,
    Placed,
    Positive,
    Spec,
    Unit,
    nearest,
)

BYTES = 256
"""Different bytes that there are: the vocabulary of the tokenizer `bytes`."""
BPE_TOKENS = 1024
"""Tokens of a tokenizer `bpe` of which no number is given."""

PYTHIA: dict[int, dict[int, str]] = {
    6: {
        128: "EleutherAI/pythia-14m",
        256: "EleutherAI/pythia-31m",
        512: "EleutherAI/pythia-70m",
    },
    32: {
        2560: "EleutherAI/pythia-2.8b",
        4096: "EleutherAI/pythia-6.9b",
    },
}
"""Published checkpoints that differ in width alone, by decoder layers and width (Biderman et al.
2023, arXiv:2304.01373)."""
PYTHIA_TOKENS = 50_304
"""Tokens that the published checkpoints know: the size of their readout."""

Vocabulary = Annotated[int, Field(ge=BYTES + 1, le=2**20), WHOLE]
Pretrained = Annotated[str, Field(min_length=1)]
"""A pretrained model: its name on the hub (owner/name), or a folder that holds it."""


def _is_folder(place: str) -> bool:
    return Path(place).is_dir()


def _is_hub_name(name: str) -> bool:
    owner, _, rest = name.partition("/")
    return all(part and part[0] not in ".~" and "/" not in part for part in (owner, rest))


def _problem_of(place: str, holds: str) -> str:
    """Say what is wrong with a name or folder of a pretrained model; empty if nothing is."""
    if _is_folder(place) or _is_hub_name(place):
        return ""
    return (
        f"{place!r} is neither a folder nor the name of a model on the hub; give owner/name, or a "
        f"folder with {holds}, relative to where snakemake runs or absolute"
    )


# ── text ────────────────────────────────────────────────────────────────────────────────────


class TextFile(Data):
    """A text, cut into sequences of T tokens; each token's label is the one that follows it.

    The first part of the text is for training and the rest for testing. A tokenizer `bpe` is
    trained on the first part alone. The last sequence of a part is padded, and padding has no
    label.
    """

    name: Literal["textfile"] = "textfile"
    path: Annotated[str, Field(min_length=1)] | None = None
    """The text, in UTF-8, relative to where snakemake runs or absolute; left out, the embedded
    corpus: Python's own reference of its language, which comes with every Python."""
    tokenizer: Annotated[str, Field(min_length=1)] = "bytes"
    """`bytes`; `bpe`, byte pairs learned from the training part; or a pretrained model whose
    tokenizer it is: its name on the hub, or a folder with its tokenizer.json."""
    vocabulary: Annotated[Vocabulary | None, Unit("tokens")] = None
    """Tokens of a `bpe` tokenizer, the 256 bytes among them; left out, 1024."""
    revision: str | None = None
    """Branch, tag or commit of a tokenizer on the hub; left out, main."""
    length: Annotated[int, Field(ge=2, le=2**17), WHOLE, Unit("tokens")] = 128
    """T, tokens of a sequence."""
    test_fraction: Annotated[Fraction, Unit("1")] = 0.1
    """Share of the text, its end, held out for testing."""
    fingerprint: str | None = None
    """SHA-256 of the text; filled in when the study is read."""
    size: Annotated[Count | None, Unit("bytes")] = None
    """Size of the text in bytes; filled in when the study is read."""
    tokenizer_fingerprint: str | None = None
    """SHA-256 of a tokenizer in a folder; filled in when the study is read."""

    @model_validator(mode="before")
    @classmethod
    def _look(cls, values: Any) -> Any:
        """Fill in what the address needs: the text is what it holds, not where it lies."""
        if not isinstance(values, dict):
            return values
        values = dict(values)
        tokenizer = values.get("tokenizer", "bytes")
        if not isinstance(tokenizer, str):
            return values
        if tokenizer == "bpe" and values.get("vocabulary") is None:
            values["vocabulary"] = BPE_TOKENS
        path = values.get("path")
        try:
            if values.get("fingerprint") is None and (path is None or isinstance(path, str)):
                from widthlab.data.corpus import read_text, text_digest

                text = read_text(path)
                values["fingerprint"], values["size"] = text_digest(text), len(text)
            if values.get("tokenizer_fingerprint") is None and _is_pretrained(tokenizer):
                if _is_folder(tokenizer):
                    from widthlab.data.pretrained import tokenizer_digest

                    values["tokenizer_fingerprint"] = tokenizer_digest(tokenizer)
                elif _is_hub_name(tokenizer) and values.get("revision") is None:
                    values["revision"] = "main"
        except WidthlabError as error:
            raise ValueError(str(error)) from None
        return values

    @model_validator(mode="after")
    def _possible(self) -> TextFile:
        if self.tokenizer != "bpe" and self.vocabulary is not None:
            raise ValueError("vocabulary belongs to tokenizer: bpe; leave it out")
        if self.revision is not None and not self.from_hub:
            raise ValueError("revision belongs to a tokenizer on the hub; leave it out")
        pretrained = _is_pretrained(self.tokenizer)
        if pretrained and not self.from_hub and self.tokenizer_fingerprint is None:
            known = nearest(self.tokenizer, ("bytes", "bpe"))
            raise ValueError(
                f"tokenizer: {self.tokenizer!r} is not known; {known}, a pretrained model's name "
                "on the hub (owner/name), or a folder with a tokenizer.json"
            )
        # A token has at least one byte, so that this is known before there is a tokenizer.
        part, share = min(
            ("training", 1 - self.test_fraction),
            ("test", self.test_fraction),
            key=lambda one: one[1],
        )
        most = ceil((self.size or 0) * share)
        if self.size is not None and most <= self.length:
            raise ValueError(
                f"length: {self.length} is too long, the {part} part of the text has {most} bytes "
                "only; choose a shorter length, a longer text, or another test_fraction"
            )
        return self

    @property
    def from_hub(self) -> bool:
        """Whether the tokenizer is to be had from the hub."""
        return (
            _is_pretrained(self.tokenizer)
            and self.tokenizer_fingerprint is None
            and _is_hub_name(self.tokenizer)
        )

    @property
    def tokens(self) -> int:
        """V, the size of the vocabulary; that of the published models where it is not known yet."""
        return {"bytes": BYTES, "bpe": self.vocabulary or BPE_TOKENS}.get(
            self.tokenizer, PYTHIA_TOKENS
        )

    def places(self) -> tuple[str, ...]:
        """Return the fields that say where the text and a tokenizer in a folder lie."""
        return ("path", "tokenizer") if self.tokenizer_fingerprint else ("path",)

    def _whole(self) -> tuple[float, float]:
        """Return the most sequences of either part; with tokens longer than a byte it has fewer."""
        if self.size is None:
            return super()._whole()
        held_out = self.size * self.test_fraction
        # The cut may move by the rest of a character.
        train, test = self.size - held_out + 4, held_out + 1
        return ceil(train / self.length), ceil(test / self.length)


def _is_pretrained(tokenizer: str) -> bool:
    return tokenizer not in ("bytes", "bpe")


# ── decoders ────────────────────────────────────────────────────────────────────────────────


class Llama(Spec):
    """A decoder of LLaMA's kind (Touvron et al. 2023), of the library `transformers`.

    Width is the size of the stream, depth the number of decoder layers.
    """

    name: Literal["llama"] = "llama"
    heads: Annotated[Count, Unit("heads")] = 4
    """Attention heads, of width / heads each, which must be even."""
    intermediate_ratio: Annotated[Positive, Unit("1")] = 2.6875
    """Hidden width of a layer's gated perceptron over the width; as in the published 7B model."""
    initialisation: Literal["fan_in", "fixed"] = "fan_in"
    """Standard deviation of initial weights: 1/√fan-in (of embeddings 1); or `transformers`' own,
    0.02 for all."""

    def hidden_width(self, width: int) -> int:
        """Return the hidden width of a layer's gated perceptron."""
        return max(1, round(self.intermediate_ratio * width))

    def misfit(self, width: int) -> str:
        """Say why there is no such network of a width; empty where there is."""
        if width % (2 * self.heads):
            return (
                f"width {width} does not divide into {self.heads} heads of an even size; choose a "
                f"multiple of {2 * self.heads}, or other heads"
            )
        return ""


class Pythia(Placed):
    """Pretrained decoders of GPT-NeoX's kind by width, for measurement: they are not trained.

    Any checkpoints of that kind will do, from the hub or from a folder, as safetensors.
    """

    name: Literal["pythia"] = "pythia"
    layers: Annotated[Count, Unit("layers")] = 6
    """L, decoder layers of all of them."""
    checkpoints: dict[Annotated[int, Field(ge=1)], Pretrained] = Field(default={})
    """Names on the hub (owner/name) or folders, by width; left out, the published Pythia models of
    so many layers (6 or 32)."""
    revision: str = "main"
    """Branch, tag or commit on the hub, such as step143000; not for folders."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Number format in which the networks are measured; half the memory in 16 bits."""
    fingerprints: dict[Annotated[int, Field(ge=1)], str] = Field(default={})
    """Digests of checkpoints in folders by width; filled in when the study is read."""

    @model_validator(mode="before")
    @classmethod
    def _look(cls, values: Any) -> Any:
        """Fill in the published family, and the fingerprints of folders."""
        if not isinstance(values, dict):
            return values
        values = dict(values)
        layers = values.get("layers", 6)
        if not isinstance(layers, int):
            return values
        if not values.get("checkpoints"):
            if layers not in PYTHIA:
                raise ValueError(
                    f"checkpoints: no published family has {layers} layers; choose "
                    f"{' or '.join(map(str, PYTHIA))}, or give checkpoints by width"
                )
            values["checkpoints"] = PYTHIA[layers]
        if not isinstance(values["checkpoints"], dict) or values.get("fingerprints"):
            return values
        from widthlab.data.pretrained import checkpoint_digest

        found = {}
        for width, place in values["checkpoints"].items():
            if not isinstance(place, str) or not str(width).isdigit():
                continue
            problem = _problem_of(place, "config.json and safetensors")
            if problem:
                raise ValueError(f"checkpoints.{width}: {problem}")
            if _is_folder(place):
                try:
                    found[width] = checkpoint_digest(place, int(width), layers)
                except WidthlabError as error:
                    raise ValueError(f"checkpoints.{width}: {error}") from None
        values["fingerprints"] = found
        return values

    def __hash__(self) -> int:
        """Return a hash; dictionaries have none of their own."""
        return hash((self.layers, self.revision, self.dtype, *sorted(self.checkpoints.items())))

    def at(self, width: int) -> Pythia:
        """Return the family of one width, if it has that: what a network of it depends on."""
        if width not in self.checkpoints:
            return self
        return self.model_copy(
            update={
                "checkpoints": {w: c for w, c in self.checkpoints.items() if w == width},
                "fingerprints": {w: f for w, f in self.fingerprints.items() if w == width},
            }
        )

    def misfit(self, width: int) -> str:
        """Say why there is no such network of a width; empty where there is."""
        if width not in self.checkpoints:
            known = ", ".join(map(str, sorted(self.checkpoints)))
            return f"pythia has no checkpoint of width {width}; there are {known}"
        return ""

    def places(self) -> tuple[str, ...]:
        """Return the field that says where folders lie, if there are only such."""
        return ("checkpoints",) if set(self.fingerprints) == set(self.checkpoints) else ()
