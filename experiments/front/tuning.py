"""The grid of the plan's tuning as a page, each family's recipe by the plan's rule, and what is still to run.

python -m experiments.front.tuning --next points.yaml    # points that the plan asks for and no record has, for sweep.points
python -m experiments.front.tuning --write               # the recipes into lines.yaml, once nothing is left to run
"""

import argparse
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from experiments.front.iso_quality import (
    BLOCKS_75,
    CONTROL,
    TILES_75,
    TUNING_SEED,
    TWO_OF_FOUR,
    WIDTH_50,
    Line,
    points_file,
)
from experiments.front.summary import FRONT
from experiments.harness import page
from sparsefront.points import read_points
from sparsefront.results.record import Result
from sparsefront.results.store import read_results

RECORDS, LINES = FRONT.parent / "records" / "front_imdb_tuning", FRONT / "lines.yaml"
STEPS = 3125
LEARNING_RATES, STEP = (5e-5, 1e-4, 2e-4), 2  # a best rate at the edge is followed one step
LEAST_GAIN = 0.0034  # the standard error of the held-out rows
ROUNDING = 1e-6  # of accuracies in float32: 17 of 5,000 rows are no more than LEAST_GAIN
FACTORS = ("schedule=gradual schedule.end=0.5", "importance=taylor", "importance=fisher", "allocation=global_threshold")
DEFAULTS = {"schedule": "one_shot", "importance": "magnitude", "allocation": "per_layer"}
FAMILIES = {
    "depth": (Line("depth", 0.5), ("structured=depth", "structured.sparsity=0.5", "pattern=dense")),
    "channel": (WIDTH_50, ("pattern=channel", "pattern.axis=width", "sparsity=0.5")),
    "n_m": (TWO_OF_FOUR, ("pattern=n_m", "pattern.m=4", "sparsity=0.5")),
    "block_wise": (BLOCKS_75, ("pattern=block_wise", "granularity=64x128", "sparsity=0.75")),
    "tile_wise": (TILES_75, ("pattern=tile_wise", "granularity=128", "sparsity=0.75")),
}
"""Family -> its line of the grid, and the overrides of that line."""
# Layers that go are evenly spread, at once and without scores; each layer of n:m keeps n of every m.
WITHOUT_EFFECT = {("n_m", "allocation=global_threshold"), *(("depth", factor) for factor in FACTORS)}
OF_RECIPE = (
    "recipe.recovery_lr",
    "recovery.hidden_states",
    "recovery.store_teacher",
    "control",
    "schedule.end",
    *DEFAULTS,
)


@dataclass(frozen=True)
class Recipe:
    """What the plan tunes.

    Args:
        factors: of `FACTORS`, in which it differs from the grid.
    """

    lr: float
    hidden_states: float
    factors: frozenset[str] = field(default_factory=frozenset)

    @classmethod
    def of(cls, result: Result) -> "Recipe":
        choice = result.choice
        chosen = {f"{key}={getattr(choice, key)}" for key, usual in DEFAULTS.items() if getattr(choice, key) != usual}
        if "end" in choice.schedule_parameters:
            chosen = chosen - {"schedule=gradual"} | {
                f"schedule=gradual schedule.end={choice.schedule_parameters['end']:g}"
            }
        lr, hidden = choice.recipe_parameters["recovery_lr"], choice.recovery_parameters["hidden_states"]
        return cls(lr, hidden, frozenset(chosen))

    def overrides(self) -> list[str]:
        """Logits are stored where the teacher's hidden states are not needed."""
        states = ["recovery.hidden_states=1", "recovery.store_teacher=false"]
        teacher = states if self.hidden_states else ["recovery.store_teacher=true"]
        return [f"recipe.recovery_lr={self.lr:g}", *teacher, *" ".join(sorted(self.factors)).split()]


GRID = [Recipe(lr, states) for states, lr in itertools.product((0, 1), LEARNING_RATES)]
Accuracies = Mapping[Recipe, float]


def accuracies_of(results: Sequence[Result]) -> tuple[dict[str, dict[Recipe, float]], dict[Recipe, float], int]:
    """Family -> recipe -> held-out accuracy of its line; recipe -> that of the control; and the number of dense networks: each
    machine trains its own.

    Raises:
        ValueError: two results of one line and recipe differ.
    """
    families: dict[str, dict[Recipe, float]] = {name: {} for name in FAMILIES}
    control: dict[Recipe, float] = {}
    networks = set()
    for result in results:
        place = Line.of(result)
        if result.identity.seed != TUNING_SEED or result.cost.recovery_steps != STEPS:
            continue
        if place.family not in FAMILIES or FAMILIES[place.family][0] != place:
            continue
        networks.add(result.identity.dense_weights_sha256)
        recipe, quality = Recipe.of(result), result.quality
        if families[place.family].setdefault(recipe, quality.val_masked) != quality.val_masked:
            raise ValueError(f"two results of {place} and {' '.join(recipe.overrides())} differ")
        if result.value_of(f"val_{CONTROL}") is not None:
            control[replace(recipe, factors=frozenset())] = result.value_of(f"val_{CONTROL}")
    return families, control, len(networks)


