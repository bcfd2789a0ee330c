// What the reader chose, kept in the page's address: #axis=latency_ms&pattern=n_m,tile_wise&budget=1.5
const FILTERS = [
  "pattern", "granularity", "n_of_m", "distribution", "recovery", "sparsity_target", "importance", "allocation", "schedule",
  "kernel_mode", "precision", "seed", "recovery_seed",
];
const RUN_IDS = DATA.sections.map(({ runs }) => new Set(runs.map((run) => valueOf("run_id", run))));
const state = readAddress();

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  const number = (name) => (given.has(name) && isFinite(Number(given.get(name))) ? Number(given.get(name)) : null);
  const named = ["section", "point"].map((name) => given.get(name)).filter((run) => run !== null);
  const places = named.map((run) => RUN_IDS.findIndex((runs) => runs.has(run)));
  const section = places.find((place) => place >= 0);
  return {
    section: section ?? 0,
    lost: named[places.indexOf(-1)] ?? null,
    axis: given.get("axis") in AXES ? given.get("axis") : DATA.axis,
    split: given.get("split") in SPLITS ? given.get("split") : "test",
    within: number("within"),
    budget: number("budget"),
    point: given.get("point"), // a run_id: places of runs are others in a page that was written anew
    sort: given.get("sort"),
    filters: Object.fromEntries(FILTERS.map((name) => [name, new Set(parts(given.get(name)))])),
  };
}

// Places of sections are others too: one is named by a run that no other section has, as networks that were not recovered may be
// in several.
function nameOfSection(place) {
  const { runs, points } = DATA.sections[place], ids = [...points.flatMap((point) => point.runs), ...runs].map((run) => valueOf("run_id", run));
  return ids.find((run) => RUN_IDS.every((others, at) => at === place || !others.has(run))) ?? ids[0];
}

// A value may hold a comma itself: it is written encoded, so that only ours part the list.
function parts(text) {
  return text ? text.split(",").map(decoded) : [];
}

// Of a link that was cut short, what is there.
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function address() {
  const given = new URLSearchParams();
  if (state.axis !== DATA.axis) given.set("axis", state.axis);
  if (state.split !== "test") given.set("split", state.split);
  for (const name of ["within", "budget", "point", "sort"]) if (state[name] !== null) given.set(name, state[name]);
  for (const name of FILTERS) {
    const chosen = [...state.filters[name]].map(encodeURIComponent);
    if (chosen.length) given.set(name, chosen.join(","));
  }
  // What was chosen was chosen in this section, also of a page that has no other yet.
  if (state.section || `${given}`) given.set("section", nameOfSection(state.section));
  return `#${given}`;
}

// Not at every step of a slider: browsers slow a page down that writes its address too often.
let writing = 0;
function writeAddress() {
  clearTimeout(writing);
  writing = setTimeout(() => history.replaceState(null, "", address()), 150);
}
