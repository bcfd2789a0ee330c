"""Tables of the study: targets met and missed, curves over batch and length, crossovers, wins and losses, the ablation.

    python -m experiments.end_to_end.summary [--rows h200.csv] [--ablation ablation.csv] [--write README.md] [--draw speedup.svg]

Reads the CSVs alone. With --write the tables replace what stands between the two marks of the page; --draw makes its picture:
speedup of whole networks over the fastest dense version, by pattern and sparsity.
"""

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

from experiments.end_to_end.points import MODELS, SETTINGS, SIZES, TARGETS, Setting, Target
from experiments.harness import page
from experiments.harness.figures import MARKERS, new_figure, paper_style, save_svg, small_axes
from experiments.harness.page import geometric_mean, interval, per_cent
from experiments.harness.rows import Row, read_lines
from sparsefront.results.plots import DENSE_COLOR, pattern_color
from sparsefront.results.statistics import FASTER, LEAST_SPARSE_SHARE, speed_verdict

HERE = Path(__file__).resolve().parent
MARKS = "<!-- tables: made by summary.py -->", "<!-- end of tables -->"
MOST_ERROR_RATIO = 1.5  # of the fp16 masked-dense network's error
LEAST_DENSITY = 0.5  # of what was asked for, in every pruned layer
PATTERNS = ("tile_wise", "vector_wise", "block_wise", "n_m", "element_wise", "dense")  # in the order of the legend
DRAWN = (("bert_large", "32", "384"), ("bert_base", "128", "128"), ("vit_l_16", "256", ""))
TITLES = {"bert_large": "BERT-large, 32 × 384", "bert_base": "BERT-base, 128 × 128", "vit_l_16": "ViT-L/16, 256 images"}
LIMITS = ("speedup_low", "speedup_high")


def shortcomings(row: Row, target: Target) -> list[str]:
    """Why a row does not meet a target; empty where it does."""
    why = []
    if float(row["speedup"]) < target.speedup:
        why.append(f"{float(row['speedup']):.2f} < {target.speedup:g}")
    if float(row["sparse_flops_share"]) < LEAST_SPARSE_SHARE:
        why.append(f"{float(row['sparse_flops_share']):.0%} of the flops are sparse")
    if float(row["min_layer_density"]) < LEAST_DENSITY * (1 - float(row["sparsity"])):
        why.append(f"a layer keeps {float(row['min_layer_density']):.3f} of its weights")
    if float(row["error_ratio"]) > MOST_ERROR_RATIO:
        why.append(f"error {float(row['error_ratio']):.2f} x that of fp16")
    return why


def bars_table(rows: Sequence[Row], pattern_settings: str = "") -> list[str]:
    """Target after target, the row beside it."""
    head = [
        "row",
        "target (stretch)",
        "dense ms (fused)",
        "sparse ms",
        "speedup (range)",
        "error ratio",
        "sparse flops",
    ]
    head += ["products' share of the time", ""]
    lines = []
    for target in TARGETS:
        name = f"{target.point.model} {target.point.size} {target.point.dtype}, {_setting(target.point.setting)}"
        asked = f"{target.speedup:g}" + ("" if target.stretch is None else f" ({target.stretch:g})")
        settings = {"pattern_settings": pattern_settings} if target.point.setting.pattern == "tile_wise" else {}
        row = _find(rows, target.point.columns | settings)
        if row is None:
            lines.append([name, asked, *[""] * 6, "not measured"])
            continue
        why = shortcomings(row, target)
        reached = target.stretch is not None and float(row["speedup"]) >= target.stretch
        verdict = f"short: {'; '.join(why)}" if why else "met, stretch too" if reached else "met"
        fused = f" ({float(row['fused_dense_latency_ms']):.2f})" if row["fused_dense_latency_ms"] else ""
        cells = [f"{float(row['dense_latency_ms']):.2f}{fused}", f"{float(row['latency_ms']):.2f}"]
        cells += [f"**{float(row['speedup']):.2f}** ({interval(row)})", f"{float(row['error_ratio']):.2f}"]
        lines.append([name, asked, *cells, per_cent(row["sparse_flops_share"]), per_cent(row["gemm_share"]), verdict])
    return page.table(head, lines)


def curves(rows: Sequence[Row]) -> list[str]:
    """Per network and dtype the speedups of `auto`, with that of `sparse` behind them, over sizes and settings."""
    lines: list[str] = []
    for model in MODELS:
        for dtype in ("fp16", "bf16"):
            own = [row for row in rows if row["model"] == model and row["dtype"] == dtype]
            sizes = [size for size in sorted(SIZES[model]) if _of_size(own, size)]
            if not sizes:
                continue
            lines += ["", f"**{model}, {dtype}**: speedup of `kernel=auto` / `kernel=sparse`", ""]
            dense = [_dense(_of_size(own, size)) for size in sizes]
            lines.append(f"| | {' | '.join(map(_size, sizes))} | faster than dense from |")
            lines += ["|---|" + "---|" * (len(sizes) + 1), f"{page.row(['dense, the fastest', *dense])} |"]
            for setting in _settings(own):
                cells = [_cell(_of_size(own, size), setting) for size in sizes]
                lines.append(page.row([_setting(setting), *cells, crossover(own, setting)]))
    return lines


