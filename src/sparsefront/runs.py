"""Run the program from Python (`sf.run`), and load finished, possibly untrusted runs (`sf.load_run`)."""

import html
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from torch import nn

from sparsefront.artifacts.bounded_files import load_yaml_bounded, read_text_bounded
from sparsefront.config.arguments import GROUPS, OPTIONAL, ROOT_KEYS, normalize_arguments, option_folders
from sparsefront.config.command_line import BadInput, job
from sparsefront.config.settings import build_settings, options_of
from sparsefront.config.sweeps import NOT_COMPOSED, composition_complaint
from sparsefront.data.base import Dataset
from sparsefront.errors import Edited, InvalidSetting, first_line, keys_of, printable
from sparsefront.export.save import folder_path, load, require_packages
from sparsefront.models.base import Model
from sparsefront.options import CONF, shorten
from sparsefront.patterns.base import Pattern, modules_of
from sparsefront.pruning.mask_spec import MaskSpec
from sparsefront.pruning.masks import Masks, masks_left
from sparsefront.pruning.structure import structure_of
from sparsefront.results.field_types import differences, part_at
from sparsefront.results.record import Result
from sparsefront.results.run_folder import (
    CONFIG_FILE,
    HYDRA_FILE,
    RESULT_FILE,
    find_checkpoint,
    make_writable,
    needs_resolver,
    read_overrides,
)
from sparsefront.results.tables import run_lines

# Compose the configuration that a stored run recorded, as untrusted data.
#
# Only `.hydra/overrides.yaml` of a run's folder is read. Its overrides may choose an option of our own conf/ or set a key of one,
# and nothing else: `hydra.*` with its search path, and the run's own paths, are dropped; no path is followed; values are plain,
# without resolvers. The composed classes belong to sparsefront, unless the caller trusts a package
# (`settings.validate_settings`).

# keys of the run itself, not of what it measured
LEFT_OUT = ("cache_dir", "results_dir", "logger", "stages", "reuse", "optimize", "report", "hydra")
# keys of options that read files; a result has only the last part of these paths, since it names no machine
PATHS = ("model.path", "dataset.path", "dataset.train_file", "dataset.dev_file", "allocation.table", "recovery.teacher")


def composable_overrides(folder: Path, given: Sequence[str], *, need_paths: bool = True) -> list[str]:
    """The overrides that compose a stored run's experiment: its recorded ones, checked, then those given here.

    Args:
        folder: of the run.
        given: the user's own; they replace recorded ones of the same key, and may set a search path.
        need_paths: whether recorded paths must be given here; otherwise they are dropped.
    Raises:
        InvalidSetting: a recorded override that sets more than options and their keys, or a path that is not given here.
    """
    replaced = {_key(text) for text in given}
    folders = option_folders(given)
    taken, paths = [], []
    for text in read_overrides(folder) or []:
        key = _key(text)
        if _first_part(key) in LEFT_OUT or key in replaced or ("trainer" in replaced and _first_part(key) == "trainer"):
            continue
        _require_plain(text, folders)
        if key not in PATHS:
            taken.append(text)
        elif text.partition("=")[2] not in ("null", "") and need_paths:
            paths.append(text)
    if paths:
        add = " ".join(f"{_key(text)}=..." for text in paths)
        how = f"is a path of the run's own machine, and no path of a record is followed: add {add} to the command"
        raise InvalidSetting(_key(paths[0]), shorten(paths[0].partition("=")[2]), how)
    return [*taken, *given]


def _require_plain(text: str, folders: Iterable[Path]) -> None:
    """Raise InvalidSetting unless an override chooses an existing option, or sets a key of one to a plain value."""
    try:
        override = OverridesParser.create().parse_override(text)
    except HydraException:
        raise _invalid_override(text, "is no override") from None
    key = override.key_or_group
    if override.package is not None or not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", key, flags=re.ASCII):
        raise _invalid_override(text, "sets more than a key")
    if _first_part(key) not in (*ROOT_KEYS, *OPTIONAL):
        raise _invalid_override(text, f"is no setting of a run; the root takes {', '.join(ROOT_KEYS)}")
    if override.is_sweep_override():
        raise _invalid_override(text, "is a sweep, and a result is of one point")
    if needs_resolver(text) or any(map(needs_resolver, _texts_in(override.value()))):
        raise _invalid_override(text, "asks for a resolver")
    if key in GROUPS and not override.is_delete():
        _require_options(text, key, override, folders)


