"""From what people call a loss, and from their loaders' batches, to the loss of each sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, get_args

import torch
from torch import Tensor, nn

from widthlab.checkpoints.evaluation import IGNORE, Loss, loss_of
from widthlab.errors import WidthlabError

Criterion = Callable[[Tensor, Tensor], Tensor]
AnyLoss = str | nn.Module | Callable[..., Tensor]
"""A name, a criterion of outputs and labels, or a function of the model and a batch."""


class BatchLosses:
    """The loss of each sample of a batch (n,), and which positions of its sequences count.

    `loss` is "cross_entropy" or "mse", ½|f − y|² summed over outputs with classes one-hot; a
    criterion of outputs and labels with reduction="none", which is any `torch.nn.Module` and any
    function of `torch.nn.functional`; or any other function, called with the model and the batch.
    The first two read batches as `outputs_and_labels` does. They take the mean over the positions
    of a sequence that count, outputs (n, T, V) with labels (n, T); a criterion that has a number
    for every output is summed over them. Raises WidthlabError for another name, for a criterion
    that averages, and where labels do not fit.
    """

    def __init__(self, loss: AnyLoss) -> None:
        self._criterion: Criterion | None = _criterion(loss)
        self._function = loss
        self._ignored = getattr(loss, "ignore_index", IGNORE)
        self._mask: Tensor | None = None

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the loss of each sample, and keep which positions counted."""
        self._mask = _attended(batch)
        if self._criterion is None:
            return self._function(model, batch)  # type: ignore[operator]
        outputs, labels = outputs_and_labels(model, batch)
        if outputs.ndim != 3 or labels.ndim != 2 or labels.is_floating_point():
            return _whole(self._criterion, outputs, labels)
        counted = (labels != IGNORE) & (labels != self._ignored)
        # Where labels were shifted the last position has none.
        self._mask = torch.nn.functional.pad(counted, (0, _unlabelled(batch, labels)))
        labels = torch.where(counted, labels, self._ignored)
        # Classes are on axis 1 for torch, and last for language models.
        each = _called(self._criterion, outputs.mT, labels)
        return each.sum(dim=1) / counted.sum(dim=1).clamp_min(1) if each.ndim == 2 else each

    def mask(self, batch: Any) -> Tensor | None:
        """Return which positions (n, T) count of the batch whose losses came last; None if all do.

        A position counts where its output is compared with a label that is not -100, and is not
        masked by `attention_mask`; so in pairs and in mappings alike. Where there is no label for
        each position, or a function of one's own reads the batch, `attention_mask` alone tells.
        """
        return self._mask


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
        outputs, labels = _tensor(model(**arguments)), _labels(batch["labels"])
        if outputs.ndim == 3 and labels.ndim == 2 and not labels.is_floating_point():
            mask = _attended(batch)
            if mask is not None and mask.shape == labels.shape:
                labels = torch.where(mask, labels, IGNORE)
            if _causal(model):
                outputs, labels = outputs[:, :-1], labels[:, 1:]
        return outputs, labels
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise WidthlabError(
            f"a batch must be a pair (x, y) or a mapping with labels, not a {type(batch).__name__}"
            f"{f' of {len(batch)}' if isinstance(batch, tuple | list) else ''}; give the loss as a "
            "function of the model and the batch to read others"
        )
    return _tensor(model(batch[0])), _labels(batch[1])


def _unlabelled(batch: Any, labels: Tensor) -> int:
    """Return how many positions at the end of a batch's sequences have no label."""
    return batch["labels"].shape[1] - labels.shape[1] if isinstance(batch, Mapping) else 0


def _attended(batch: Any) -> Tensor | None:
    mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    return mask.bool() if isinstance(mask, Tensor) and mask.ndim == 2 else None


def _criterion(loss: AnyLoss) -> Criterion | None:
    """Return what compares outputs with labels; None for a function of the model and a batch."""
    if isinstance(loss, str):
        if loss not in get_args(Loss):
            raise WidthlabError(
                f"the loss must be {' or '.join(get_args(Loss))}, a criterion or a function, not "
                f"{loss!r}"
            )
        return _cross_entropy if loss == "cross_entropy" else _squares
    if isinstance(loss, nn.Module):
        reduction = getattr(loss, "reduction", "none")
        if reduction != "none":
            raise WidthlabError(
                f"the loss {type(loss).__name__} is already averaged or summed over samples "
                f'(reduction="{reduction}"); build it with reduction="none"'
            )
        return loss
    function = loss.func if isinstance(loss, partial) else loss
    if getattr(function, "__module__", None) == nn.functional.__name__:
        return loss
    if not callable(loss):
        raise WidthlabError(f"the loss must be a criterion or a function, not {loss!r}")
    return None


