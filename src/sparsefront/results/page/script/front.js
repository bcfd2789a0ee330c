// Which points no other point beats, and which of them a budget picks.
const AXES = {
  speedup: { larger: true, short: "speedup", text: (value) => `${fixed(value, 2)}×` },
  speedup_dataset: { larger: true, short: "speedup, own lengths", text: (value) => `${fixed(value, 2)}×` },
  latency_ms: { larger: false, short: "latency, ms", text: (value) => `${milliseconds(value)} ms` },
};

const costOf = (point, axis) => (AXES[axis].larger ? -point[axis] : point[axis]);

// By rising cost, and so by rising quality; of equal points the first stands for all.
function paretoFront(points, axis) {
  const candidates = points.filter((point) => point[axis] !== null && point.pick !== null);
  candidates.sort((a, b) => costOf(a, axis) - costOf(b, axis) || b.pick - a.pick);
  const front = [];
  for (const point of candidates) if (!front.length || point.pick > front.at(-1).pick) front.push(point);
  return front;
}

// Of a front, the best pick that is at least as fast as the budget; null where nothing is.
function winnerOf(front, axis, budget) {
  const slack = 1e-9 * Math.abs(budget);
  const fits = (point) => (AXES[axis].larger ? point[axis] >= budget - slack : point[axis] <= budget + slack);
  return front.filter(fits).at(-1) ?? null;
}

function groupBy(items, key) {
  const groups = new Map();
  for (const item of items) groups.set(key(item), [...(groups.get(key(item)) ?? []), item]);
  return groups;
}
