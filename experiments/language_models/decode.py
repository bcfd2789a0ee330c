"""Text generated token by token: four blocks of Llama-7B, random weights, dense, in int8 and sparse, with a static cache.

    python -m experiments.language_models.decode [--out FILE.csv] [--batches 1 4 16] [--points "tile_wise 75%"] [--seconds 30]

A row is a batch and a pattern: one step behind a prompt of 255 tokens, so that the context is 256, timed in turn with the dense
step in fp16 in a CUDA graph, compiled or not, with rewritten blocks or not. The dense step in int8 is torchao's, or without it
ours. Tokens per second and the time of a block, which is a step without its head, are printed. Rows that the file has are not
measured again. With the published CSV the table of README.md is written too.
"""

import argparse
import copy
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

import sparsefront as sf
from experiments.harness.page import fill, number, table
from experiments.harness.rows import Row, append_line, read_lines, text, where_and_when
from sparsefront.inference.fusion.block_pass import make_dense_graph
from sparsefront.measure.decode import Decoder, int8_unavailable_reason, int8_weight_only
from sparsefront.measure.end_to_end import find_dense, find_execution, time_against_dense
from sparsefront.measure.fastest import Execution
from sparsefront.measure.timers import time_layer

HERE = Path(__file__).resolve().parent
PUBLISHED = HERE / "decode.csv"
MARKS = ("<!-- decode -->", "<!-- end of decode -->")
CONTEXT = 256
TILES: dict[str, Any] = {"granularity": 128}
POINTS: dict[str, tuple[str, float, dict[str, Any], str]] = {
    "tile_wise 75%": ("tile_wise", 0.75, TILES, "none"),
    "tile_wise 90%": ("tile_wise", 0.9, TILES, "none"),
    "tile_wise 75% int8": ("tile_wise", 0.75, TILES, "int8"),
    "n_m 75%": ("n_m", 0.75, {}, "none"),
    "n_m 90%": ("n_m", 0.9, {}, "none"),
}
"""Name -> pattern, sparsity and other arguments of `sf.prune`, and the precision of `sf.swap`."""
BARS = {("1", "tile_wise 75%"): 1.6, ("1", "tile_wise 90%"): 2.1}
COLUMNS = (
    *("batch", "point", "context", "cache_length", "dtype", "graphed_ms", "dense_ms", "dense_variant"),
    *("int8_ms", "int8_variant", "sparse_ms", "over_graphed", "over_dense", "over_int8"),
    *("tokens_per_s", "sparse_flops_share", "blocks_rewritten", "kernels"),
    *("transformers", "gpu", "torch", "commit", "date"),
)


def llama(
    blocks: int = 4, width: int = 4096, hidden: int = 11_008, heads: int = 32, vocabulary: int = 32_000
) -> nn.Module:
    config = transformers.LlamaConfig(
        hidden_size=width,
        intermediate_size=hidden,
        num_hidden_layers=blocks,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        vocab_size=vocabulary,
        use_cache=False,
    )
    return transformers.LlamaForCausalLM(config)


