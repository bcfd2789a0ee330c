// Buttons that choose among values in which the runs of a section differ, and of those that a link chose; none pressed means all.
function runsThatPass(runs) {
  const active = FILTERS.filter((name) => state.filters[name].size);
  return runs.filter((run) => active.every((name) => state.filters[name].has(textOf(name, run))));
}

// The page's own column, where it has one, knows more than the record's field.
const columnOf = (name) => (COLUMNS.has(`_${name}`) ? `_${name}` : name);
const textOf = (name, run) => String(valueOf(columnOf(name), run) ?? DASH);

function showFilters(section, changed) {
  const runs = section.points.flatMap((point) => point.runs);
  const valuesOf = (name) => new Set([...state.filters[name], ...runs.map((run) => textOf(name, run))]);
  const fields = FILTERS.map((name) => [name, [...valuesOf(name)].sort(byNumberOrText)]);
  const differs = ([name, values]) => values.length > 1 && !(name === "recovery_seed" && recoveredBySeed(runs));
  const several = fields.filter((field) => differs(field) || state.filters[field[0]].size);
  const box = document.getElementById("filters");
  box.innerHTML = several.map(([name, values]) => `<fieldset data-field="${name}"><legend>${name.replaceAll("_", " ")}</legend>` +
    values.map((value) => `<button type="button" aria-pressed="${state.filters[name].has(value)}" data-value="${escaped(value)}">` +
      `${iconOf(name, value)}${escaped(value)}</button>`).join("") + "</fieldset>").join("");
  box.onclick = (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    const chosen = state.filters[button.closest("fieldset").dataset.field], { value } = button.dataset;
    if (!chosen.delete(value)) chosen.add(value);
    button.setAttribute("aria-pressed", chosen.has(value));
    changed();
  };
}

// Whether each recovery has the seed of its dense network: then the filter of that seed is enough.
function recoveredBySeed(runs) {
  return runs.every((run) => textOf("recovery_seed", run) === textOf("seed", run));
}

function iconOf(name, value) {
  if (name === "pattern") return symbolIcon("circle", DATA.styles.patterns[value] ?? GREY);
  return name === "recovery" ? symbolIcon(DATA.styles.recoveries[value] ?? "circle", "#555") : "";
}

function byNumberOrText(a, b) {
  return isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b;
}
