"""Tiny pretrained models, saved to folders by their own library; nothing is downloaded."""

import torch

TEXT = "".join(
    f"The {animal} {verb} over the {thing} and then it {verb} again.\n"
    for animal in ("quick fox", "lazy dog", "old horse", "small mouse", "grey goose")
    for verb in ("jumps", "runs", "climbs", "looks", "falls", "leans")
    for thing in ("fence", "wall", "river", "straße", "hill", "road", "table")
)
"""A text with a character of two bytes."""


def save_tokenizer(folder, vocabulary=300):
    """Save a tokenizer of byte pairs as transformers does, and return its size."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return tokenizer.get_vocab_size()


def save_neox(folder, width=16, layers=2, seed=0, tokens=320, dtype=torch.float32, **options):
    """Save a GPT-NeoX model with random weights, and its tokenizer; return the model."""
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    config = GPTNeoXConfig(
        vocab_size=tokens,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=4 * width,
        max_position_embeddings=64,
        initializer_range=0.2,
        **options,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = GPTNeoXForCausalLM(config).to(dtype).eval()
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return model
