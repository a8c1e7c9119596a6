"""From what people call a loss, and from their loaders' batches, to the loss of each sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, get_args

import torch
from torch import Tensor, nn

from widthlab.checkpoints.evaluation import IGNORE, Loss, loss_of, mask_of
from widthlab.errors import WidthlabError
from widthlab.statistics.alignment.losses import Losses

Criterion = Callable[[Tensor, Tensor], Tensor]
AnyLoss = str | nn.Module | Callable[..., Tensor]
"""A name, a criterion of outputs and labels, or a function of the model and a batch."""


def losses_of(loss: AnyLoss) -> Losses:
    """Return the function from a model and a batch to the loss of each sample.

    `loss` is "cross_entropy" or "mse" (`checkpoints.evaluation.loss_of`); a criterion of outputs
    and labels with reduction="none", which is any `torch.nn.Module` and any function of
    `torch.nn.functional`; or any other function, called with the model and the batch. The first
    two read batches as `outputs_and_labels` does, and take the mean over the positions of a
    sequence that count. Raises WidthlabError for another name and a criterion that averages.
    """
    if isinstance(loss, str):
        kind = next((kind for kind in get_args(Loss) if kind == loss), None)
        if kind is None:
            raise WidthlabError(
                f"the loss must be {' or '.join(get_args(Loss))}, a criterion or a function, not "
                f"{loss!r}"
            )
        return lambda model, batch: loss_of(*outputs_and_labels(model, batch), kind)
    if isinstance(loss, nn.Module):
        reduction = getattr(loss, "reduction", "none")
        if reduction != "none":
            raise WidthlabError(
                f"the loss {type(loss).__name__} is already averaged or summed over samples "
                f'(reduction="{reduction}"); build it with reduction="none"'
            )
        return _by_criterion(loss)
    function = loss.func if isinstance(loss, partial) else loss
    if getattr(function, "__module__", None) == nn.functional.__name__:
        return _by_criterion(loss)
    if not callable(loss):
        raise WidthlabError(f"the loss must be a criterion or a function, not {loss!r}")
    return loss


def outputs_and_labels(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """Run the model on a batch, and return its outputs (n, …) with their labels.

    A batch is a pair (x, y), or a mapping of the model's arguments with `labels`, as
    `transformers` have it. There, labels where `attention_mask` is 0 do not count, and where the
    model's own loss is that of a causal language model, outputs are compared with the next label.
    Raises WidthlabError for anything else.
    """
    if isinstance(batch, Mapping):
        if "labels" not in batch:
            raise WidthlabError(
                f"a batch with the keys {', '.join(map(str, batch))} has no labels; add them, or "
                "give the loss as a function of the model and the batch"
            )
        arguments = {key: value for key, value in batch.items() if key != "labels"}
        outputs, labels = _tensor(model(**arguments)), batch["labels"]
        if labels.ndim == 2 and not labels.is_floating_point():
            mask = padding(batch)
            labels = labels if mask is None else torch.where(mask, labels, IGNORE)
            if _causal(model):
                outputs, labels = outputs[:, :-1], labels[:, 1:]
        return outputs, labels
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise WidthlabError(
            f"a batch must be a pair (x, y) or a mapping with labels, not a {type(batch).__name__}"
            f"{f' of {len(batch)}' if isinstance(batch, tuple | list) else ''}; give the loss as a "
            "function of the model and the batch to read others"
        )
    return _tensor(model(batch[0])), batch[1]


def padding(batch: Any) -> Tensor | None:
    """Return which positions of a batch count, (n, T), or None where all do.

    They are those of `attention_mask` in a mapping, and in a pair those whose integer label
    (n, T) is not -100.
    """
    if isinstance(batch, Mapping):
        mask = batch.get("attention_mask")
        return mask.bool() if isinstance(mask, Tensor) and mask.ndim == 2 else None
    labels = batch[1] if isinstance(batch, tuple | list) and len(batch) == 2 else None
    if not isinstance(labels, Tensor) or labels.ndim != 2 or labels.is_floating_point():
        return None
    return mask_of(labels)


def _by_criterion(criterion: Criterion) -> Losses:
    ignored = getattr(criterion, "ignore_index", IGNORE)

    def losses(model: nn.Module, batch: Any) -> Tensor:
        outputs, labels = outputs_and_labels(model, batch)
        if outputs.ndim != 3 or labels.ndim != 2 or labels.is_floating_point():
            return criterion(outputs, labels)
        if ignored != IGNORE:
            labels = torch.where(labels == IGNORE, ignored, labels)
        # Classes are on axis 1 for torch, and last for language models.
        each = criterion(outputs.mT, labels)
        if each.ndim != 2:
            return each
        return each.sum(dim=1) / (labels != ignored).sum(dim=1).clamp_min(1)

    return losses


def _tensor(output: Any) -> Tensor:
    """Return the outputs of a model that returns them, or an object or tuple with them."""
    if is_dataclass(output):
        names = ["logits", *(field.name for field in fields(output) if field.name != "loss")]
        output = next(
            (value for name in names if isinstance(value := getattr(output, name, None), Tensor)),
            output,
        )
    if isinstance(output, tuple | list) and output:
        output = output[0]
    if not isinstance(output, Tensor):
        raise WidthlabError(
            f"the model returns a {type(output).__name__} and no tensor of outputs; give the loss "
            "as a function of the model and the batch"
        )
    return output


def _causal(model: nn.Module) -> bool:
    """Say whether a model of transformers has the loss of a causal language model."""
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return False
    # None is what transformers take for the default, that of causal models; those of images and
    # text generate on condition of what is before the text.
    return getattr(model, "loss_type", "") in ("ForCausalLM", "ForConditionalGeneration", None)