def next_recipes(family: str, accuracies: Accuracies) -> list[Recipe]:
    """What the plan asks for and was not run: the grid, then a step beyond its edge, then one factor at a time."""
    missing = [recipe for recipe in GRID if recipe not in accuracies]
    if missing:
        return missing
    best = _best_of_grid(accuracies)
    beyond = {min(LEARNING_RATES): best.lr / STEP, max(LEARNING_RATES): best.lr * STEP}.get(best.lr)
    further = None if beyond is None else replace(best, lr=beyond)
    if further is not None and further not in accuracies:
        return [further]
    factors = [factor for factor in FACTORS if (family, factor) not in WITHOUT_EFFECT]
    varied = [replace(best, factors=frozenset({factor})) for factor in factors]
    return [recipe for recipe in varied if recipe not in accuracies]


def choose_recipe(accuracies: Accuracies) -> Recipe:
    """The best rate and loss, with each factor that gains more than `LEAST_GAIN`; of two scores the better."""
    best = _best_of_grid(accuracies)
    gains = {
        factor: accuracies[one] - accuracies[best]
        for one in accuracies
        if len(one.factors) == 1 and replace(one, factors=best.factors) == best
        for factor in one.factors.intersection(FACTORS)
    }
    better = {factor for factor, gain in gains.items() if gain > LEAST_GAIN + ROUNDING}
    scores = sorted((factor for factor in better if factor.startswith("importance=")), key=lambda name: gains[name])
    return replace(best, factors=frozenset(better - set(scores[:-1])))


def _best_of_grid(accuracies: Accuracies) -> Recipe:
    """Of equals the one that trains fastest, with the lower rate."""
    plain = [recipe for recipe in accuracies if not recipe.factors]
    return min(plain, key=lambda recipe: (-accuracies[recipe], recipe.hidden_states, recipe.lr))


def grid_page(families: Mapping[str, Accuracies], control: Accuracies) -> Iterator[str]:
    """Lines of Markdown: held-out accuracy in percent by recipe, a column for each family and the control."""
    recipes = sorted(
        {recipe for one in families.values() for recipe in one},
        key=lambda recipe: (sorted(recipe.factors), recipe.hidden_states, recipe.lr),
    )
    columns = {str(FAMILIES[name][0]): one for name, one in families.items()} | {"control": control}
    rows = [
        (
            " ".join(recipe.overrides()),
            *(f"{100 * one[recipe]:.2f}" if recipe in one else "" for one in columns.values()),
        )
        for recipe in recipes
    ]
    yield from page.table(("held-out accuracy, %", *columns), rows)


def with_recipes(points: Sequence[Sequence[str]], recipes: Mapping[str, Recipe]) -> list[list[str]]:
    """The lines with their families' recipes; a composition has that of its pattern. The block's control is that of the depth
    lines: a line that is trained otherwise has none.
    """
    tuned = []
    for own in points:
        plain = [text for text in own if text.partition("=")[0] not in OF_RECIPE]
        pattern = next(text.partition("=")[2] for text in plain if text.startswith("pattern="))
        recipe = recipes["depth" if pattern == "dense" else pattern]
        control = [] if recipe == recipes["depth"] else ["control=null"]
        tuned.append([*plain, *recipe.overrides(), *control])
    return tuned


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=Path, nargs="+", default=[RECORDS], help="of the runs, or their folders")
    parser.add_argument("--next", type=Path, help="file for the points that are still to run")
    parser.add_argument("--lines", type=Path, default=LINES, help="file of the lines")
    parser.add_argument("--write", action="store_true", help="the recipes into the file of the lines")
    arguments = parser.parse_args()
    reading = read_results(arguments.records)
    try:
        families, control, networks = accuracies_of(reading.results)
    except ValueError as error:
        parser.error(str(error))
    print("\n".join([*reading.problems, *grid_page(families, control), ""]))
    if networks > 1:
        print(f"recipes started from {networks} dense networks, whose differences add to theirs\n")
    todo = [
        [*FAMILIES[family][1], *recipe.overrides()]
        for family, accuracies in families.items()
        for recipe in next_recipes(family, accuracies)
    ]
    if arguments.next is not None and todo:
        arguments.next.write_text(points_file(todo, "# What the plan's tuning asks for next."), encoding="utf-8")
    for point in todo:
        print("to run:", " ".join(point))
    recipes = {family: choose_recipe(accuracies) for family, accuracies in families.items() if accuracies}
    for family, recipe in recipes.items():
        print(f"{family}: {' '.join(recipe.overrides())}")
    if arguments.write:
        if todo:
            parser.error(f"{len(todo)} points are still to run")
        header = arguments.lines.read_text(encoding="utf-8").partition("\n")[0]
        points = with_recipes(read_points(arguments.lines), recipes)
        arguments.lines.write_text(points_file(points, header), encoding="utf-8")


if __name__ == "__main__":
    main()