def _texts_in(value: Any) -> Iterator[str]:
    """All texts of a parsed value, in which escapes and quotes are resolved."""
    if isinstance(value, dict | list):
        for part in (*value.keys(), *value.values()) if isinstance(value, dict) else value:
            yield from _texts_in(part)
    else:
        yield str(value)


def _require_options(text: str, group: str, override: Override, folders: Iterable[Path]) -> None:
    """Raise InvalidSetting for unknown options: for a name such as `../../elsewhere` Hydra would read the file."""
    value = override.value()
    names = value if isinstance(value, list) else [value]
    known = options_of(group, folders)
    for name in names:
        if str(name) not in known:
            own = f"{group} has no such option here; there are {', '.join(known)}"
            remedy = "one of the author's own is found with hydra.searchpath=[file://DIR], and its class with trust=[PACKAGE]"
            raise _invalid_override(text, f"{own}; {remedy}")


def _invalid_override(text: str, why: str) -> InvalidSetting:
    key, _, value = text.partition("=")
    return InvalidSetting(shorten(key), shorten(value), f"(recorded in .hydra/overrides.yaml) {why}")


def _key(text: str) -> str:
    return text.partition("=")[0].lstrip("+~")


def _first_part(key: str) -> str:
    """The first part of a key or group: `hydra` of hydra/launcher and of hydra.run.dir."""
    return re.split(r"[./@]", key, maxsplit=1)[0]


def other_configuration(
    folder: Path, configuration: Mapping[str, Any], choices: Mapping[str, str], given: Iterable[str]
) -> str | None:
    """Compare the copies of the configuration that Hydra wrote with what the recorded overrides compose here.

    Args:
        folder: of the run.
        configuration: composed here, as plain containers with interpolations unresolved.
        choices: group -> name of its option, composed here.
        given: overrides that the run did not have; differences in their keys do not count.
    Returns:
        the first difference of config.yaml, which another version may have; None if there is none.
    Raises:
        Edited: hydra.yaml names other overrides or options, or a file cannot be read.
    """
    free = {_key(text) for text in given} | {*LEFT_OUT, *PATHS, "trainer"}
    hydra, config = (_yaml_in(folder, file) for file in (HYDRA_FILE, CONFIG_FILE))
    if part_at(hydra, ("hydra", "overrides", "task")) not in (None, read_overrides(folder)):
        raise Edited(str(HYDRA_FILE), "was edited: its overrides.task is not what overrides.yaml holds")
    pair = f"{choices['model']}_{choices['dataset']}"  # what Hydra writes as the recipe even where there is none
    for group, ran in choices.items():
        chosen = part_at(hydra, ("hydra", "runtime", "choices", group))
        missing = (group, ran, chosen) == ("recipe", "default", pair)
        if group not in free and chosen not in (None, ran, "default") and not missing:
            raise Edited(str(HYDRA_FILE), f"was edited: it chose {group}={shorten(chosen)}, where {ran} was run")
    for path, stated, here in differences((), config, configuration):
        key = ".".join(map(str, path))
        if stated is not None and not any(f"{key}.".startswith(f"{name}.") for name in free):
            counterpart = f"{here} is composed" if here is not None else "there is no such setting"
            return f"{shorten(key)} is {shorten(stated)} in it, where {counterpart}"
    return None


def _yaml_in(folder: Path, name: Path) -> dict[str, Any]:
    """A YAML file of a run's folder; empty if it is not there."""
    file = folder / name
    try:
        content = load_yaml_bounded(file) if file.exists() else {}
    except ValueError as error:
        raise Edited(str(name), f"cannot be read: {error}") from error
    return content if isinstance(content, dict) else {}


