// The points of a section as a table: a heading sorts it, a line shows its details; long tables grow on demand.
const LINES_AT_ONCE = 100;
const TABLE = [
  { head: "pattern", value: (point) => point.label, cell: (point) => `${iconOf("pattern", point.pattern)}${escaped(point.label)}` },
  { head: "sparsity", value: (point) => point.sparsity, text: fractionText },
  { head: "recovery", value: (point) => point.recovery },
  { head: "settings", value: (point) => point.settings },
  { head: "runs", value: (point) => point.runs.length, text: String },
  { head: "held out", value: (point) => point.val, text: percentText },
  { head: "test", value: (point) => point.quality, cell: qualityText },
  { head: "points lost", value: (point) => point.lost, text: pointsText },
  { head: "latency", value: (point) => point.latency_ms, text: millisecondsText },
  { head: "speedup", value: (point) => point.speedup, text: timesText },
  { head: "picked by held out", value: (point) => point.picked ?? "" },
  { head: "≠", value: (point) => (point.unlike.length ? point.unlike.join("; ") : ""),
    cell: (point) => (point.unlike.length ? `<abbr class="badge" title="${escaped(point.unlike.join("; "))}">≠</abbr>` : "") },
];
let linesShown = LINES_AT_ONCE;

function showTable(view, { select, changed }) {
  const table = document.getElementById("points"), lines = sorted(view.points);
  table.tHead.innerHTML = `<tr>${TABLE.map(({ head }) => `<th tabindex="0">${head}${arrow(head)}</th>`).join("")}</tr>`;
  table.tBodies[0].innerHTML = lines.slice(0, linesShown).map((point, place) =>
    `<tr tabindex="0" data-place="${place}" class="${point === view.selected ? "chosen" : ""}">${TABLE.map((column) => cellOf(column, point)).join("")}</tr>`).join("");
  table.tHead.onclick = (event) => {
    const head = TABLE[event.target.closest("th")?.cellIndex]?.head;
    if (!head) return;
    state.sort = state.sort === head ? `-${head}` : head;
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
  const content = column.cell ? column.cell(point) : escaped(numeric ? column.text(value) : value);
  return `<td${numeric || column.head === "test" ? ' class="number"' : ""}>${content}</td>`;
}

// Empty values stay last whatever the direction.
function sorted(points) {
  const head = (state.sort ?? "-test").replace(/^-/, ""), direction = (state.sort ?? "-test").startsWith("-") ? -1 : 1;
  const column = TABLE.find((candidate) => candidate.head === head) ?? TABLE[0];
  const empty = (value) => value === null || value === "";
  const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
  const keyed = points.map((point) => [column.value(point), point]);
  keyed.sort(([a], [b]) => empty(a) - empty(b) || (empty(a) ? 0 : direction * compare(a, b)));
  return keyed.map(([, point]) => point);
}

const arrow = (head) => (state.sort === head ? " ▲" : state.sort === `-${head}` ? " ▼" : "");
