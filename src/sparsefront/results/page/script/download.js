// The runs of the points that the filters leave, as CSV and as JSON, under the names of the result's fields. Dense networks and runs
// that count no more, their seeds having been run again, are no points.
const FIELDS = DATA.columns.map((column) => column.name).filter((name) => !name.startsWith("_"));

function recordsOf(runs) {
  return runs.map((run) => ({ ...Object.fromEntries(FIELDS.map((name) => [name, valueOf(name, run)])), command: DATA.commands[run] }));
}

function csvOf(runs) {
  return csvText([[...FIELDS, "command"], ...recordsOf(runs).map(Object.values)]);
}

// As `rows.csv` is written: text that a spreadsheet would calculate gets an apostrophe.
const FORMULA = /^'*([=+@\t\r\n]|-(?!\d+(\.\d*)?([eE][+-]?\d+)?$))/;

function csvText(lines) {
  const safe = (value) => (typeof value === "string" && FORMULA.test(value) ? `'${value}` : String(value ?? ""));
  const cell = (value) => (/[",\r\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
  return lines.map((line) => line.map((value) => cell(safe(value))).join(",")).join("\n") + "\n";
}

// The table as it is sorted and filtered, all of its lines.
function tableLines(points) {
  const plain = ({ head, value, text }, point) => (head === "test" ? qualityText(point) : text ? text(value(point), point.metric) : String(value(point) ?? ""));
  return [TABLE.map(({ head }) => head), ...sorted(points).map((point) => TABLE.map((column) => plain(column, point)))];
}

const LATEX = { "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "×": "$\\times$", "±": "$\\pm$",
  "≠": "$\\neq$", "≤": "$\\leq$", "–": "--", "−": "$-$" };
const latexText = (text) => text.replace(/[\\~^×±≠≤–−&%$#_{}]/g, (letter) => LATEX[letter] ?? `\\${letter}`).replace(/\s+/g, " ");

// For \usepackage{booktabs}.
function latexOf([head, ...lines]) {
  const columns = TABLE.map(({ head: name, text }) => (text || name === "test" ? "r" : "l")).join("");
  const row = (cells) => `${cells.map(latexText).join(" & ")} \\\\`;
  return [`\\begin{tabular}{${columns}}`, "\\toprule", row(head), "\\midrule", ...lines.map(row), "\\bottomrule", "\\end{tabular}", ""].join("\n");
}

// The first chart that is shown, in the light colors, with its style inside.
function figureText() {
  const figure = [...document.querySelectorAll("figure")].find((one) => !one.hidden);
  if (!figure) return null;
  const copy = figure.querySelector("svg").cloneNode(true);
  const style = document.querySelector("style").textContent.replace(/@media[^{]*\{[^]*?\n\}/g, "");
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.insertAdjacentHTML("afterbegin", `<style>${escaped(style)}</style>`);
  return new XMLSerializer().serializeToString(copy);
}

function download(name, text, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
