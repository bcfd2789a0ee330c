// Everything that the page holds about one point: its runs, where they were measured, their layers and pictures.
const PROVENANCE = ["gpu", "driver", "cuda", "torch_version", "triton_version", "commit", "processor", "threads", "latency_kernel",
  "execution_mode_dense", "execution_mode_sparse", "dataset_digest", "dense_steps", "recovery_steps", "recovery_samples",
  "dense_weights_sha256", "dense_continued_weights_sha256", "dense_distilled_weights_sha256", "weights_sha256", "masks_sha256", "time"];

function showDetails(point) {
  const box = document.getElementById("details");
  box.hidden = !point;
  if (!point) return;
  box.innerHTML = [`<h3>${escaped(nameOf(point))}, sparsity ${fractionText(point.sparsity)}</h3>`,
    commandBox(DATA.commands[point.run]),
    ...point.unlike.map((text) => `<p><span class="badge">≠</span> ${escaped(text)}</p>`),
    runsTable(point), provenanceList(point.run), layersTable(point.run), picturesOf(point.run)].join("");
}

function commandBox(command) {
  return `<div class="command"><code>${escaped(command)}</code><button type="button" data-copy>copy</button></div>`;
}

function runsTable(point) {
  const lines = point.runs.map((run) => [valueOf("seed", run), valueOf("recovery_seed", run) ?? DASH,
    ...["_val_quality", "_quality"].map((name) => valueText(scaled(valueOf(name, run), point.metric), point.metric)),
    timesText(valueOf("speedup", run)), millisecondsText(valueOf("latency_sparse_ms", run)), valueOf("run_id", run), DATA.folders[run] ?? DASH]);
  return tableOf([["seed", "recovery seed", "held out", "test", "speedup", "latency", "run", "folder"], ...lines]);
}

function provenanceList(run) {
  const known_fields = PROVENANCE.filter((name) => valueOf(name, run) !== null);
  const shown = known_fields.map((name) => `${name} ${escaped(valueOf(name, run))}${name === "commit" ? " (kernels: as of the commit)" : ""}`);
  return `<p class="note">of run ${escaped(valueOf("run_id", run))}, as the command above and the layers below: ${shown.join(" · ")}</p>`;
}

function layersTable(run) {
  const lines = DATA.layers[run];
  if (!lines) return `<p class="note">Its layers are not in this page: see its row.json.</p>`;
  return `<details><summary>${counted(lines.length - 1, "layer")}</summary>${tableOf(lines)}</details>`;
}

function picturesOf(run) {
  return (DATA.pictures[run] ?? []).map(({ name, base64 }) =>
    `<figure><img alt="${escaped(name)}" src="data:image/png;base64,${base64}"><figcaption>${escaped(name)}</figcaption></figure>`).join("");
}

// Cells are marked as those of the page of one run: long reasons fold, collapsed layers stand out.
function tableOf([head, ...lines]) {
  const mark = (cell, place) => (head[place].includes("because") ? "reason" : String(cell).endsWith("(collapsed)") ? "collapsed" : "");
  const line = (tag, cells) => `<tr>${cells.map((cell, place) => `<${tag} class="${mark(cell, place)}">${escaped(cell)}</${tag}>`).join("")}</tr>`;
  return `<div class="wide"><table>${line("th", head)}${lines.map((cells) => line("td", cells)).join("")}</table></div>`;
}
