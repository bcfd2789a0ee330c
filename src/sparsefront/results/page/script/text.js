// How values are written; the same as in the tables of the terminal.
const DASH = "–";

// As Python rounds: of two equally near texts the even one, where toFixed has the larger.
function fixed(value, digits) {
  const scale = 10 ** digits, isBetween = Math.abs(value * 2 ** (digits + 1)) % 2 === 1;
  return (isBetween ? (2 * Math.round((value * scale) / 2)) / scale : value).toFixed(digits);
}

function milliseconds(value) {
  return value >= 100 ? fixed(value, 0) : value.toPrecision(3);
}

const or = (write) => (value) => (value === null || value === undefined ? DASH : write(value));
const valueText = (value, { unit }) => or((known) => fixed(known, 2) + unit)(value);
const pointsText = or((value) => fixed(value, 2));

function lostText(value, { sign }) {
  const better = value?.toFixed(2) < 0, size = pointsText(value && Math.abs(value));
  return sign > 0 ? `${size} points ${better ? "gained" : "lost"}` : `${size} % ${better ? "less" : "more"}`;
}

const timesText = or((value) => `${fixed(value, 2)}×`);
const millisecondsText = or((value) => `${milliseconds(value)} ms`);
const counted = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
const plainText = or(String);
const fractionText = or((value) => fixed(value, 3));

function qualityText(point) {
  if (point.error === null || point.error === undefined) return valueText(point.quality, point.metric);
  return `${fixed(point.quality, 2)} ± ${fixed(point.error, 2)}${point.metric.unit}`;
}

const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
const escaped = (text) => String(text ?? DASH).replace(/[&<>"']/g, (letter) => ESCAPES[letter]);

const nameOf = (point) => [point.label, point.recovery, point.settings].filter(Boolean).join(" ");
