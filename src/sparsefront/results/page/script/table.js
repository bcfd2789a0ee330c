// The points of a section as a table: a heading sorts it, the best first, a line shows its details; long tables grow on demand.
const LINES_AT_ONCE = 100;
const TABLE = [
  { head: "pattern", value: (point) => point.label, cell: (point) => `${iconOf("pattern", point.pattern)}${escaped(point.label)}` },
  { head: "sparsity", most: true, value: (point) => point.sparsity, text: fractionText },
  { head: "recovery", minor: true, value: (point) => point.recovery },
  { head: "settings", minor: true, value: (point) => point.settings },
  { head: "runs", minor: true, most: true, value: (point) => point.runs.length, text: String },
  { head: "held out", minor: true, most: true, sign: true, value: (point) => point.val, text: valueText },
  { head: "test", most: true, sign: true, value: (point) => point.quality, cell: qualityText },
  { head: "points lost", minor: true, value: (point) => point.lost, text: pointsText },
  { head: "latency", minor: true, value: (point) => point.latency_ms, text: millisecondsText },
  { head: "speedup", most: true, value: (point) => point.speedup, text: timesText },
  { head: "speedup, own lengths", minor: true, field: "speedup_dataset", most: true, value: (point) => point.speedup_dataset, text: timesText },
  { head: "requests/s", minor: true, field: "_requests_per_s", most: true, value: (point) => point.requests_per_s, text: plainText },
  { head: "precision", minor: true, field: "_precision", value: (point) => valueOf("_precision", point.run) ?? "" },
  { head: "picked by held out", minor: true, value: (point) => point.picked ?? "" },
  { head: "≠", minor: true, value: (point) => (point.unlike.length ? point.unlike.join("; ") : ""),
    cell: (point) => (point.unlike.length ? `<abbr class="badge" title="${escaped(point.unlike.join("; "))}">≠</abbr>` : "") },
].filter(({ field }) => !field || DATA.columns.some(({ name, constant }) => name === field && constant !== null));
let linesShown = LINES_AT_ONCE;

function showTable(view, { select, changed }) {
  const table = document.getElementById("points"), lines = sorted(view.points);
  table.tHead.innerHTML = `<tr>${TABLE.map(({ head, minor }) => `<th tabindex="0"${minor ? ' class="minor"' : ""}>${head}${arrow(head)}</th>`).join("")}</tr>`;
  table.tBodies[0].innerHTML = lines.slice(0, linesShown).map((point, place) =>
    `<tr tabindex="0" data-place="${place}" class="${point === view.selected ? "chosen" : ""}">${TABLE.map((column) => cellOf(column, point)).join("")}</tr>`).join("");
  table.tHead.onclick = (event) => {
    const column = TABLE[event.target.closest("th")?.cellIndex];
    if (!column) return;
    const orders = column.most ? [`-${column.head}`, column.head] : [column.head, `-${column.head}`];
    state.sort = orders[state.sort === orders[0] ? 1 : 0];
    changed();
  };
  table.tBodies[0].onclick = (event) => select(lines[event.target.closest("tr").dataset.place]);
  const more = document.getElementById("more");
  more.hidden = lines.length <= linesShown;
  more.textContent = `${lines.length - linesShown} more`;
  more.onclick = () => {
    linesShown += 10 * LINES_AT_ONCE;
    changed();
  };
}

// A heading or a line that has the focus, by the keyboard; what was pressed is drawn anew and gets it back.
function pressed(event) {
  const part = event.target.closest("th, tbody tr");
  if (!part || !["Enter", " "].includes(event.key)) return;
  event.preventDefault();
  const { rowIndex } = part.closest("tr"), { cellIndex } = part;
  part.click();
  const row = document.getElementById("points").rows[rowIndex];
  (cellIndex === undefined ? row : row.cells[cellIndex]).focus();
}

function cellOf(column, point) {
  const value = column.value(point), numeric = column.text !== undefined;
  const content = column.cell ? column.cell(point) : escaped(numeric ? column.text(value, point.metric) : value);
  const kinds = [numeric || column.head === "test" ? "number" : "", column.minor ? "minor" : ""].filter(Boolean).join(" ");
  return `<td${kinds && ` class="${kinds}"`}>${content}</td>`;
}

// Empty values stay last whatever the direction.
function sorted(points) {
  const head = (state.sort ?? "-test").replace(/^-/, ""), direction = (state.sort ?? "-test").startsWith("-") ? -1 : 1;
  const column = TABLE.find((candidate) => candidate.head === head) ?? TABLE[0];
  const empty = (value) => value === null || value === "";
  const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
  const keyed = points.map((point) => [column.value(point), point]);
  const order = column.sign && points.length ? direction * points[0].metric.sign : direction; // the best first
  keyed.sort(([a], [b]) => empty(a) - empty(b) || (empty(a) ? 0 : order * compare(a, b)));
  return keyed.map(([, point]) => point);
}

const arrow = (head) => (state.sort === head ? " ▲" : state.sort === `-${head}` ? " ▼" : "");
