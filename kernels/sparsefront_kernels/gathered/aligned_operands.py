"""Operands as the feature-major CUDA kernels read and write them: rows along M that begin at 16 bytes."""

import torch
from torch import Tensor

RUN_BYTES = 16  # what a thread reads and writes at a time


def run_length(dtype: torch.dtype) -> int:
    """Elements of a run; M must be a multiple of it."""
    return RUN_BYTES // dtype.itemsize


def aligned_by_input(x: Tensor, *, feature_major: bool) -> Tensor:
    """X, [K, M] where feature_major and else [M, K], as [K, M rounded up to whole runs] with aligned rows.

    X itself where it is like that, else a copy, in which what lies past M is not set.
    """
    m, run = x.shape[1 if feature_major else 0], run_length(x.dtype)
    by_input = x if feature_major else x.t()
    if m % run == 0 and has_aligned_rows(by_input):
        return by_input
    copy = x.new_empty(by_input.shape[0], -(-m // run) * run)  # what lies past m reaches no element of Y
    if not feature_major and x.stride(1) == 1:
        transpose_into(x, copy[:, :m])
    else:
        copy[:, :m].copy_(by_input)
    return copy


def aligned_like(target: Tensor, residual: Tensor) -> Tensor:
    """The residual as a kernel reads it beside `target`, which has aligned rows and maybe more columns."""
    if residual.shape == target.shape and has_aligned_rows(residual):
        return residual
    copy = torch.empty_like(target)
    copy[:, : residual.shape[1]].copy_(residual)
    return copy


def deliver(target: Tensor, y: Tensor, *, feature_major: bool) -> None:
    """Copy what a kernel wrote, [N, M rounded up to whole runs], into y: [N, M] where feature_major and else [M, N]."""
    written = target[:, : y.shape[1 if feature_major else 0]]
    if feature_major:
        y.copy_(written)
    else:
        transpose_into(written, y)


def transpose_into(source: Tensor, target: Tensor) -> None:
    """Write source [R, C], with C contiguous, transposed into target [C, R], with R contiguous."""
    from sparsefront_kernels.gathered.triton import transpose  # Triton may be absent

    transpose.transpose_into(source, target)


def has_aligned_rows(matrix: Tensor) -> bool:
    """Whether rows are contiguous and each begins at 16 bytes."""
    run = run_length(matrix.dtype)
    return matrix.stride(1) == 1 and matrix.stride(0) % run == 0 and matrix.data_ptr() % RUN_BYTES == 0
