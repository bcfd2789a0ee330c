"""Accuracy of norms folded into the products around them, emulated on a CPU with a trained network.

python -m experiments.norm.folding --net FOLDER --texts test.jsonl.xz --out experiments/norm/folding.csv

A folded norm has no pass of its own. The product before it stores the sum s with its residual, and Σ s and Σ s² per row; with
the norm's weight g and bias b, products after it compute

    norm(s) Wᵀ = r (s W'ᵀ - mean Σ W') + b Wᵀ,    W' = W · g,    r = 1 / sqrt(E[s²] - mean² + eps),

and the next residual addition normalizes s from the same sums. Tensors are rounded where kernels store them; sums are float32.
In form plain the norm reads s, in two passes over registers, and stores its output; folded applies r and the mean to sums in
registers, folded_after_store to stored ones, as after a library's product without such an epilogue.
"""

import argparse
import copy
import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from experiments.harness.rows import append_line, text, where_and_when

FORMS = ("plain", "folded", "folded_after_store")
FACTS = ("mean_over_std", "largest_over_std", "largest", "variance_error", "largest_product")  # largest absolute values
STORED = ("q", "k", "v", "q_proj", "k_proj", "v_proj")  # Linears whose outputs attention reads
PART = 128  # outputs per partial sum, as in one tile's epilogue
TOKENS, BATCH = 32, 10


