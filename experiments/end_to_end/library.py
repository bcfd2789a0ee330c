"""Common networks as a user has them, through the library's functions alone: tile_wise 128, 75 %, fp16, random weights.

    PYTHONPATH=src:kernels python -m experiments.end_to_end.library [--out library.csv] [--minutes 8]
    PYTHONPATH=src:kernels python -m experiments.end_to_end.library --networks sam_vit_h dinov2_large_256 --points all
    PYTHONPATH=src:kernels python -m experiments.end_to_end.library --networks vgg16_bn --points "block_wise 75%" "block_wise 90%"

Each network is pruned, swapped with kernel=auto and timed beside itself by `sf.benchmark`. Those that are in the file are not
measured again. The second command is of the encoders of the PyTorch talk, with its patterns. With the published CSV the table of
docs/networks.md is written too.
"""

import argparse
import copy
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torchvision
import transformers
from torch import nn

import sparsefront as sf
from experiments.harness.page import fill, speedup, table
from experiments.harness.rows import append_line, read_lines, text, where_and_when
from sparsefront.data.base import DataInfo
from sparsefront.models.transformer_mt import TransformerMT
from sparsefront.patterns.base import Pattern
from sparsefront.patterns.n_m import NM

HERE = Path(__file__).resolve().parent
PUBLISHED, PAGE = HERE / "library.csv", HERE.parents[1] / "docs" / "networks.md"
MARKS = ("<!-- speedups -->", "<!-- end of speedups -->")
Made = tuple[nn.Module, dict[str, Any]]
TILES = "tile_wise 75%"
POINTS: dict[str, tuple[str | Pattern, float, dict[str, Any], str]] = {
    TILES: ("tile_wise", 0.75, {"granularity": 128}, "none"),
    "block_wise 80%": ("block_wise", 0.8, {"granularity": 64}, "none"),
    "2:4": (NM(m=4), 0.5, {}, "none"),
    "tile_wise 75%, fp8": ("tile_wise", 0.75, {"granularity": 128}, "fp8"),
    "2:4, fp8": (NM(m=4), 0.5, {}, "fp8"),
}
BLOCKS: dict[str, tuple[str | Pattern, float, dict[str, Any], str]] = {
    f"block_wise {level}%": ("block_wise", level / 100, {"granularity": 64}, "none") for level in (75, 90)
}
"""Name -> pattern, sparsity and other arguments of `sf.prune`, and the precision of `sf.swap`."""


def images(net: nn.Module, name: str = "pixel_values", count: int = 64) -> Made:
    return net, {name: torch.randn(count, 3, 224, 224)}


def tokens(net: nn.Module, rows: int, length: int) -> Made:
    """With the mask that a tokenizer gives for texts of equal length."""
    ids = torch.randint(5, 30_000, (rows, length))
    return net, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def dinov2_large(count: int = 64) -> Made:
    config = transformers.Dinov2Config(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, image_size=224)
    return images(transformers.Dinov2ForImageClassification(config), count=count)


def sam_vit_h() -> Made:
    """The image encoder, with as many images as the talk has."""
    config = transformers.SamVisionConfig(
        hidden_size=1280,
        num_hidden_layers=32,
        num_attention_heads=16,
        mlp_dim=5120,
        global_attn_indexes=[7, 15, 23, 31],
    )
    return transformers.SamVisionModel(config), {"pixel_values": torch.randn(32, 3, 1024, 1024)}


def llama() -> Made:
    """Eight of the blocks of a network of a billion weights; a prompt, and no cache."""
    config = transformers.LlamaConfig(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=8,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=32_000,
    )
    return prompts(transformers.LlamaForCausalLM(config))


def prompts(net: nn.Module) -> Made:
    return net, {"input_ids": torch.randint(5, 30_000, (8, 512)), "use_cache": False}


def roberta_base() -> Made:
    config = transformers.RobertaConfig(vocab_size=50_265, max_position_embeddings=514, type_vocab_size=1)
    return tokens(transformers.RobertaForSequenceClassification(config), 64, 128)


