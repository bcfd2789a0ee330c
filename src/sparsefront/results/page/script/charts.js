// The three charts of a section, and what the pointer finds in them.
const LOG_FROM_RATIO = 8;
const LEAST_SHARE = 0.5; // of the largest value that an axis of times spans: a difference of a thousandth must look like one
const NEAR_PIXELS = 24;
const spotsOf = new Map(); // svg -> where its points were drawn

function drawCharts(view) {
  const { points, dense, section } = view, { axis } = state, split = splitOf(section), quality = split.value;
  const all = [...points, ...dense].filter((point) => near(point, view));
  const timed = all.filter((point) => point[axis] !== null);
  const values = timed.map((point) => point[axis]);
  const log = values.length > 0 && Math.max(...values) > LOG_FROM_RATIO * Math.min(...values);
  const along = { xOptions: log ? { log } : { least: LEAST_SHARE * Math.max(...values) }, xLabel: section.axes[axis] };
  const interval = (point) => point.intervals[axis] ?? null;
  const common = { front: new Set(view.front), lines: [], levels: [], budget: null, winner: view.winner, selected: view.selected,
    interval: () => null, error: split.error, hollow: () => false, yLabel: section.quality_label + split.label };
  const lines = view.series.map(([pattern, own]) => ({ color: DATA.styles.patterns[pattern], points: own.filter((point) => near(point, view)) }));
  const steps = { color: "#999", points: view.front.filter((point) => near(point, view)), steps: true };
  draw("speed", { ...common, ...along, points: timed, x: (point) => point[axis], y: quality,
    yOptions: { least: 1 }, budget: view.budget, lines: [steps, ...lines], interval });
  draw("quality", { ...common, points: all.filter((point) => !point.dense), x: (point) => point.sparsity, y: quality,
    yOptions: { least: 1 }, levels: levelsOf(dense, quality), xLabel: "achieved sparsity, fraction of zeros", hollow: (point) => point[axis] === null });
  draw("density", { ...common, points: timed.filter((point) => !point.dense), x: (point) => point.sparsity, y: (point) => point[axis],
    yOptions: along.xOptions, levels: levelsOf(dense.slice(0, 1), (point) => point[axis]), xLabel: "achieved sparsity, fraction of zeros", yLabel: AXES[axis].short, error: () => null });
}

// Where dense lies, dotted, and dense trained on, dashed.
function levelsOf(dense, value) {
  const levels = dense.map((point) => ({ value: value(point), dash: point.dense === "dense" ? "1 3" : "5 4" }));
  return levels.filter(({ value }) => value !== null);
}

// What the reader chose, where the section has it.
const splitOf = (section) => SPLITS[hasHeldOut(section) ? state.split : "test"];
const hasHeldOut = (section) => section.picked_by === "val";

function draw(name, chart) {
  const svg = document.getElementById(`chart-${name}`);
  svg.closest("figure").hidden = chart.points.length === 0;
  chart.legend = [...document.querySelectorAll("figure")].find((figure) => !figure.hidden)?.contains(svg);
  spotsOf.set(svg, drawChart(svg, chart));
}

// Whether a point is shown though the reader looks close to dense only; 90.1 - 3 is more than 87.1 in binary digits.
function near(point, view) {
  const baseline = view.dense.filter((point) => point.dense !== "low").at(-1), { value } = splitOf(view.section);
  return state.within === null || !baseline || lostFrom(value(baseline), value(point), view.section.metric) <= state.within + EQUAL;
}

function nearestPoint(svg, event) {
  const box = svg.getBoundingClientRect(), size = SIZE.width / box.width;
  const at = [(event.clientX - box.left) * size, (event.clientY - box.top) * size];
  let best = null, distance = NEAR_PIXELS ** 2;
  for (const spot of spotsOf.get(svg) ?? []) {
    const found = (spot.x - at[0]) ** 2 + (spot.y - at[1]) ** 2;
    if (found < distance) [best, distance] = [spot.point, found];
  }
  return best;
}

function watchPointer(svg, select) {
  const tip = document.getElementById("tip");
  svg.addEventListener("pointermove", (event) => {
    const point = nearestPoint(svg, event);
    tip.hidden = !point;
    if (!point) return;
    tip.textContent = tipText(point);
    tip.style.left = `${Math.min(event.pageX + 14, scrollX + innerWidth - 340)}px`;
    tip.style.top = `${event.pageY + 14}px`;
  });
  svg.addEventListener("pointerleave", () => (tip.hidden = true));
  svg.addEventListener("click", (event) => {
    const point = nearestPoint(svg, event);
    if (point && !point.dense) select(point);
  });
}

// Arrow keys move through the points from left to right, Enter opens the one that has the focus.
function watchKeys(svg, select) {
  const tip = document.getElementById("tip"), moves = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 };
  let focused = null;
  svg.addEventListener("keydown", (event) => {
    const spots = (spotsOf.get(svg) ?? []).filter(({ point }) => !point.dense).sort((a, b) => a.x - b.x || a.y - b.y);
    const place = spots.findIndex(({ point }) => point.runs.join() === focused);
    if (event.key === "Enter" && place >= 0) select(spots[place].point);
    const next = { Home: 0, End: spots.length - 1 }[event.key] ?? (event.key in moves ? place + moves[event.key] : null);
    if (next === null || !spots.length) return;
    event.preventDefault();
    const spot = spots[Math.min(Math.max(next, 0), spots.length - 1)], box = svg.getBoundingClientRect(), size = box.width / SIZE.width;
    focused = spot.point.runs.join();
    svg.querySelector(".focused")?.remove();
    svg.insertAdjacentHTML("beforeend", `<circle class="focused" cx="${spot.x}" cy="${spot.y}" r="9"/>`);
    tip.textContent = tipText(spot.point);
    tip.hidden = false;
    tip.style.left = `${Math.max(0, Math.min(box.left + scrollX + spot.x * size + 14, scrollX + innerWidth - 340))}px`;
    tip.style.top = `${box.top + scrollY + spot.y * size + 14}px`;
  });
  svg.addEventListener("blur", () => {
    svg.querySelector(".focused")?.remove();
    [focused, tip.hidden] = [null, true];
  });
}

function tipText(point) {
  const seeds = point.runs.length > 1 ? `, ${point.runs.length} runs` : "";
  const lines = [nameOf(point) + seeds, `${qualityText(point)}, held out ${valueText(point.val, point.metric)}`];
  if (point.error !== null) lines.push(`± is the ${point.error_of}`);
  if (!point.dense) lines.push(`sparsity ${fractionText(point.sparsity)}, ${lostText(point.lost, point.metric)}`);
  lines.push(`${timesText(point.speedup)}, ${millisecondsText(point.latency_ms)}`);
  return [...lines, ...(point.unlike ?? []).map((text) => `≠ ${text}`)].join("\n");
}
