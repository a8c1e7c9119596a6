"""Settings of torch under which a run can be repeated."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def reproducible(device: torch.device) -> Iterator[None]:
    """Use float32 without TF32, and deterministic algorithms where the device has them.

    The CPU needs no settings. On CUDA they are restored at the end, except for the cuBLAS
    workspace, an environment variable that counts only before CUDA's first use in the process.
    """
    if device.type != "cuda":
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    conv = cudnn.conv  # type: ignore[attr-defined]
    before = matmul.fp32_precision, conv.fp32_precision, cudnn.benchmark
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        matmul.fp32_precision = conv.fp32_precision = "ieee"
        cudnn.benchmark = False
        torch.use_deterministic_algorithms(True, warn_only=True)
        yield
    finally:
        matmul.fp32_precision, conv.fp32_precision, cudnn.benchmark = before
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