def encoder() -> Made:
    layer = nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True)
    return nn.TransformerEncoder(layer, 6, enable_nested_tensor=False), {"src": torch.randn(16, 512, 1024)}


class TranslationEncoder(nn.Module):
    """The encoder of a Transformer-Big, with its embedding: tokens [B, S] -> [B, S, 1024]."""

    def __init__(self) -> None:
        super().__init__()
        info = DataInfo("translation", num_classes=0, sequence_length=1024, vocabulary=37_000)
        self.net = TransformerMT("big").build(info)
        self.net.decoder = nn.ModuleList()

    def forward(self, source: torch.Tensor, source_mask: torch.Tensor) -> torch.Tensor:
        return self.net.run_encoder(source, source_mask)


def translation(rows: int, length: int) -> Made:
    """Sentences of equal length."""
    source = torch.randint(4, 37_000, (rows, length))
    return TranslationEncoder(), {"source": source, "source_mask": torch.ones_like(source, dtype=torch.bool)}


class LstmEncoder(nn.Module):
    """Two layers of LSTMs in both directions: tokens [B, S] -> [B, S, 1024]."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8_000, 512)
        self.lstm = nn.LSTM(512, 512, 2, batch_first=True, bidirectional=True)

    def forward(self, source: torch.Tensor) -> torch.Tensor:
        return self.lstm(self.embedding(source))[0]


class LstmStep(nn.Module):
    """One step of two layers of LSTMs that are given an embedding and what attention gave: x [B, 1024], h and c [2, B, 512]."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1024, 512, 2, batch_first=True)

    def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, (h, c) = self.lstm(x[:, None], (h, c))
        return y[:, 0], h, c


def lstm_step(rows: int) -> Made:
    state = torch.randn(2, 2, rows, 512)
    return LstmStep(), {"x": torch.randn(rows, 1024), "h": state[0], "c": state[1]}


NETWORKS: dict[str, Callable[[], Made]] = {
    "bert_base": lambda: tokens(transformers.BertForSequenceClassification(transformers.BertConfig()), 64, 128),
    "vit_base": lambda: images(transformers.ViTForImageClassification(transformers.ViTConfig(num_labels=1000))),
    "vit_base_torchvision": lambda: images(torchvision.models.vit_b_16(), "x"),
    "roberta_base": roberta_base,
    "mpnet_base": lambda: tokens(transformers.MPNetForSequenceClassification(transformers.MPNetConfig()), 128, 128),
    "dinov2_large": dinov2_large,
    "transformer_encoder": encoder,
    "gpt2": lambda: prompts(transformers.GPT2LMHeadModel(transformers.GPT2Config())),
    "llama": llama,
    "resnet50": lambda: images(torchvision.models.resnet50(), "x"),
    "vgg16_bn": lambda: images(torchvision.models.vgg16_bn(), "x"),
    "transformer_big_1024": lambda: translation(8, 128),
    "transformer_big_8192": lambda: translation(64, 128),
    "lstm_encoder": lambda: (LstmEncoder(), {"source": torch.randint(4, 8_000, (64, 24))}),
    "lstm_step": lambda: lstm_step(64 * 5),
}
OF_THE_TALK: dict[str, Callable[[], Made]] = {"sam_vit_h": sam_vit_h, "dinov2_large_256": lambda: dinov2_large(256)}


def ready(name: str, device: torch.device) -> Made:
    """In fp16 on a GPU, in eval mode."""
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    torch.manual_seed(0)
    with device:
        net, inputs = (NETWORKS | OF_THE_TALK)[name]()
    net = net.to(dtype).eval()
    return net, {name: value.to(dtype) if _is_floating(value) else value for name, value in inputs.items()}


