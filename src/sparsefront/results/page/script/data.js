// The page's data: every run is a place in columns, every point a list of runs that share all but the seed.
const DATA = JSON.parse(document.getElementById("data").textContent);
const COLUMNS = new Map(DATA.columns.map((column) => [column.name, column]));

function valueOf(name, run) {
  const column = COLUMNS.get(name);
  if ("constant" in column) return column.constant;
  const held = column.values[run];
  return column.of && held !== null ? column.of[held] : held;
}

function known(name, runs) {
  return runs.map((run) => valueOf(name, run)).filter((value) => value !== null);
}

function mean(values) {
  return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null;
}

function median(values) {
  const ordered = [...values].sort((a, b) => a - b), half = ordered.length / 2;
  return mean(ordered.slice(Math.ceil(half) - 1, Math.floor(half) + 1));
}

function deviation(values) {
  if (values.length < 2) return null;
  const middle = mean(values);
  return Math.sqrt(values.reduce((sum, value) => sum + (value - middle) ** 2, 0) / (values.length - 1));
}

// What the charts may draw: of a point, and of dense, a value and how sure it is; as they are shown.
const SPLITS = {
  test: { label: "", value: (point) => point.quality, error: (point) => point.error },
  val: { label: ", held out", value: (point) => point.val, error: (point) => point.val_error ?? null },
};

// section.metric: {scale: of a value where it is shown, unit: behind it, sign: 1, or -1 where less is better}.
const scaled = (value, { scale }) => (value === null ? null : scale * value);

// What is worse by how much: points, of a perplexity percent of the baseline; as `Metric.lost`, of values as they are shown.
const lostFrom = (baseline, value, { sign }) => (sign > 0 ? baseline - value : 100 * (value / baseline - 1));

function largest(values) {
  const found = values.filter((value) => value !== null);
  return found.length ? Math.max(...found) : null;
}

// The runs of a point that the filters leave, taken together; qualities as they are shown.
function pointOf(held, runs, section) {
  const { metric } = section;
  const qualities = known("_quality", runs), vals = known("_val_quality", runs);
  const achieved = known("sparsity_achieved", runs);
  const errors = [scaled(mean(known("_quality_error", runs)), metric), scaled(deviation(qualities), metric)];
  const val_errors = [scaled(mean(known("_val_quality_error", runs)), metric), scaled(deviation(vals), metric)];
  const point = {
    ...held,
    metric,
    runs,
    run: runs[0],
    pattern: valueOf("pattern", runs[0]),
    recovery: valueOf("_recovery", runs[0]),
    quality: scaled(mean(qualities), metric),
    error: largest(errors),
    error_of: errors[1] !== null && errors[1] >= (errors[0] ?? 0) ? `deviation over ${runs.length} runs` : "standard error of the test set",
    val: vals.length === runs.length ? scaled(mean(vals), metric) : null,
    val_error: largest(val_errors),
    lost: mean(known("_lost", runs)),
    sparsity: achieved.length ? mean(achieved) : valueOf("sparsity_target", runs[0]),
    speedup: mean(known("speedup", runs)),
    latency_ms: mean(known("latency_sparse_ms", runs)),
    speedup_dataset: mean(known("speedup_dataset", runs)),
    requests_per_s: mean(known("_requests_per_s", runs)),
    intervals: { speedup: intervalOf("speedup", runs), speedup_dataset: intervalOf("speedup_dataset", runs) },
    unlike: runs.flatMap((run) => section.unlike[run] ?? []),
  };
  point.pick = pickOf(point, section);
  return point;
}

// From the lowest to the highest end over runs; null of a timing that was repeated too seldom for an interval.
function intervalOf(name, runs) {
  const often = runs.filter((run) => (valueOf("repeats", run) ?? DATA.fewest_repeats) >= DATA.fewest_repeats);
  const lows = known(`${name}_low`, often), highs = known(`${name}_high`, often);
  return lows.length && highs.length ? [Math.min(...lows), Math.max(...highs)] : null;
}

// What a choice goes by, more is better: the held-out part of train; of old records, which lack it, the reporting split; null: never picked.
function pickOf(point, section) {
  const value = { val: point.val, test: point.quality }[section.picked_by] ?? null;
  return value === null ? null : section.metric.sign * value;
}

// The median over runs of the ratio of two fields; null where no run has both.
function ratioOf(over, under, runs) {
  return median(runs.filter((run) => valueOf(over, run) && valueOf(under, run)).map((run) => valueOf(over, run) / valueOf(under, run)));
}

const lowLabel = (runs) => `dense in ${[...new Set(known("dense_low_precision", runs))].join(" or ") || "low precision"}`;

// Dense, dense trained on, and dense in low precision: medians over the runs of the seeds that the filter leaves, since every run has its own baseline.
function densePoints(section) {
  const { seed } = state.filters, runs = section.runs.filter((run) => !seed.size || seed.has(textOf("seed", run)));
  const kinds = { dense: ["dense baseline", "dense"], continued: ["dense, trained on", "dense_continued"],
    distilled: ["dense, trained on with the teacher", "dense_distilled"], low: [lowLabel(runs), "dense_low"] };
  const latency_ms = median(known("latency_dense_ms", runs));
  return Object.entries(kinds).flatMap(([kind, [label, field]]) => {
    const [quality, val] = [field, `val_${field}`].map((name) => scaled(median(known(name, runs)), section.metric));
    if (quality === null) return [];
    const point = { dense: kind, metric: section.metric, label, quality, val, latency_ms, runs: [], settings: "", intervals: {}, error: null };
    if (kind === "low") {
      const [speedup, speedup_dataset] = ["", "_dataset"].map((ending) => ratioOf(`latency_dense${ending}_ms`, `latency_dense_low${ending}_ms`, runs));
      return [{ ...point, latency_ms: median(known("latency_dense_low_ms", runs)), speedup, speedup_dataset, pick: pickOf(point, section) }];
    }
    const dense = latency_ms === null ? null : 1, own = known("speedup_dataset", runs).length ? 1 : null;
    return [{ ...point, speedup: dense, speedup_dataset: own, pick: pickOf(point, section) }];
  });
}
