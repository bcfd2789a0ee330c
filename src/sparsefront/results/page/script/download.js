// The runs of the points that the filters leave, as CSV and as JSON, under the names of the result's fields. Dense networks and runs
// that count no more, their seeds having been run again, are no points.
const FIELDS = DATA.columns.map((column) => column.name).filter((name) => !name.startsWith("_"));

function recordsOf(runs) {
  return runs.map((run) => ({ ...Object.fromEntries(FIELDS.map((name) => [name, valueOf(name, run)])), command: DATA.commands[run] }));
}

function csvOf(runs) {
  const cell = (value) => (/[",\r\n]/.test(value ?? "") ? `"${String(value).replaceAll('"', '""')}"` : String(value ?? ""));
  const lines = recordsOf(runs).map((record) => Object.values(record).map(cell).join(","));
  return [[...FIELDS, "command"].join(","), ...lines].join("\n") + "\n";
}

function download(name, text, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