def _is_floating(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def measure(
    name: str, point: str, device: torch.device, kernel: str, seconds: float, settings: sf.Measure
) -> dict[str, Any]:
    """A row; its seconds are those that a user waits for."""
    dense, inputs = ready(name, device)
    net = copy.deepcopy(dense)
    pattern, sparsity, more, precision = (POINTS | BLOCKS)[point]
    masks = sf.prune(net, pattern, sparsity, example_inputs=inputs, tell=len, **more)
    messages: list[str] = []

    def tell(line: str) -> None:
        print(f"{name}: {line}", file=sys.stderr, flush=True)
        messages.append(line)

    start = time.monotonic()
    report = sf.swap(net, masks, inputs, kernel=kernel, precision=precision, seconds=seconds, tell=tell)
    swapped = time.monotonic()
    print(f"{name}: {json.dumps(report.fusion.summary())}", file=sys.stderr, flush=True)
    benchmark = sf.benchmark(dense, net, inputs, settings=settings, seconds=seconds, tell=tell)
    print(benchmark, file=sys.stderr, flush=True)
    fused = benchmark.timed.dense.fused_latency
    low, high = benchmark.interval
    return {
        "network": name,
        "inputs": "x".join(map(str, next(iter(inputs.values())).shape)),
        "dtype": str(next(net.parameters()).dtype).removeprefix("torch."),
        "point": point,
        "sparsity": sparsity,
        "precision": precision,
        "kernel": kernel,
        "dense_ms": benchmark.dense_ms,
        "dense_variant": benchmark.timed.dense.execution.name,
        "fused_dense_ms": None if fused is None else fused.median_ms,
        "sparse_ms": benchmark.sparse_ms,
        "sparse_variant": benchmark.timed.execution.name,
        "speedup": benchmark.speedup,
        "speedup_low": low,
        "speedup_high": high,
        "sparse_flops_share": report.sparse_flops_share,
        "blocks_rewritten": len(report.fusion.rewritten),
        "execution_modes": " ".join(settings.execution_modes),
        "search_seconds": seconds,
        "swap_s": swapped - start,
        "benchmark_s": time.monotonic() - swapped,
        "left_out": "; ".join(line for line in messages if "left out" in line),
        "transformers": transformers.__version__,
        **where_and_when(device),
    }


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.end_to_end.library", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--out", type=Path, default=PUBLISHED, help="CSV to which rows are added")
    parser.add_argument("--minutes", type=float, default=60.0, help="no network is begun after these")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each search, of sf.swap and sf.benchmark")
    parser.add_argument(
        "--kernel", choices=("auto", "sparse"), default="auto", help="sparse: the whole is not compared"
    )
    parser.add_argument("--networks", nargs="+", choices=NETWORKS | OF_THE_TALK, default=list(NETWORKS))
    parser.add_argument("--points", nargs="+", choices=[*POINTS, *BLOCKS, "all"], default=[TILES])
    parser.add_argument(
        "--modes", nargs="+", default=sf.Measure().execution_modes, help="execution modes that are tried"
    )
    asked = parser.parse_args(given)
    if not torch.cuda.is_available():
        parser.error("there is no GPU here: nothing is timed")
    device, start = torch.device("cuda"), time.monotonic()
    known = {(row["network"], row["point"]) for row in read_lines(asked.out)}
    for name, point in product(asked.networks, POINTS if "all" in asked.points else asked.points):
        if (name, point) in known or time.monotonic() - start > 60 * asked.minutes:
            continue
        row = measure(name, point, device, asked.kernel, asked.seconds, sf.Measure(execution_modes=asked.modes))
        append_line(asked.out, {column: text(cell) for column, cell in row.items()})
        torch.cuda.empty_cache()
    if asked.out == PUBLISHED:
        fill(PAGE, MARKS, page(read_lines(asked.out)))
    return 0


def page(rows: Sequence[Mapping[str, str]]) -> str:
    """The table of docs/networks.md."""
    head = ("network", "inputs", "pattern", "sparse share", "dense ms", "sparse ms", "speedup")
    cells = ([row[name] for name in ("network", "inputs", "point")] for row in rows)
    times = ([f"{float(row[name]):.2f}" for name in ("dense_ms", "sparse_ms")] for row in rows)
    shares = (f"{float(row['sparse_flops_share']):.0%}" for row in rows)
    lines = ([*cell, share, *ms, speedup(row)] for cell, share, ms, row in zip(cells, shares, times, rows, strict=True))
    return "\n".join(table(head, lines))


if __name__ == "__main__":
    sys.exit(main())
