// The slider: how fast must it be, which candidate is then the best, and the command that made it.
const STEPS = 1000;

function budgetRange(points, axis) {
  const values = points.filter((point) => point[axis] !== null && point.pick !== null).map((point) => point[axis]);
  return values.length ? [Math.min(...values), Math.max(...values)] : null;
}

function showBudget(view, changed) {
  const box = document.getElementById("budget"), slider = box.querySelector("input"), { axis } = state;
  box.hidden = !view.range;
  if (!view.range) return;
  const [low, high] = view.range;
  slider.max = STEPS;
  slider.value = high > low ? Math.round((STEPS * (view.budget - low)) / (high - low)) : STEPS;
  slider.oninput = () => {
    state.budget = low + (slider.value / STEPS) * (high - low);
    changed();
  };
  box.querySelector("output").textContent = budgetText(view.budget, view, axis);
  const winner = view.winner;
  box.querySelector("[data-winner]").innerHTML = winner ? winnerText(winner) : "nothing here is that fast";
  const command = winner && !winner.dense ? DATA.commands[winner.run] : null;
  box.querySelector(".command").hidden = !command;
  box.querySelector("code").textContent = command ?? "";
}

function budgetText(budget, view, axis) {
  const dense = view.dense[0], latency = dense?.latency_ms;
  if (axis === "latency_ms") return `at most ${AXES[axis].text(budget)}`;
  const inTime = latency && axis === "speedup" ? `, ${millisecondsText(latency / budget)} where dense takes ${millisecondsText(latency)}` : "";
  return `at least ${AXES[axis].text(budget)}${inTime}`;
}

function winnerText(winner) {
  const seeds = winner.runs.length > 1 ? ` over ${winner.runs.length} runs` : "";
  const lost = winner.dense ? "" : `, ${lostText(winner.lost, winner.metric)}, at sparsity ${fractionText(winner.sparsity)}`;
  const own = (winner.speedup_dataset ?? null) === null ? "" : `, ${timesText(winner.speedup_dataset)} at own lengths`;
  const speed = `${timesText(winner.speedup)}, ${millisecondsText(winner.latency_ms)}${own}`;
  return `<b>${escaped(nameOf(winner))}</b>: ${qualityText(winner)}${seeds}${lost}; ${speed}`;
}

async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.body.appendChild(document.createElement("textarea")); // where a page may not reach the clipboard
    area.value = text;
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  const label = button.dataset.label ?? button.textContent;
  button.dataset.label = label;
  button.textContent = "copied";
  setTimeout(() => (button.textContent = label), 1200);
}
