// Of the points that the filters leave, what the held-out part picks at each sparsity; as `winners.py` picks among all runs.
const EQUAL = 1e-9; // percent: means of the same values in another order

// point -> `recipe`: the best of its pattern; `winner`: the best of all, where it has rivals; or why it is not compared.
function pickedAs(points) {
  const apart = new Map(points.map((point) => [point, whyApart(point)]));
  const picked = new Map(points.filter((point) => apart.get(point)).map((point) => [point, apart.get(point)]));
  const compared = points.filter((point) => point.val !== null && !apart.get(point));
  for (const rivals of groupBy(compared, targetOf).values()) {
    const recipes = [...groupBy(rivals, (point) => point.structure).values()].map(bestHeldOut);
    for (const point of recipes) picked.set(point, "recipe");
    if (recipes.length > 1) picked.set(bestHeldOut(recipes), "winner");
  }
  return picked;
}

const targetOf = (point) => valueOf("sparsity_target", point.run);
const bestHeldOut = (points) => points.reduce((best, point) => (point.metric.sign * (point.val - best.val) > EQUAL ? point : best));

// Another sparsity than was asked for, or a budget for which it is a ceiling.
function whyApart(point) {
  if (Number(Math.abs(point.sparsity - targetOf(point)).toFixed(6)) > DATA.most_missed) return `${fixed(point.sparsity, 2)} achieved`;
  return point.budget ? "has a budget" : "";
}
