"""The precision in which references add up."""

import torch


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """float32 for the 16-bit types, as tensor cores accumulate; float32 and float64 stay what they are."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
