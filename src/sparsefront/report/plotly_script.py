"""One copy of plotly's script (about 5 MB) for the pages of all runs."""

from pathlib import Path

from sparsefront.artifacts.durable import whole_file


def shared_script(folder: Path) -> Path:
    """The script in a folder, written there unless it is; pages below link to it, and open without a network.

    Its name holds its version, so that a page keeps the script that it was made for.
    """
    from plotly.offline import get_plotlyjs, get_plotlyjs_version

    script, content = folder / f"plotly-{get_plotlyjs_version()}.min.js", get_plotlyjs().encode()
    if not script.exists() or script.stat().st_size != len(content):
        folder.mkdir(parents=True, exist_ok=True)
        with whole_file(script) as new:
            new.write_bytes(content)
    return script


def script_folder(directory: Path, results: Path) -> Path:
    """Where the script of a run's page belongs: among the results that the run's folder lies in, else in that folder."""
    return results if directory.resolve().is_relative_to(results.resolve()) else directory
