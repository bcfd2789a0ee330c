"""What one run writes for its reader."""

from pathlib import Path

from sparsefront.report.html import write_html
from sparsefront.report.plots import write_pareto_png
from sparsefront.report.row import Row
from sparsefront.report.settings import Report
from sparsefront.report.table import run_title

PLOT_FILE, PAGE_FILE = "pareto.png", "report.html"


def write_report(row: Row, directory: Path, settings: Report) -> list[Path]:
    """Write the plot and the page that the settings ask for into the run's folder; returns what was written."""
    written = []
    if settings.plot:
        written.append(write_pareto_png([row], directory / PLOT_FILE))
    if settings.html:
        written.append(write_html([row], directory / PAGE_FILE, title=run_title(row)))
    return written
