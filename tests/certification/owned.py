"""Networks of one's own for the tests of certificates, and their loaders."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM


class Perceptron(nn.Module):
    """Vectors (n, 5) to three classes; `side` is run but ignored, `unused` is not run."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(5, 8), nn.Linear(8, 6)
        self.side, self.unused = nn.Linear(5, 2), nn.Linear(2, 2)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        self.side(x)
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))


def perceptron(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Perceptron()


def loader(n=64, size=16, seed=1):
    """Inputs of which nine in ten are of class 0, so that there is something to learn at once."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 5, generator=generator)
    y = torch.where(torch.rand(n, generator=generator) < 0.9, 0, 1 + (x[:, 0] > 0).long())
    return DataLoader(TensorDataset(x, y), batch_size=size)


def coins(n=64, size=16, seed=1):
    """Inputs with a fair sign each."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 5, generator=generator)
    return DataLoader(
        TensorDataset(x, torch.randint(0, 2, (n,), generator=generator) * 2 - 1), batch_size=size
    )


def signed_output(model, batch):
    """A loss whose gradient is symmetric about 0 on `coins`: there is nothing to learn."""
    return batch[1] * model(batch[0]).sum(1)


def neox(vocabulary=256, seed=0):
    """A tiny GPT-NeoX with random weights."""
    config = GPTNeoXConfig(
        vocab_size=vocabulary,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        bos_token_id=0,
        eos_token_id=0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return GPTNeoXForCausalLM(config).eval()


def sentences(n=12, length=8, size=4, vocabulary=256, seed=2, filler=0):
    """Batches as transformers have them, padded on the right with `filler`."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, vocabulary, (n, length), generator=generator)
    lengths = torch.randint(3, length + 1, (n,), generator=generator)
    mask = torch.arange(length) < lengths[:, None]
    tokens = torch.where(mask, tokens, filler)
    return [
        {"input_ids": t, "attention_mask": m.long(), "labels": t.clone()}
        for t, m in zip(tokens.split(size), mask.split(size), strict=True)
    ]