class Emulation(nn.Module):
    """Replaces a norm or a Linear; class attributes hold outputs [tokens, d] and FACTS of the norms called so far."""

    outputs: list[Tensor] = []
    largest: dict[str, float] = {}

    def __init__(self, part: Any, name: str, form: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight, self.bias, self.form, self.dtype = part.weight, getattr(part, "bias", None), form, dtype
        self.is_linear, self.is_stored = isinstance(part, nn.Linear), name.rpartition(".")[2] in STORED
        self.centers, self.eps = hasattr(part, "eps"), getattr(part, "eps", getattr(part, "variance_epsilon", 0.0))

    def round(self, x: Tensor) -> Tensor:
        return x.to(self.dtype).to(x.dtype)

    def note(self, *values: Tensor) -> None:
        for name, value in zip(FACTS, values, strict=False):
            self.largest[name] = max(self.largest.get(name, 0.0), value.abs().max().item())

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_linear:
            return self.norm(x)
        y = self.fold(*x.sums) if hasattr(x, "sums") else self.round(x) @ self.weight.t()
        y = y if self.bias is None else y + self.bias
        return self.round(y) if self.is_stored else y

    def norm(self, x: Tensor) -> Tensor:
        x.copy_(self.round(x))  # in place, since the residual of a pre-norm network reads the same tensor
        totals = (sum(part.sum(-1, keepdim=True) for part in y.split(PART, -1)) for y in (x, x * x))
        mean, square = (total / x.shape[-1] for total in totals)
        mean *= self.centers
        variance = square - mean.square()
        exact_mean = x.double().mean(-1, keepdim=True) * self.centers
        exact = (x.double() - exact_mean).square().mean(-1, keepdim=True)
        self.note(mean / exact.sqrt(), x / exact.sqrt(), x, variance / exact - 1)
        if self.form == "plain":
            mean, variance = exact_mean.to(x.dtype), exact.to(x.dtype)
        scale = (variance + self.eps).rsqrt()
        y = (x - mean) * scale * self.weight + (0 if self.bias is None else self.bias)
        if self.form == "plain":
            y = self.round(y)
        else:
            y.sums = x.clone(), mean, scale, self.weight, self.bias  # type: ignore[attr-defined]
        self.outputs.append(y.flatten(0, -2))
        return y

    def fold(self, sums: Tensor, mean: Tensor, scale: Tensor, g: Tensor, b: Tensor | None) -> Tensor:
        weight = self.round(self.weight * g)
        product = sums @ weight.t()
        self.note(*[torch.zeros(1)] * 4, product)
        product = self.round(product) if self.form == "folded_after_store" else product
        y = scale * (product - mean * weight.sum(1))
        return y if b is None else y + self.weight @ b


def emulate(net: nn.Module, form: str, dtype: torch.dtype) -> nn.Module:
    """A copy of the network whose norms and Linears round as kernels do."""
    net = copy.deepcopy(net).to(torch.float64 if dtype == torch.float64 else torch.float32).eval()
    for name, part in list(net.named_modules()):
        if isinstance(part, nn.Linear | nn.LayerNorm) or type(part).__name__.endswith("RMSNorm"):
            net.set_submodule(name, Emulation(part, name, form, dtype))
    return net


@torch.inference_mode()
def outputs(net: nn.Module, tokens: Tensor, largest: dict[str, float]) -> list[Tensor]:
    """Those of all norms, then the network's; `largest` is updated."""
    Emulation.outputs, Emulation.largest = [], largest
    last = net(tokens)[0]
    return [*Emulation.outputs, last.mean(1) if last.shape[-1] == net.config.hidden_size else last.flatten(0, 1)]


def measure(net: nn.Module, tokens: Tensor, dtype: torch.dtype) -> Iterator[dict[str, Any]]:
    """A line per form: relative errors per token, against the same weights in float64, of the output (without a head of its
    average over tokens), and of the norm with the largest 99th percentile.
    """
    net = net.to(dtype)
    exact, nets = emulate(net, "plain", torch.float64), {form: emulate(net, form, dtype) for form in FORMS}
    errors: dict[str, list[list[Tensor]]] = {form: [] for form in FORMS}
    largest: dict[str, dict[str, float]] = {form: {} for form in FORMS}
    for batch in tokens.split(BATCH):
        truth = outputs(exact, batch, {})
        for form, emulated in nets.items():
            pairs = zip(outputs(emulated, batch, largest[form]), truth, strict=True)
            errors[form].append([(y - z).norm(dim=-1) / z.norm(dim=-1) for y, z in pairs])
    for form in FORMS:
        *norms, last = (torch.cat(parts).double() for parts in zip(*errors[form], strict=True))
        p99 = [error.quantile(0.99).item() for error in norms]
        line = {"form": form, "median_error": last.median().item(), "p99_error": last.quantile(0.99).item()}
        line |= {"worst_error": last.max().item(), "norm_p99_error": max(p99), "norm": p99.index(max(p99)) + 1}
        yield line | {"norms": len(p99)} | {name: largest[form].get(name) for name in FACTS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    helps = {
        "net": "folder of an MPNet, BERT or Llama",
        "texts": "IMDb's test.jsonl.xz",
        "out": "CSV file; lines are added",
    }
    for name, words in helps.items():
        parser.add_argument(f"--{name}", type=Path, required=True, help=words)
    parser.add_argument("--count", type=int, default=200, help=f"beginnings of texts, {TOKENS} tokens each")
    asked = parser.parse_args()
    with lzma.open(asked.texts, "rt", encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line in file]
    tokenizer = transformers.AutoTokenizer.from_pretrained(asked.net)
    rows = (tokenizer(words)["input_ids"] for words in texts[:: len(texts) // asked.count])
    tokens = torch.tensor([row[:TOKENS] for row in rows if len(row) >= TOKENS])
    is_llama = transformers.AutoConfig.from_pretrained(asked.net).model_type == "llama"
    opened = transformers.AutoModelForCausalLM if is_llama else transformers.AutoModel
    for dtype in (torch.float16, torch.bfloat16):
        about = {"net": asked.net.name, "texts": len(tokens), "dtype": str(dtype).removeprefix("torch.")}
        for line in measure(opened.from_pretrained(asked.net, dtype=torch.float32), tokens, dtype):
            append_line(asked.out, {name: text(value) for name, value in (about | line).items()} | where_and_when())


if __name__ == "__main__":
    main()