def crossover(rows: Sequence[Row], setting: Setting) -> str:
    """The smallest size from which on `sparse` is never slower than dense; that of `auto` where `sparse` was not measured."""
    outcomes: list[tuple[tuple[int, int | None], bool]] = []
    for size in sorted({_size_of(row) for row in rows}, key=lambda size: size[0] * (size[1] or 1)):
        of = [row for row in _of_size(rows, size) if _is(row, setting)]
        chosen = next((row for mode in ("sparse", "auto") for row in of if row["kernel_mode"] == mode), None)
        if chosen is not None:
            outcomes.append(
                (size, float(chosen["speedup"]) > 1 and float(chosen["sparse_flops_share"]) >= LEAST_SPARSE_SHARE)
            )
    wins = [size for index, (size, _) in enumerate(outcomes) if all(won for _, won in outcomes[index:])]
    return _size(wins[0]) if wins else "–" if outcomes else ""


def wins_and_losses(rows: Sequence[Row]) -> list[str]:
    """Counts over all rows: the whole range of a speedup decides, and a win needs sparse kernels."""
    lines = []
    for mode in ("auto", "sparse"):
        own = [row for row in rows if row["kernel_mode"] == mode]
        if not own:
            continue
        counts = Counter(_outcome(row) for row in own)
        speedups = [float(row["speedup"]) for row in own]
        tally = [counts[outcome] for outcome in ("win", "tie", "loss")]
        lines.append([mode, *tally, f"{min(speedups):.2f}", f"{geometric_mean(speedups):.2f}"])
    return page.table(["kernel", "wins", "ties", "losses", "slowest", "geometric mean"], lines)


def ablation_table(rows: Sequence[Row]) -> list[str]:
    """The lines of each network; the dense ones first."""
    lines: list[str] = []
    for model in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == model]
        first = own[0]
        dense = median(float(row["dense_latency_ms"]) for row in own)
        whole = next((float(row["latency_ms"]) for row in own if row["line"] == "fused"), None)
        size = _size(_size_of(first))
        lines += ["", f"**{model} {size}, {first['dtype']}, tile_wise 128, {float(first['sparsity']):.0%}**", ""]
        lines += page.table(["line", "ms", "against dense", "against fused", "error ratio", "what"], [])
        lines.append(f"| dense | {dense:.2f} | 1.00 | {_ratio(whole, dense)} | | {first['dense_variant']} |")
        if first["fused_dense_latency_ms"]:
            fused = float(first["fused_dense_latency_ms"])
            lines.append(
                f"| fused_dense | {fused:.2f} | {dense / fused:.2f} | {_ratio(whole, fused)} | | the same rewriting, dense |"
            )
        for row in own:
            took = float(row["latency_ms"])
            cells = [row["line"], f"{took:.2f}", f"{float(row['speedup']):.2f}", _ratio(whole, took)]
            lines.append(page.row([*cells, f"{float(row['error_ratio']):.2f}", row["what"]]))
    return lines


def tables(rows: Sequence[Row], ablation: Sequence[Row], pattern_settings: str = "") -> str:
    """All of them, in markdown; of tile_wise the rows with these settings."""
    rows = _of_tables(rows, pattern_settings)
    parts = ["### Targets", "", *bars_table(rows, pattern_settings)]
    parts += ["", "### Wins, ties and losses", "", *wins_and_losses(rows)]
    parts += ["", "### Curves and crossovers", *curves(rows)]
    if ablation:
        parts += ["", "### Ablation", *ablation_table(ablation)]
    return "\n".join(parts) + "\n"


def _of_tables(rows: Iterable[Row], pattern_settings: str = "") -> list[Row]:
    """All but those of tile_wise with other settings."""
    return [row for row in rows if row["pattern"] != "tile_wise" or row["pattern_settings"] == pattern_settings]


def _dense(rows: Iterable[Row]) -> str:
    """Latency of the fastest dense version beside all of these rows."""
    return f"{median(float(row['dense_latency_ms']) for row in rows):.2f} ms"


def _outcome(row: Row) -> str:
    low, high = float(row["speedup_low"]), float(row["speedup_high"])
    if speed_verdict(low, high, float(row["sparse_flops_share"])) == FASTER:
        return "win"
    return "loss" if high < 1 else "tie"  # also where noise of the timing may be all of it


