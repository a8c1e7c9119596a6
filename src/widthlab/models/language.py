"""Language models: decoders of the library `transformers`, with what every network offers here.

The library is imported where it is needed, since it is slow to import.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from widthlab import specs
from widthlab.models.layers import fill_normal
from widthlab.models.model import Model

ATTENTION = "sdpa"
"""Attention by torch's own function, which never holds T × T weights of all heads at once."""


class LanguageModel(Model):
    """Tokens (n, T) → logits (n, T, V) of the next token at every position.

    The carried signals are the stream (n, T, N) behind the embedding and behind every decoder
    layer. The library normalises and rotates in float32 whatever the network's own precision.
    """

    def __init__(self, decoder: nn.Module, embedding: str, layers: str, depth: int) -> None:
        super().__init__()
        self.decoder = decoder
        self.signals = (
            f"decoder.{embedding}",
            *(f"decoder.{layers}.{layer}" for layer in range(depth)),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens (n, T) to logits (n, T, V); position t sees the tokens up to t."""
        logits: Tensor = self.decoder(input_ids=x, use_cache=False).logits
        # A loss in 16 bits would have three digits.
        return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits


class Llama(LanguageModel):
    """A decoder of LLaMA's kind (Touvron et al. 2023, arXiv:2302.13971), without biases."""

    def __init__(
        self, spec: specs.Llama, width: int, depth: int, length: int, outputs: int
    ) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM
        from transformers.initialization import no_init_weights

        configuration = LlamaConfig(
            vocab_size=outputs,
            hidden_size=width,
            intermediate_size=spec.hidden_width(width),
            num_hidden_layers=depth,
            num_attention_heads=spec.heads,
            max_position_embeddings=length,
            bos_token_id=None,
            eos_token_id=None,
            tie_word_embeddings=False,
            attn_implementation=ATTENTION,  # type: ignore[call-arg]
        )
        # It would draw from the global random state.
        with no_init_weights():
            decoder = LlamaForCausalLM(configuration)
        super().__init__(decoder, "model.embed_tokens", "model.layers", depth)
        self.fixed = configuration.initializer_range if spec.initialisation == "fixed" else None

    @torch.no_grad()
    def redraw(self, generator: torch.Generator) -> None:
        """Draw all weights anew in place, in the order of the modules; gains of norms become 1."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                fill_normal(module.weight, self.fixed or module.in_features**-0.5, generator)
            elif isinstance(module, nn.Embedding):
                fill_normal(module.weight, self.fixed or 1.0, generator)
            else:
                for parameter in module.parameters(recurse=False):
                    nn.init.ones_(parameter)


class Pythia(LanguageModel):
    """A pretrained decoder of GPT-NeoX's kind (Biderman et al. 2023, arXiv:2304.01373)."""

    @classmethod
    def of(cls, configuration: Mapping[str, Any], state: dict[str, Tensor]) -> Pythia:
        """Return the network of a configuration, holding the tensors of `state` themselves."""
        from transformers import GPTNeoXConfig, GPTNeoXForCausalLM
        from transformers.initialization import no_init_weights

        config = GPTNeoXConfig.from_dict(dict(configuration), attn_implementation=ATTENTION)
        with no_init_weights():
            decoder = GPTNeoXForCausalLM(config)
        decoder.load_state_dict(state, assign=True)
        return cls(decoder, "gpt_neox.embed_in", "gpt_neox.layers", config.num_hidden_layers)
