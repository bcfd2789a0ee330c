// From values to pixels, and the ticks between them.
function makeScale(values, pixels, { log = false, least = 0 } = {}) {
  let low = Math.min(...values), high = Math.max(...values);
  if (!isFinite(low)) [low, high] = [0, 1];
  if (high - low < least) [low, high] = [(low + high - least) / 2, (low + high + least) / 2];
  const place = log ? Math.log : (value) => value;
  const margin = 0.06 * (place(high) - place(low) || 1);
  const ends = [place(low) - margin, place(high) + margin];
  const scale = (value) => pixels[0] + ((place(value) - ends[0]) / (ends[1] - ends[0])) * (pixels[1] - pixels[0]);
  scale.ticks = log ? logTicks(low, high) : linearTicks(ends[0], ends[1]);
  return scale;
}

function linearTicks(low, high, wanted = 6) {
  const rough = (high - low) / wanted, decade = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * decade).find((size) => size >= rough);
  const count = Math.floor(high / step) - Math.ceil(low / step) + 1;
  return Array.from({ length: count }, (_, place) => Number(((Math.ceil(low / step) + place) * step).toPrecision(12)));
}

function logTicks(low, high) {
  const ticks = [];
  for (let decade = Math.floor(Math.log10(low)); decade <= Math.log10(high); decade += 1) {
    ticks.push(...[1, 2, 5].map((factor) => Number((factor * 10 ** decade).toPrecision(12))));
  }
  return ticks.filter((tick) => tick >= low / 1.1 && tick <= 1.1 * high);
}
