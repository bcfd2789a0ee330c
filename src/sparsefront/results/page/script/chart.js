// A scatter chart as SVG. Points that something beats are grey and drawn as one path, so that thousands stay fluid.
const SIZE = { width: 620, height: 400, left: 56, right: 14, top: 12, bottom: 42 };
const GREY = "#c4c4c4";

// chart: {x, y: point -> value, xLabel, yLabel, points, front: Set, lines: [{color, points, dash, steps}], interval: point -> ends,
// levels: [{value on y, dash}], budget: value on x or null, winner, selected, xOptions, yOptions}. Returns where each point was drawn, for the pointer.
function drawChart(svg, chart) {
  const { width, height, left, right, top, bottom } = SIZE;
  const shown = chart.points.filter((point) => chart.x(point) !== null && chart.y(point) !== null);
  const x = makeScale(shown.map(chart.x), [left, width - right], chart.xOptions);
  const y = makeScale([...shown.map(chart.y), ...chart.levels.map((level) => level.value)], [height - bottom, top], chart.yOptions);
  const placed = shown.map((point) => ({ point, x: x(chart.x(point)), y: y(chart.y(point)) }));
  const parts = [];
  if (chart.budget !== null) {
    parts.push(`<line class="budget" x1="${x(chart.budget)}" x2="${x(chart.budget)}" y1="${top}" y2="${height - bottom}"/>`);
  }
  for (const { value, dash } of chart.levels) {
    parts.push(`<line class="level" stroke-dasharray="${dash}" x1="${left}" x2="${width - right}" y1="${y(value)}" y2="${y(value)}"/>`);
  }
  const isBright = ({ point }) => chart.front.has(point) || point.dense || chart.hollow(point);
  const grey = placed.filter((spot) => !isBright(spot)), bright = placed.filter(isBright);
  parts.push(`<path class="bars" stroke="${GREY}" d="${grey.map((spot) => barsOf(spot, chart, x, y)).join("")}"/>`);
  parts.push(`<path class="dominated" d="${grey.map(({ point, ...at }) => outline(point, at, 3.5)).join("")}"/>`);
  for (const line of chart.lines) parts.push(lineOf(line, chart, x, y));
  for (const spot of bright) {
    const { point } = spot, color = colorOf(point), hollow = ["continued", "distilled", "low"].includes(point.dense) || chart.hollow(point);
    parts.push(`<path class="bars" stroke="${color}" d="${barsOf(spot, chart, x, y)}"/>`);
    parts.push(`<path class="mark${point.dense ? " dense" : ""}${hollow ? " hollow" : ""}" d="${outline(point, spot, 5)}" stroke="${color}" fill="${hollow ? "#fff" : color}"/>`);
  }
  for (const [name, point] of [["winner", chart.winner], ["selected", chart.selected]]) {
    const spot = placed.find((candidate) => candidate.point === point);
    if (spot) parts.push(`<circle class="${name}" cx="${spot.x}" cy="${spot.y}" r="${name === "winner" ? 11 : 8}"/>`);
  }
  const legend = chart.legend ? legendOf(shown) : { text: "", height: 0 };
  svg.setAttribute("viewBox", `0 0 ${width} ${height + legend.height}`);
  const inside = { x: left, y: top, width: width - left - right, height: height - top - bottom }; // bars end at the axes
  const box = Object.entries(inside).map(([name, value]) => `${name}="${value}"`).join(" ");
  const view = Object.values(inside).join(" ");
  svg.innerHTML = `${axisLines(x, y, chart)}<svg ${box} viewBox="${view}">${parts.join("")}</svg>${legend.text}`;
  return placed;
}

// Colors of the patterns and shapes of the recoveries that are drawn, below the axis.
function legendOf(points) {
  const { patterns, recoveries, dense } = DATA.styles, pruned = points.filter((point) => !point.dense), line = 18;
  const names = (of) => [...new Set(pruned.map(of))].sort();
  const kinds = names((point) => point.recovery);
  const keys = [...names((point) => point.pattern).map((name) => [name, "circle", patterns[name], "", "pattern"]),
    ...(kinds.length > 1 ? kinds : []).map((name) => [name, recoveries[name], "#777", "", "recovery"]),
    ...(points.some((point) => point.dense) ? [["dense", "star", dense, "dense"]] : [])];
  let right = SIZE.left, row = 0;
  const texts = keys.map(([name, symbol, color, kind, field]) => {
    const width = 26 + (matchMedia("(max-width: 600px)").matches ? 10 : 7) * name.length; // of larger letters on a phone
    if (right > SIZE.left && right + width > SIZE.width) [right, row] = [SIZE.left, row + 1];
    const at = right, y = SIZE.height + 10 + line * row;
    right += width;
    const filters = field ? ` class="filters" data-field="${field}" data-value="${escaped(name)}"` : "";
    return `<g${filters}><path class="key ${kind}" d="${SYMBOLS[symbol](at + 5, y - 4, 4)}" fill="${color}"/><text x="${at + 14}" y="${y}">${escaped(name)}</text></g>`;
  });
  return { text: `<g class="legend">${texts.join("")}</g>`, height: keys.length ? line * (row + 1) : 0 };
}

function axisLines(x, y, chart) {
  const { width, height, left, right, top, bottom } = SIZE;
  const inside = (value, low, high) => value >= low - 0.5 && value <= high + 0.5;
  const across = x.ticks.filter((tick) => inside(x(tick), left, width - right)).map((tick) =>
    `<line class="grid" x1="${x(tick)}" x2="${x(tick)}" y1="${top}" y2="${height - bottom}"/>` +
    `<text x="${x(tick)}" y="${height - bottom + 16}" text-anchor="middle">${tick}</text>`);
  const up = y.ticks.filter((tick) => inside(y(tick), top, height - bottom)).map((tick) =>
    `<line class="grid" x1="${left}" x2="${width - right}" y1="${y(tick)}" y2="${y(tick)}"/>` +
    `<text x="${left - 6}" y="${y(tick) + 4}" text-anchor="end">${tick}</text>`);
  const middle = (top + height - bottom) / 2;
  return [...across, ...up,
    `<text x="${(left + width - right) / 2}" y="${height - 6}" text-anchor="middle">${escaped(chart.xLabel)}</text>`,
    `<text transform="translate(13 ${middle}) rotate(-90)" text-anchor="middle">${escaped(chart.yLabel)}</text>`].join("");
}

// How sure both coordinates are, as strokes.
function barsOf(spot, chart, x, y) {
  const { point } = spot, ends = chart.interval(point), error = chart.error(point);
  const across = ends ? `M${x(ends[0])},${spot.y}H${x(ends[1])}` : "";
  return across + (error ? `M${spot.x},${y(chart.y(point) - error)}V${y(chart.y(point) + error)}` : "");
}

function lineOf(line, chart, x, y) {
  const spots = line.points.map((point) => [x(chart.x(point)), y(chart.y(point))]);
  const path = spots.map(([right, down], place) => (!place ? `M${right},${down}` : line.steps ? `H${right}V${down}` : `L${right},${down}`));
  return spots.length < 2 ? "" : `<path class="${line.steps ? "front" : "series"}" stroke="${line.color}" d="${path.join("")}"/>`;
}

const colorOf = (point) => (point.dense ? DATA.styles.dense : DATA.styles.patterns[point.pattern]);
const outline = (point, at, radius) => SYMBOLS[point.dense ? "star" : DATA.styles.recoveries[point.recovery]](at.x, at.y, radius);