def _cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    if labels.is_floating_point():
        if labels.shape != outputs.shape:
            raise _misfit("cross_entropy", outputs, labels)
    else:
        _check_classes("cross_entropy", outputs, labels)
    return torch.nn.functional.cross_entropy(outputs, labels, reduction="none", ignore_index=IGNORE)


def _squares(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return ½|f − y|² (n,) of targets y of the outputs' shape, or of classes one-hot."""
    if labels.is_floating_point():
        if labels.shape != outputs.shape:
            raise _misfit("mse", outputs, labels)
        return 0.5 * (outputs - labels).square().reshape(len(outputs), -1).sum(dim=1)
    if labels.ndim == 2:
        raise WidthlabError(
            f"the loss mse has no labels of shape {tuple(labels.shape)} of whole numbers, tokens "
            "or several classes; give real targets of the outputs' shape, or take cross_entropy"
        )
    _check_classes("mse", outputs, labels)
    return loss_of(outputs, labels, "mse")


def _check_classes(name: str, outputs: Tensor, labels: Tensor) -> None:
    """Refuse labels that are not one class for each sample or position, with classes on axis 1."""
    if outputs.ndim < 2 or labels.shape != outputs.shape[:1] + outputs.shape[2:]:
        raise _misfit(name, outputs, labels)
    counted = labels[labels != IGNORE]
    if len(counted) and not 0 <= int(counted.min()) <= int(counted.max()) < outputs.shape[1]:
        raise WidthlabError(
            f"labels run from {int(counted.min())} to {int(counted.max())}, but the model has "
            f"{outputs.shape[1]} outputs, classes 0 to {outputs.shape[1] - 1}"
        )


def _misfit(name: str, outputs: Tensor, labels: Tensor) -> WidthlabError:
    kind = str(labels.dtype).removeprefix("torch.")
    return WidthlabError(
        f"the loss {name} cannot compare outputs of shape {tuple(outputs.shape)} with labels of "
        f"shape {tuple(labels.shape)} ({kind}); give classes (n,), tokens (n, T), or real targets "
        "of the outputs' shape"
    )


def _whole(criterion: Criterion, outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the losses of samples that are no sequences, summed over outputs where there are."""
    each = _called(criterion, outputs, labels)
    if each.ndim < 2 or each.shape != outputs.shape:
        return each
    if labels.shape != outputs.shape:
        raise _misfit(_name(criterion), outputs, labels)
    return each.reshape(len(each), -1).sum(dim=1)


def _called(criterion: Criterion, outputs: Tensor, labels: Tensor) -> Tensor:
    """Return what a criterion says; raises WidthlabError where it cannot read its arguments."""
    try:
        return criterion(outputs, labels)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        kind = str(labels.dtype).removeprefix("torch.")
        raise WidthlabError(
            f"the loss {_name(criterion)} fails on outputs of shape {tuple(outputs.shape)} and "
            f"labels of shape {tuple(labels.shape)} ({kind}): {lines[0]}"
        ) from error


def _name(criterion: Any) -> str:
    function = criterion.func if isinstance(criterion, partial) else criterion
    return str(getattr(function, "__name__", type(function).__name__)).lstrip("_")


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


def _labels(labels: Any) -> Tensor:
    if not isinstance(labels, Tensor) or not labels.ndim:
        raise WidthlabError(
            f"labels must be a tensor with one row for each sample, not a {type(labels).__name__}"
        )
    return labels


def _causal(model: nn.Module) -> bool:
    """Say whether a model of transformers has the loss of a causal language model."""
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return False
    # None is what transformers take for the default, that of causal models; those of images and
    # text generate on condition of what is before the text.
    return getattr(model, "loss_type", "") in ("ForCausalLM", "ForConditionalGeneration", None)
