// How values are written; the same as in the tables of the terminal.
const DASH = "–";

function milliseconds(value) {
  return value >= 100 ? value.toFixed(0) : value.toPrecision(3);
}

const or = (write) => (value) => (value === null || value === undefined ? DASH : write(value));
const percentText = or((value) => `${value.toFixed(2)} %`);
const pointsText = or((value) => value.toFixed(2));
const lostText = (value) => `${pointsText(value && Math.abs(value))} points ${value?.toFixed(2) < 0 ? "gained" : "lost"}`;
const timesText = or((value) => `${value.toFixed(2)}×`);
const millisecondsText = or((value) => `${milliseconds(value)} ms`);
const counted = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
const fractionText = or((value) => value.toFixed(3));

function qualityText(point) {
  if (point.error === null || point.error === undefined) return percentText(point.quality);
  return `${point.quality.toFixed(2)} ± ${point.error.toFixed(2)} %`;
}

const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
const escaped = (text) => String(text ?? DASH).replace(/[&<>"']/g, (letter) => ESCAPES[letter]);

const nameOf = (point) => [point.label, point.recovery, point.settings].filter(Boolean).join(" ");