def run_overrides(overrides: Sequence[str], config_dir: Path) -> Path:
    """Run one configuration as `python run.py OVERRIDES` does, without its log file.

    Args:
        config_dir: the folder of the configuration, conf/ of the repository.
    Returns:
        the run's folder.
    Raises:
        InvalidSetting: a configuration that cannot be composed, or that cannot work.
    """
    from sparsefront.config.command_line import report_errors_briefly
    from sparsefront.pipeline import run_experiment

    with compose_config(overrides, config_dir) as (config, directory):
        make_writable(config.results_dir, directory)
        (directory / ".hydra").mkdir(exist_ok=True)
        OmegaConf.save(config, directory / ".hydra" / "config.yaml")
        OmegaConf.save(HydraConfig.get().overrides.task, directory / ".hydra" / "overrides.yaml")
        sources = {"hydra": {"runtime": {"config_sources": HydraConfig.get().runtime.config_sources}}}
        OmegaConf.save(OmegaConf.create(sources), directory / ".hydra" / "hydra.yaml")
        try:
            with job(), report_errors_briefly(config, directory):
                run_experiment(config)
        except BadInput as error:
            raise error.__cause__ or error from None
    return directory


@contextmanager
def compose_config(overrides: Sequence[str], config_dir: Path) -> Iterator[tuple[DictConfig, Path]]:
    """Compose the configuration of one run, and set HydraConfig to it inside the context.

    Yields it with the folder that the run would write to, which is not created.

    Raises:
        InvalidSetting: a configuration that cannot be composed.
    """
    import sparsefront.config.schema  # noqa: F401  (registers the schema and the resolvers)

    hydra, before = HydraConfig.instance(), HydraConfig.instance().cfg
    config, directory = _compose(overrides, config_dir)
    try:
        with open_dict(config):
            config.hydra.runtime.output_dir = str(directory)
            hydra.set_config(config)
            del config["hydra"]
        yield config, directory
    finally:
        hydra.cfg = before


def _compose(overrides: Sequence[str], config_dir: Path) -> tuple[DictConfig, Path]:
    """The configuration, including Hydra's own part, and the folder of the run."""
    plain = normalize_arguments(overrides)
    try:
        with initialize_config_dir(str(config_dir), version_base="1.3", job_name="run"):
            config = compose("config", overrides=plain, return_hydra_config=True)
        return config, Path(config.hydra.run.dir).absolute()
    except (*NOT_COMPOSED, ValueError) as error:  # ValueError: hydra/output=null, and an empty interpolation
        raise InvalidSetting("overrides", " ".join(overrides), composition_complaint(error)) from error


@dataclass(frozen=True)
class FinishedRun:
    """A finished run.

    Args:
        folder: of its results.
        record: its result; None if `stages` ended before the report.
        overrides: for a run of this process all of them; for a loaded one those that replace or extend the recorded ones.
        trust: third-party packages whose classes the run may name; None: made by this process, any package.
    """

    folder: Path
    record: Result | None
    overrides: tuple[str, ...] = ()
    trust: tuple[str, ...] | None = ()

    def __str__(self) -> str:
        """What it measured, one value per line as at the end of the run, and the folder."""
        rows = self._rows()
        width = max(len(name) for name, _ in rows)
        lines = [f"{name:<{width}}  {value}" for name, value in rows]
        return printable("\n".join([*lines, str(self.folder)]), lines=True)

    def _repr_html_(self) -> str:
        """`str` as HTML, for a notebook."""
        rows = (tuple(html.escape(printable(cell)) for cell in row) for row in self._rows())
        cells = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in rows)
        return f"<table>{cells}</table><code>{html.escape(printable(self.folder))}</code>"

    def _rows(self) -> list[tuple[str, str]]:
        """Name and value of the measurements."""
        if self.record is None:
            return [("result", "none: stages ended before the report")]
        return [(name, value) for section in run_lines(self.record, brief=True) for name, value, _ in section]

    @cached_property
    def network(self) -> nn.Module:
        """The pruned network with its final weights, fp32, on the CPU, in eval mode.

        Raises:
            InvalidSetting: the run pruned nothing, or its checkpoint was removed since.
        """
        return self._loaded[0]

    @cached_property
    def masks(self) -> Masks:
        """The masks of `network`. Raises as `network`."""
        return self._loaded[1]

    @cached_property
    def _loaded(self) -> tuple[nn.Module, Masks]:

        checkpoint = find_checkpoint(self.folder)
        if checkpoint is None:
            allowed = "holds no checkpoint: the run pruned nothing, or its checkpoint was removed since"
            raise InvalidSetting("run_folder", self.folder, allowed)
        with compose_config(self._loading_overrides(), CONF) as (config, _):
            model = build_settings("model", config.model, base=Model, trust=self.trust)
            dataset = build_settings("dataset", config.dataset, base=Dataset, trust=self.trust)
            pattern = build_settings("pattern", config.pattern, base=Pattern, trust=self.trust)
        with torch.random.fork_rng(devices=[]), keys_of("dataset"):  # the random initialization is overwritten
            net = model.architecture(dataset.info, checkpoint)
        trust = modules_of(pattern) if self.trust is None else self.trust
        masks = load(checkpoint, net, trust=sorted(trust))
        if masks.spec.blocks is not None:  # by the names that the layers have now
            layers, spec = masks_left(net, masks), MaskSpec(structure=structure_of(net))
            names = {masks.spec.name_left(name): why for name, why in masks.ignored.items()}
            masks = Masks(layers, spec=spec, ignored={name: names[name] for name in names if name}, dense=masks.dense)
        return net.eval(), masks

    def _loading_overrides(self) -> list[str]:
        """Overrides that compose the run, without recorded paths: loading needs no initial weights, and rarely data."""
        if self.trust is None:
            return list(self.overrides)
        return composable_overrides(self.folder, self.overrides, need_paths=False)