def _cell(rows: Sequence[Row], setting: Setting) -> str:
    modes = {row["kernel_mode"]: row for row in rows if _is(row, setting)}
    if not modes:
        return ""
    texts = ["–" if mode not in modes else f"{float(modes[mode]['speedup']):.2f}" for mode in ("auto", "sparse")]
    return " / ".join(texts)


def _find(rows: Iterable[Row], columns: Row) -> Row | None:
    return next((row for row in rows if all(row[name] == value for name, value in columns.items())), None)


def _is(row: Row, setting: Setting) -> bool:
    unit = "" if setting.granularity is None else str(setting.granularity)
    return (row["pattern"], row["granularity"], row["sparsity"]) == (setting.pattern, unit, f"{setting.sparsity:g}")


def _settings(rows: Sequence[Row]) -> list[Setting]:
    return [setting for setting in SETTINGS if any(_is(row, setting) for row in rows)]


def _of_size(rows: Sequence[Row], size: tuple[int, int | None]) -> list[Row]:
    return [row for row in rows if _size_of(row) == size]


def _size_of(row: Row) -> tuple[int, int | None]:
    return int(row["batch"]), int(row["sequence_length"]) if row["sequence_length"] else None


def _size(size: tuple[int, int | None]) -> str:
    return f"{size[0]} images" if size[1] is None else f"{size[0]}×{size[1]}"


def _setting(setting: Setting) -> str:
    unit = f" {setting.granularity}" if setting.granularity else " 2:4" if setting.group_m == 4 else ""
    return f"{setting.pattern}{unit} {setting.sparsity:.0%}"


def _ratio(whole: float | None, took: float) -> str:
    return "" if whole is None else f"{took / whole:.2f}"


def shown(rows: Iterable[Row]) -> list[Row]:
    """Rows of the best kernels with the default settings of each pattern: 2:4 in both 16-bit types, others in fp16."""
    return [
        row
        for row in rows
        if (row["kernel_mode"], row["pattern_settings"]) == ("auto", "")
        and (row["dtype"] == "fp16" or row["pattern"] == "n_m")
    ]


def series_of(rows: Sequence[Row]) -> dict[tuple[str, str, str], list[Row]]:
    """(pattern, label, day and commit) -> its rows by sparsity: only rows of one day and commit are joined."""
    series: dict[tuple[str, str, str], list[Row]] = {}
    for row in sorted(rows, key=lambda row: float(row["sparsity"])):
        detail = row["granularity"] if row["pattern"] != "n_m" else f"2:{row['group_m']} {row['dtype']}"
        key = (row["pattern"], f"{row['pattern']} {detail}", f"{row['date']} {row['commit']}")
        series.setdefault(key, []).append(row)
    return dict(sorted(series.items(), key=lambda item: PATTERNS.index(item[0][0])))


@paper_style
def draw(rows: Sequence[Row], path: Path) -> None:
    """Write the figure: a panel per network, colors by pattern, markers by granularity or dtype, ranges of repeats."""
    figure = new_figure(len(DRAWN), columns=len(DRAWN))
    markers: dict[str, dict[str, str]] = {}
    for axes, place in zip(figure.axes, DRAWN, strict=True):
        drawn = [row for row in shown(rows) if (row["model"], row["batch"], row["sequence_length"]) == place]
        labels: set[str] = set()
        for (pattern, label, _), points in series_of(drawn).items():
            of_pattern = markers.setdefault(pattern, {})
            marker = of_pattern.setdefault(label, MARKERS[len(of_pattern)])
            speedups = [float(row["speedup"]) for row in points]
            ends = [[abs(float(row[end]) - float(row["speedup"])) for row in points] for end in LIMITS]
            x = [100 * float(row["sparsity"]) for row in points]
            style = {"color": pattern_color(pattern), "marker": marker, "label": "" if label in labels else label}
            axes.errorbar(x, speedups, yerr=ends, **style)
            labels.add(label)
        axes.axhline(1.0, color=DENSE_COLOR, linestyle=":")
        small_axes(axes, x="sparsity of the pruned layers, %", y="speedup over dense", title=TITLES[place[0]])
        axes.legend(loc="upper left", fontsize=5)
    save_svg(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=Path, default=HERE / "h200.csv")
    parser.add_argument("--ablation", type=Path, default=HERE / "ablation.csv")
    parser.add_argument("--pattern-settings", default="", help="of the tile_wise rows that stand against the targets")
    parser.add_argument("--write", type=Path, help="a page whose tables are replaced")
    parser.add_argument("--draw", type=Path, help="a picture that is made")
    asked = parser.parse_args()
    text = tables(read_lines(asked.rows), read_lines(asked.ablation), asked.pattern_settings)
    print(text)
    if asked.write:
        page.fill(asked.write, MARKS, text)
    if asked.draw:
        draw(read_lines(asked.rows), asked.draw)


if __name__ == "__main__":
    main()
