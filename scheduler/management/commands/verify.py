import json
from argparse import ArgumentParser
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from scheduler.testing.verify import Report, verify


class Command(BaseCommand):
    help = "Check the ledger: nothing lost, nothing doubled, nothing stuck. Exit code 1 if something is."
    requires_system_checks: list[str] = []  # it must work on what a broken installation left

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--since", type=_instant, help="only what is due after this RFC 3339 time")
        parser.add_argument("--until", type=_instant, help="only what is due up to this time (default: now)")
        parser.add_argument("--effects", type=Path, help="an effect ledger to hold against the runs")
        parser.add_argument("--json", action="store_true", help="the report as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        report = verify(
            settings.ADMIN_DATABASE_URL,
            since=options["since"],
            until=options["until"],
            effects_file=options["effects"],
        )
        self.stdout.write(_json(report) if options["json"] else _text(report))
        if not report.ok:
            raise SystemExit(1)


def _instant(text: str) -> datetime:
    instant = datetime.fromisoformat(text)
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)


def _json(report: Report) -> str:
    return json.dumps({"ok": report.ok, **asdict(report)}, indent=2, default=str)


def _text(report: Report) -> str:
    totals = report.totals
    lines = [
        f"Due up to {report.window.until:%Y-%m-%d %H:%M:%S} UTC: {totals.runs} runs of"
        f" {totals.schedules} schedules, {totals.unfinished} unfinished, {totals.skipped} skipped.",
        f"{totals.attempts} attempts, {totals.lost} lost; {totals.late_writes_refused} late writes refused.",
    ]
    if totals.behind:
        lines.append(f"{totals.behind} schedules are behind: the tick has not got to their next instant yet.")
    for violation in report.violations:
        lines.append(f"{violation.invariant} {violation.rule}: {violation.subject} {violation.detail}")
    lines.append("Nothing is broken." if report.ok else f"{len(report.violations)} violations.")
    return "\n".join(lines)
