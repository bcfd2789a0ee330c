// What the reader chose, kept in the page's address: #section=1&axis=latency_ms&pattern=n_m,tile_wise&budget=1.5
const FILTERS = [
  "pattern", "granularity", "n_of_m", "distribution", "recovery", "sparsity_target", "importance", "allocation", "schedule",
  "kernel_mode", "seed", "recovery_seed",
];
const state = readAddress();

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  const number = (name) => (given.has(name) && isFinite(Number(given.get(name))) ? Number(given.get(name)) : null);
  const section = number("section") ?? 0;
  return {
    section: DATA.sections[section] ? section : 0,
    axis: given.get("axis") in AXES ? given.get("axis") : DATA.axis,
    split: given.get("split") in SPLITS ? given.get("split") : "test",
    within: number("within"),
    budget: number("budget"),
    point: given.get("point"), // a run_id: places of runs are others in a page that was written anew
    sort: given.get("sort"),
    filters: Object.fromEntries(FILTERS.map((name) => [name, new Set(parts(given.get(name)))])),
  };
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
  if (state.section) given.set("section", state.section);
  if (state.axis !== DATA.axis) given.set("axis", state.axis);
  if (state.split !== "test") given.set("split", state.split);
  for (const name of ["within", "budget", "point", "sort"]) if (state[name] !== null) given.set(name, state[name]);
  for (const name of FILTERS) {
    const chosen = [...state.filters[name]].map(encodeURIComponent);
    if (chosen.length) given.set(name, chosen.join(","));
  }
  return `#${given}`;
}

// Not at every step of a slider: browsers slow a page down that writes its address too often.
let writing = 0;
function writeAddress() {
  clearTimeout(writing);
  writing = setTimeout(() => history.replaceState(null, "", address()), 150);
}
