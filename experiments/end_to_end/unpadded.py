"""MPNet-base on the lengths of real texts, padded and unpadded, dense and with blocks of 64 at 75 %: fp16, random weights.

    PYTHONPATH=src:kernels python -m experiments.end_to_end.unpadded --part equal_lengths
    PYTHONPATH=src:kernels python -m experiments.end_to_end.unpadded DATA/imdb/test.jsonl --part attention
    PYTHONPATH=src:kernels python -m experiments.end_to_end.unpadded DATA/imdb/test.jsonl --part network --longest 512

A text counts its words and punctuation marks as tokens, which are a few fewer than a tokenizer's, and is cut to `--longest`.
Timed is the batch with the median number of tokens among those in file order. Attention is also timed alone, by launch;
of equal lengths, without texts, in the layouts of rewritten blocks too.
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
from sparsefront_kernels.attention import attend_reference, attend_unpadded_reference, triton_encoder
from sparsefront_kernels.attention.triton_unpadded import launch_attention
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
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
ENCODER_LAUNCHES = [*LAUNCHES, (128, 128, 8, 2), (128, 128, 8, 3), (64, 128, 4, 2)]


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


# batch, length, heads of 64, whether relative positions are added
EQUAL_LENGTHS = {"BERT-large": (32, 384, 16, False), "ViT-L": (64, 197, 16, False), "MPNet": (32, 272, 12, True)}


def time_equal_lengths() -> None:
    """Print microseconds of PyTorch's attention and of ours, in both layouts, by launch; q, k and v are one product's."""
    for name, (batch, length, heads, has_bias) in EQUAL_LENGTHS.items():
        width, scale = heads * WIDTH, WIDTH**-0.5
        rows = torch.randn(batch * length, 3 * width, device=DEVICE, dtype=torch.float16)
        masks = {"no mask": None, "padding mask": torch.ones(batch, 1, 1, length, device=DEVICE, dtype=torch.bool)}
        masks["padding mask"][: batch // 2, ..., length // 2 :] = False
        if has_bias:
            masks = {"bias": torch.randn(1, heads, length, length, device=DEVICE, dtype=torch.float16)}
            masks["bias"] = masks["bias"].expand(batch, -1, -1, -1)
        for described, mask in masks.items():
            title = f"{name} {batch}x{length}, {described}"
            parts = rows.float().view(batch, length, 3 * width).chunk(3, 2)
            exact = None if mask is None or mask.dtype == torch.bool else mask.float()
            expected = attend_reference(*parts, None, heads, scale, mask if exact is None else exact)

            def by_pytorch(
                rows: Tensor, mask: Tensor | None = mask, sizes: tuple = (batch, -1, heads, WIDTH)
            ) -> Tensor:
                q, k, v = (
                    part.unflatten(0, sizes[:2]).unflatten(2, sizes[2:]).transpose(1, 2) for part in rows.chunk(3, 1)
                )
                return scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2)

            for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
                try:
                    with sdpa_kernel(backend):
                        taken = time_layer(Call(by_pytorch), rows).latency_us
                    print(f"{title}, {backend.name}: {taken:.1f} us", flush=True)
                except Exception as error:  # a backend without such masks
                    print(f"{title}, {backend.name}: {str(error).splitlines()[0]}", flush=True)
            for layout, x in (("rows", rows), ("columns", rows.t().contiguous().t())):
                features = torch.arange(3 * width, device=DEVICE, dtype=torch.int32).view(3, width)
                for launch in ENCODER_LAUNCHES:

                    def ours(
                        x: Tensor, layout=layout, launch=launch, mask=mask, features=features, shape=expected.shape
                    ):
                        y, columns = x.view(*shape[:2], -1), layout == "columns"
                        out = y.new_empty(shape[2], len(x)).t() if columns else y.new_empty(len(x), shape[2])
                        operands = (y, y, y, features) if columns else (*y.chunk(3, 2), None)
                        heads, out = shape[2] // WIDTH, out.view(shape)
                        triton_encoder.launch_attention(
                            *operands, heads, WIDTH**-0.5, mask, None, None, out, launch=launch
                        )
                        return out

                    error = (ours(x).float() - expected).abs().max().item()
                    taken = time_layer(Call(ours), x).latency_us
                    print(f"{title}, ours, {layout}, launch {launch}: {taken:.1f} us, error {error:.1e}", flush=True)


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
    parser.add_argument("texts", type=Path, nargs="?", help="JSON lines with text, .jsonl or .jsonl.xz")
    parser.add_argument("--part", choices=("attention", "network", "equal_lengths"), default="network")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--longest", type=int, default=512, help="tokens")
    parser.add_argument("--layers", type=int, default=12)
    options = parser.parse_args(arguments)
    if options.part == "equal_lengths":
        return time_equal_lengths()
    if options.texts is None:
        parser.error("texts is required: their lengths are timed")
    lengths = median_batch(read_lengths(options.texts, options.longest, 12_800), options.rows)
    share = sum(lengths) / (len(lengths) * max(lengths))
    print(f"{len(lengths)} rows, {sum(lengths)} tokens, longest {max(lengths)}: {share:.0%} of a padded batch is real")
    if options.part == "attention":
        time_attention(lengths)
    else:
        time_network(lengths, max(lengths), options.layers)


if __name__ == "__main__":
    main(sys.argv[1:])