def measure_batch(
    dense: nn.Module, batch: int, points: Sequence[str], settings: sf.Measure, *, context: int, seconds: float
) -> Iterator[dict[str, Any]]:
    """A row for each point, from the first two timings on."""
    device = next(dense.parameters()).device
    prompt = torch.randint(5, dense.config.vocab_size, (batch, context - 1), device=device)
    cache_length = settings.cache_length_for(context - 1)

    def step(net: nn.Module) -> Decoder:
        return Decoder(net, prompt, cache_length).eval()

    of_dense = step(dense)
    inputs: dict[str, Tensor] = {"input_ids": of_dense.first.argmax(-1, keepdim=True)}
    fastest_dense = find_dense(of_dense, inputs, settings, make_dense_graph)
    say(f"batch {batch}: dense {fastest_dense.medians_ms}")
    low, int8_ms = _int8(dense, of_dense, step, inputs, settings)
    head_us = _head_us(dense, batch)
    for name in points:
        pattern, sparsity, more, precision = POINTS[name]
        net = copy.deepcopy(dense)
        masks = sf.prune(net, pattern, sparsity, example_inputs={"input_ids": prompt}, tell=len, **more)
        report = sf.swap(net, masks, inputs, kernel="sparse", precision=precision, seconds=seconds, tell=say)
        for line in report.fusion.summary():
            say(f"  {line}")
        sparse, beside = time_against_dense(step(net), fastest_dense, inputs, settings)
        graphed = fastest_dense.medians_ms.get("cuda_graph")
        kernels = sorted({layer.kernel for layer in report.layers.values()})
        for what, ms in (("dense", beside.median_ms), ("dense int8", int8_ms), (name, sparse.median_ms)):
            if ms is not None:
                block = "" if head_us is None else f", {(ms * 1e3 - head_us) / len(dense.model.layers):.1f} us a block"
                say(f"batch {batch}, {what}: {ms:.4f} ms, {batch / ms * 1e3:,.0f} tokens/s{block}")
        yield {
            "batch": batch,
            "point": name,
            "context": context,
            "cache_length": cache_length,
            "dtype": str(next(dense.parameters()).dtype).removeprefix("torch."),
            "graphed_ms": graphed,
            "dense_ms": beside.median_ms,
            "dense_variant": fastest_dense.name,
            "int8_ms": int8_ms,
            "int8_variant": None if low is None else low.name,
            "sparse_ms": sparse.median_ms,
            "over_graphed": None if graphed is None else graphed / sparse.median_ms,
            "over_dense": beside.median_ms / sparse.median_ms,
            "over_int8": None if int8_ms is None else int8_ms / sparse.median_ms,
            "tokens_per_s": batch / sparse.median_ms * 1e3,
            "sparse_flops_share": report.sparse_flops_share,
            "blocks_rewritten": len(report.fusion.rewritten),
            "kernels": "+".join(kernels),
            "transformers": transformers.__version__,
            **where_and_when(device),
        }
        del net
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _int8(
    dense: nn.Module, of_dense: Decoder, step: Any, inputs: dict[str, Tensor], settings: sf.Measure
) -> tuple[Execution | None, float | None]:
    """The fastest way of the network with weights in int8: torchao's, or without it ours, which runs on a GPU alone."""
    why = int8_unavailable_reason()
    if why is not None:
        say(f"int8_weight_only {why}")
        if next(dense.parameters()).device.type != "cuda":
            return None, None
    low = step(int8_weight_only(dense)) if why is None else make_dense_graph(of_dense, inputs, "int8")
    execution = find_execution(low, inputs, settings)
    say(f"{'int8_weight_only' if why is None else 'int8 by own kernels'} {execution.medians_ms}")
    return execution, execution.fastest.median_ms


def _head_us(dense: nn.Module, batch: int) -> float | None:
    """Microseconds of the last norm and the head in a CUDA graph; None without a GPU."""
    weight = dense.lm_head.weight
    if not weight.is_cuda:
        return None
    head = nn.Sequential(dense.model.norm, dense.lm_head)
    return time_layer(head, weight.new_ones(batch, 1, weight.shape[1])).latency_us


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def page(rows: Sequence[Mapping[str, str]]) -> str:
    """The table of the page."""
    lines = []
    for row in sorted(rows, key=lambda row: (int(row["batch"]), row["point"])):
        times = [_ms(row, name) for name in ("graphed_ms", "dense_ms", "int8_ms", "sparse_ms")]
        over = [f"{float(row[name]):.2f}" if row[name] else "" for name in ("over_graphed", "over_dense", "over_int8")]
        bar = BARS.get((row["batch"], row["point"]))
        if bar is not None:
            over[0] += f" (bar {bar:g})"
        lines.append([row["batch"], row["point"], *times, *over, f"{float(row['tokens_per_s']):,.0f}"])
    head = (
        "batch",
        "pattern",
        "dense, graph",
        "dense, fastest",
        "int8 weights",
        "sparse",
        "over graph",
        "fastest",
        "int8",
    )
    return "\n".join(table((*head, "tokens/s"), lines))


def _ms(row: Mapping[str, str], name: str) -> str:
    value = number(row, name)
    return "" if value is None else f"{value:.3f}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.language_models.decode", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--out", type=Path, default=PUBLISHED)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--points", nargs="+", choices=POINTS, default=list(POINTS))
    parser.add_argument("--seconds", type=float, default=30.0, help="of each search")
    asked = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.error("there is no GPU here: nothing is timed")
    logging.basicConfig(level=logging.WARNING)
    device = torch.device("cuda")
    torch.manual_seed(0)
    with device:
        dense = llama().half().eval()
    modes = ["cuda_graph", "compile_cuda_graph"]
    settings = sf.Measure(
        mode="decode", execution_modes=modes, variants=["fused_qkv", "fused_graph"], autotune_seconds=asked.seconds
    )
    done = {(row["batch"], row["point"]) for row in read_lines(asked.out)}
    for batch in asked.batches:
        left = [name for name in asked.points if (str(batch), name) not in done]
        if not left:
            continue
        for row in measure_batch(dense, batch, left, settings, context=CONTEXT, seconds=asked.seconds):
            line: Row = {name: text(row[name]) for name in COLUMNS}
            print(", ".join(f"{name} {line[name]}" for name in COLUMNS[:16]), flush=True)
            append_line(asked.out, line)
    if asked.out == PUBLISHED:
        fill(HERE / "README.md", MARKS, page(read_lines(asked.out)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
