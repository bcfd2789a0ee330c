"""MPNet-base on the lengths of real texts, padded and unpadded, dense and with blocks of 64 at 75 %: fp16, random weights.

    PYTHONPATH=src:kernels python -m experiments.end_to_end.unpadded DATA/imdb/test.jsonl --part attention
    PYTHONPATH=src:kernels python -m experiments.end_to_end.unpadded DATA/imdb/test.jsonl --part network --longest 512

A text counts its words and punctuation marks as tokens, which are a few fewer than a tokenizer's, and is cut to `--longest`.
Timed is the batch with the median number of tokens among those in file order. Attention is also timed alone, by launch.
"""

import argparse
import copy
import json
import lzma
import re
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import transformers
from sparsefront_kernels.attention import attend_unpadded_reference
from sparsefront_kernels.attention.triton_unpadded import launch_attention
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import sparsefront as sf
from sparsefront.measure.correctness import output_error
from sparsefront.measure.timers import time_layer

HEADS, WIDTH, DEVICE = 12, 64, "cuda"
LAUNCHES = [
    (128, 64, 8, 3),
    (128, 64, 8, 2),
    (64, 64, 4, 3),
    (64, 64, 4, 2),
    (64, 32, 4, 3),
    (128, 32, 8, 3),
    (128, 64, 4, 2),
]


def read_lengths(file: Path, longest: int, texts: int) -> list[int]:
    """Tokens of the first texts of a file of JSON objects with "text", one a line, possibly compressed."""
    opened = lzma.open if file.suffix == ".xz" else open
    with opened(file, "rt", encoding="utf-8") as lines:
        words = [re.findall(r"\w+|[^\w\s]", json.loads(line)["text"]) for line in islice(lines, texts)]
    return [min(longest, len(text) + 2) for text in words]


def median_batch(lengths: list[int], rows: int) -> list[int]:
    """The lengths of the batch in file order whose sum is the median."""
    batches = [lengths[start : start + rows] for start in range(0, len(lengths) - rows + 1, rows)]
    return sorted(batches, key=sum)[len(batches) // 2]


class Call(nn.Module):
    """A function as a module, to time it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def time_attention(lengths: list[int]) -> None:
    """Print microseconds of one attention: by sequence offsets and, over padded rows, by PyTorch."""
    tokens, longest = sum(lengths), max(lengths)
    joined = torch.randn(tokens, 3 * HEADS * WIDTH, device=DEVICE, dtype=torch.float16)
    q, k, v = (part.unflatten(1, (HEADS, WIDTH)) for part in joined.chunk(3, 1))
    offsets = torch.tensor([0, *lengths], device=DEVICE).cumsum(0).int()
    columns = torch.cat([torch.arange(length) for length in lengths]).int().to(DEVICE)
    table = torch.randn(HEADS, 1023, device=DEVICE, dtype=torch.float16)
    for bias in (None, table):
        exact = (part.float() if part is not None else None for part in (q, k, v))
        expected = attend_unpadded_reference(
            *exact, offsets, WIDTH**-0.5, None if bias is None else bias.float(), columns
        )
        for launch in LAUNCHES:

            def attend(q: Tensor, k: Tensor, v: Tensor, launch: tuple = launch, bias: Tensor | None = bias) -> Tensor:
                out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
                launch_attention(q, k, v, offsets, WIDTH**-0.5, bias, columns, out, launch=launch)
                return out

            error = (attend(q, k, v).float() - expected).abs().max().item()
            taken = time_layer(Call(attend), q, k, v).latency_us
            print(
                f"unpadded, {'bias' if bias is not None else 'no bias'}, launch {launch}: {taken:.1f} us, error {error:.1e}"
            )
    padded = [torch.randn(len(lengths), HEADS, longest, WIDTH, device=DEVICE, dtype=torch.float16) for _ in range(3)]
    masks = torch.randn(len(lengths), HEADS, longest, longest, device=DEVICE, dtype=torch.float16)
    real = (torch.arange(longest) < torch.tensor(lengths)[:, None])[:, None, None].to(DEVICE)
    for name, mask in (("no mask", None), ("padding mask", real), ("bias", masks)):
        taken = time_layer(Call(lambda q, k, v, mask=mask: scaled_dot_product_attention(q, k, v, mask)), *padded)
        print(f"padded, PyTorch, {name}: {taken.latency_us:.1f} us")
    try:
        from torch.nn.attention.varlen import varlen_attn

        taken = time_layer(Call(lambda q, k, v: varlen_attn(q, k, v, offsets, offsets, longest, longest)), q, k, v)
        print(f"unpadded, PyTorch's varlen_attn, no bias: {taken.latency_us:.1f} us")
    except Exception as error:  # of releases without it
        print(f"varlen_attn: {error}")


def time_network(lengths: list[int], longest: int, layers: int) -> None:
    """Print the comparison of dense and blocks 75 %, padded and unpadded, on one batch."""
    torch.manual_seed(0)
    config = transformers.MPNetConfig(num_hidden_layers=layers, max_position_embeddings=longest + 2)
    net = transformers.MPNetForSequenceClassification(config).to(DEVICE, torch.float16).eval()
    ids = torch.randint(5, 30_000, (len(lengths), longest), device=DEVICE)
    mask = (torch.arange(longest) < torch.tensor(lengths)[:, None]).long().to(DEVICE)
    inputs = {"input_ids": ids.masked_fill(mask == 0, config.pad_token_id), "attention_mask": mask}
    sparse = copy.deepcopy(net)
    masks = sf.prune(sparse, "block_wise", 0.75, granularity=64, layers="*.layer.*")
    dense_ms, outputs = {}, []
    for name, own in (("padded", None), ("unpadded", lengths)):
        swapped = copy.deepcopy(sparse)
        print(sf.swap(swapped, masks, inputs, lengths=own, seconds=60))
        comparison = sf.benchmark(net, swapped, inputs, lengths=own, seconds=90)
        print(f"{name}:\n{comparison}", flush=True)
        dense_ms[name] = comparison.dense_ms, comparison.sparse_ms
        with torch.inference_mode():
            outputs.append(swapped(**inputs))
    (dense, blocks), (dense_unpadded, blocks_unpadded) = dense_ms.values()
    print(f"dense {dense:.3f} -> {dense_unpadded:.3f} ms, {dense / dense_unpadded:.2f}x by computing no padding")
    print(f"blocks 75 % {blocks:.3f} -> {blocks_unpadded:.3f} ms, {blocks / blocks_unpadded:.2f}x")
    print(f"blocks over dense, both unpadded: {dense_unpadded / blocks_unpadded:.2f}x")
    print(f"relative error of unpadded blocks against padded ones: {output_error(outputs[1], outputs[0]):.1e}")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path, help="JSON lines with text, .jsonl or .jsonl.xz")
    parser.add_argument("--part", choices=("attention", "network"), default="network")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--longest", type=int, default=512, help="tokens")
    parser.add_argument("--layers", type=int, default=12)
    options = parser.parse_args(arguments)
    lengths = median_batch(read_lengths(options.texts, options.longest, 12_800), options.rows)
    share = sum(lengths) / (len(lengths) * max(lengths))
    print(f"{len(lengths)} rows, {sum(lengths)} tokens, longest {max(lengths)}: {share:.0%} of a padded batch is real")
    if options.part == "attention":
        time_attention(lengths)
    else:
        time_network(lengths, max(lengths), options.layers)


if __name__ == "__main__":
    main(sys.argv[1:])
