"""Small networks and batches for the tests of activation gradients, in double precision."""

import torch
from torch import nn


class Pictures(nn.Module):
    """Convolutions with batch normalisation and operations in place, for images (n, 3, 6, 6)."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4))
        self.relu = nn.ReLU(inplace=True)
        self.body = nn.Conv2d(4, 5, 3, padding=1, stride=2)
        self.head = nn.Linear(5, 3)
        self.unused = nn.Linear(2, 2)

    def forward(self, x):
        h = self.relu(self.stem(x))
        h = torch.tanh(self.body(h))
        return self.head(h.mean(dim=(2, 3)))


class Attention(nn.Module):
    """One causal head that returns a tuple, as attention modules do."""

    def __init__(self, width):
        super().__init__()
        self.projection = nn.Linear(width, 3 * width)

    def forward(self, h):
        q, k, v = self.projection(h).chunk(3, dim=-1)
        scores = q @ k.mT
        ahead = torch.ones(h.shape[1], h.shape[1], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(ahead, -torch.inf).softmax(-1)
        return weights @ v, weights


class Decoder(nn.Module):
    """Tokens (n, T) to logits (n, T, 7)."""

    def __init__(self, width=6):
        super().__init__()
        self.embedding = nn.Embedding(7, width)
        self.attention = Attention(width)
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 8), nn.GELU(), nn.Linear(8, width))
        self.head = nn.Linear(width, 7)

    def forward(self, tokens):
        h = self.embedding(tokens)
        h = h + self.attention(h)[0]
        return self.head(h + self.mlp(self.norm(h)))


def built(kind, seed=0):
    """A network of this class with random parameters and running statistics that are not 0, 1."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = kind().double()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2.0)
        return model


def pictures(n=7, sizes=(3, 4), seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, 6, 6, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 3, (n,), generator=generator)
    return list(zip(x.split(sizes), y.split(sizes), strict=True))


def sentences(n=6, length=5, size=2, seed=2):
    """Batches (tokens, targets, mask): sentences of 2 to `length` tokens, padded on the right."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 7, (n, length + 1), generator=generator)
    lengths = torch.randint(2, length + 1, (n,), generator=generator)
    mask = torch.arange(length) < lengths[:, None]
    parts = (tokens[:, :-1], tokens[:, 1:], mask)
    return list(zip(*(part.split(size) for part in parts), strict=True))


def cross_entropy_by_sequence(logits, targets, mask=None):
    """The cross-entropy of each sequence (n,), summed over its tokens that count (n, T)."""
    each = nn.functional.cross_entropy(logits.mT, targets, reduction="none")
    return (each if mask is None else torch.where(mask.bool(), each, 0.0)).sum(dim=1)
