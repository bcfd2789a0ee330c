// One view of the data, drawn again whenever the reader changes something.
function viewOf() {
  const section = DATA.sections[state.section], { axis } = state;
  const points = section.points.flatMap((held) => {
    const runs = runsThatPass(held.runs);
    return runs.length ? [pointOf(held, runs, section)] : [];
  });
  for (const [point, told] of pickedAs(points)) point.picked = told;
  const dense = densePoints(section), candidates = [...points, ...dense];
  return withBudget({
    section, points, dense,
    range: budgetRange(candidates, axis),
    front: paretoFront(candidates, axis),
    series: [...groupBy(points, (point) => point.pattern)].map(([pattern, own]) => [pattern, paretoFront(own, axis)]),
    selected: points.find((point) => point.runs.some((run) => valueOf("run_id", run) === state.point)) ?? null,
  });
}

function withBudget(view) {
  const { range } = view;
  const budget = range && Math.min(Math.max(state.budget ?? middleOf(range), range[0]), range[1]);
  return { ...view, budget, winner: range && winnerOf(view.front, state.axis, budget) };
}

const middleOf = ([low, high]) => (low + high) / 2;

function show() {
  const view = viewOf();
  const select = (point) => {
    state.point = valueOf("run_id", point.run);
    changed();
    document.getElementById("details").scrollIntoView({ block: "nearest" });
  };
  drawCharts(view);
  showBudget(view, movedBudget);
  showTable(view, { select, changed });
  showDetails(view.selected);
  document.getElementById("shown").textContent = shownText(view);
  showHeadline(view);
  return { view, select };
}

// The sentence of the page is of all runs, with its statistics; of some it says what was measured, and claims nothing.
function showHeadline({ points, section }) {
  const line = document.querySelector(`section[data-section="${state.section}"] .headline`);
  line.dataset.all ??= line.textContent;
  const some = FILTERS.some((name) => state.filters[name].size), timed = points.filter((point) => point.speedup !== null);
  const fastest = timed.sort((a, b) => b.speedup - a.speedup)[0];
  const measured = fastest && !section.on_cpu ? `, the fastest measured is ${nameOf(fastest)}: ${timesText(fastest.speedup)}, ${lostText(fastest.lost, fastest.metric)}` : "";
  line.textContent = some ? `Of the ${counted(points.length, "point")} shown${measured || ", none was timed on a GPU"}.` : line.dataset.all;
}

// What is drawn, picked and downloaded.
function shownText({ points, section }) {
  const runs = (of) => of.reduce((sum, point) => sum + point.runs.length, 0);
  return `${points.length} of ${counted(section.points.length, "point")}, ${runs(points)} of ${counted(runs(section.points), "run")}`;
}

let now = null;
function changed() {
  now = show();
  writeAddress();
}

// The slider moves often: only what depends on it is drawn.
function movedBudget() {
  const view = withBudget(now.view);
  now.view = view;
  drawCharts(view);
  showBudget(view, movedBudget);
  writeAddress();
}

function showSection() {
  // Of each section there are two: its headline above the charts, its tables below them.
  for (const text of document.querySelectorAll("[data-section]")) text.hidden = Number(text.dataset.section) !== state.section;
  document.getElementById("section").value = state.section;
  document.getElementById("lost").hidden = state.lost === null;
  document.getElementById("lost").textContent = `This link names run ${state.lost}, which is not in this page.`;
  document.getElementById("axis").value = state.axis;
  document.getElementById("split").value = state.split;
  document.getElementById("split").closest("label").hidden = !hasHeldOut(DATA.sections[state.section]);
  const within = document.getElementById("within"), { sign } = DATA.sections[state.section].metric;
  for (const { value } of within.options) within.querySelector(`[value="${value}"]`).textContent = value ? `≤ ${value} ${sign > 0 ? "points below" : "% above"} dense` : "all";
  within.value = state.within ?? "";
  showFilters(DATA.sections[state.section], changed);
  changed();
}

// All that was chosen, but for the section.
function reset() {
  const { section } = state;
  history.replaceState(null, "", "#");
  Object.assign(state, readAddress(), { section });
  linesShown = LINES_AT_ONCE;
  showSection();
}

function start() {
  const shownRuns = () => now.view.points.flatMap((point) => point.runs);
  const on = (id, kind, react) => document.getElementById(id).addEventListener(kind, react);
  on("section", "change", (event) => {
    Object.assign(state, { section: Number(event.target.value), lost: null, budget: null, point: null });
    for (const chosen of Object.values(state.filters)) chosen.clear();
    showSection();
  });
  on("axis", "change", (event) => (Object.assign(state, { axis: event.target.value, budget: null }), changed()));
  on("split", "change", (event) => ((state.split = event.target.value), changed()));
  on("within", "change", (event) => ((state.within = event.target.value ? Number(event.target.value) : null), changed()));
  on("csv", "click", () => download("runs.csv", csvOf(shownRuns()), "text/csv"));
  on("table-csv", "click", () => download("table.csv", csvText(tableLines(now.view.points)), "text/csv"));
  on("table-latex", "click", () => download("table.tex", latexOf(tableLines(now.view.points)), "text/plain"));
  on("figure", "click", () => {
    const text = figureText();
    if (text) download("figure.svg", text, "image/svg+xml");
  });
  on("link", "click", (event) => copyText(location.href.split("#")[0] + address(), event.currentTarget));
  on("reset", "click", reset);
  on("points", "keydown", pressed);
  on("json", "click", () => download("runs.json", JSON.stringify(recordsOf(shownRuns()), null, 1), "application/json"));
  document.addEventListener("click", (event) => {
    const key = event.target.closest(".legend .filters");
    if (key) document.querySelector(`#filters [data-field="${key.dataset.field}"] [data-value="${CSS.escape(key.dataset.value)}"]`)?.click();
    const button = event.target.closest("[data-copy]");
    if (button) copyText(button.parentElement.querySelector("code").textContent, button);
  });
  for (const svg of document.querySelectorAll("svg.chart")) {
    watchPointer(svg, (point) => now.select(point));
    watchKeys(svg, (point) => now.select(point));
  }
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    document.getElementById("tip").hidden = true;
    if (state.point !== null) (state.point = null), changed();
  });
  addEventListener("hashchange", () => (Object.assign(state, readAddress()), showSection()));
  document.body.classList.add("live");
  showSection();
}

start();