def run(*overrides: str, config_dir: Path | str = CONF) -> FinishedRun:
    """Compose a configuration and run it in this process, as `python run.py OVERRIDES` does.

    Args:
        overrides: of Hydra, such as "pattern=n_m", "sparsity=0.5"; one run, no sweep.
        config_dir: the folder of the configuration, conf/ of the repository.
    Returns:
        the run with its record, and on demand its network and masks.
    Raises:
        InvalidSetting: a configuration that cannot be composed or cannot work; names the key, its value and what is allowed.
    """

    directory = folder_path("config_dir", config_dir).absolute()
    if not (directory / "config.yaml").is_file():
        raise InvalidSetting("config_dir", config_dir, "must be the folder conf/ of sparsefront's repository")
    _require_texts(overrides)
    folder = run_overrides(overrides, directory)
    return FinishedRun(folder, _record_in(folder), overrides, trust=None)


def _require_texts(overrides: Sequence[object]) -> None:
    odd = [override for override in overrides if not isinstance(override, str)]
    if odd:
        raise InvalidSetting("overrides", odd[0], 'are texts such as "pattern=n_m"')


def load_run(run_folder: Path | str, *overrides: str, trust: Sequence[str] = ()) -> FinishedRun:
    """Load a finished run: its `record`, and on demand its `network` and `masks`. No code from its folder is executed, and no
    recorded path is followed.

    Args:
        run_folder: the run's folder below `results_dir`.
        overrides: replace recorded ones, such as "dataset.path=DIR" for a data set whose folder determines the number of
            classes.
        trust: third-party packages whose classes the run may name, such as ["mylab.patterns"]: importing them runs their code.
    Raises:
        InvalidSetting: no finished run in this folder, or one that cannot be read.
    """
    folder = folder_path("run_folder", run_folder)
    _require_texts(overrides)
    require_packages(trust)
    if not os.path.exists(folder / RESULT_FILE) and not os.path.isdir(folder / ".hydra"):
        raise InvalidSetting("run_folder", run_folder, f"holds no run: {RESULT_FILE} is missing")
    return FinishedRun(folder, _record_in(folder), overrides, tuple(trust))


def _record_in(folder: Path) -> Result | None:
    file = folder / RESULT_FILE
    if not file.exists():
        return None
    try:
        return Result.from_json(read_text_bounded(file))
    except (ValueError, RecursionError) as error:
        raise InvalidSetting("run_folder", folder, f"{RESULT_FILE} cannot be read: {first_line(error)}") from error
