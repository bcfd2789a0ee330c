"""What compute-sanitizer says, in few lines: each finding once, by kernel."""

import re
from collections import Counter, defaultdict

PREFIX = re.compile(r"^=+ ?", re.MULTILINE)
SUMMARY = re.compile(r"(ERROR|RACECHECK) SUMMARY: ")
HOST = ("Saved host backtrace", "Host Frame")
OF_ONE_RUN = re.compile(r"\[\d+ hazards\]|\(\d+, ?\d+, ?\d+\)|\+?0x[0-9a-f]+")  # counts, threads, addresses


def report(output: str) -> str:
    """Findings of a tool by kernel, each with how often it came, and the tool's summary.

    Args:
        output: of the tool and of the program that it watched.
    """
    by_kernel = defaultdict(Counter)
    first = {}
    for finding in findings(output):
        alike = OF_ONE_RUN.sub("", "\n".join(map(_without_template_arguments, finding)))
        by_kernel[_kernel(finding)][alike] += 1
        first.setdefault(alike, finding)
    lines = []
    for kernel, counts in sorted(by_kernel.items()):
        lines.append(f"{kernel}: {counts.total()} findings")
        for alike, count in counts.items():
            head, *rest = map(_without_template_arguments, first[alike])
            lines += [f"  {count} x {head}", *(f"      {line}" for line in rest)]
    return "\n".join(lines + [line for line in PREFIX.sub("", output).splitlines() if SUMMARY.match(line)])


def findings(output: str) -> list[list[str]]:
    """The lines of each finding: the tool begins its own lines with "=========", and ends a finding with an empty one."""
    findings, lines = [], []
    for line in [*output.splitlines(), "========="]:
        text = PREFIX.sub("", line).strip()
        if not line.startswith("====") or text in ("", "COMPUTE-SANITIZER") or SUMMARY.match(text):
            findings += [lines] * bool(lines)
            lines = []
        elif not text.startswith(HOST):
            lines.append(text)
    return findings


def written_by(finding: list[str]) -> set[str]:
    """Names of the functions whose writes a finding of racecheck is about."""
    accesses = re.findall(r"Write access at (.+)\+0x", "\n".join(finding).replace("(anonymous namespace)::", ""))
    return {re.split(r"[:\s]", _without_template_arguments(access).split("(")[0])[-1] for access in accesses}


def _kernel(finding: list[str]) -> str:
    """The kernel that a finding names, in a backtrace where the access itself is in an inlined function."""
    names = re.findall(r"\w+_kernel\b", " ".join(finding))
    return names[-1] if names else "no kernel named"


def _without_template_arguments(line: str) -> str:
    """Names of kernels fill lines with them; offsets in the machine code tell instances apart."""
    while (shorter := re.sub(r"<[^<>]*>", "", line)) != line:
        line = shorter
    return line
