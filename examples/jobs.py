"""Jobs that people really run, each small enough to copy and change.

What they write goes below `FENCEPOST_HOME/examples/`. All of them may be repeated: a second attempt of the
same run leaves the same files and rows as one attempt would.
"""

import csv
import json
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

from django.conf import settings
from django.contrib.sessions.models import Session
from django.db.models import Model, QuerySet

from examples import effects
from scheduler.errors import PermanentError
from scheduler.faultpoints import fault_point
from scheduler.jobs import Context, Retry, job
from tenants.models import IdempotencyRecord

DATA = Path(__file__).parent / "data"
DELETE_BATCH = 1000
SLICE_S = 0.05


@job("examples.hourly_report", timeout_s=60)
def hourly_report(ctx: Context, source: str = "sales.csv") -> dict[str, Any]:
    """Reads sales, writes the totals of each product to a report named after the due hour."""
    totals: dict[str, Decimal] = defaultdict(Decimal)
    rows = 0
    for row in _rows(source):
        totals[row["product"]] += int(row["quantity"]) * Decimal(row["unit_price"])
        rows += 1
    ctx.heartbeat(percent=50, note=f"{rows} rows read")
    report = {"hour": f"{ctx.due_at:%Y-%m-%dT%H:00Z}", "totals": {name: str(totals[name]) for name in totals}}
    path = _folder("reports") / f"sales-{ctx.due_at:%Y%m%dT%H}.json"
    _write_whole(path, report)
    return {"rows": rows, "report": path.name, "total": str(sum(totals.values(), Decimal(0)))}


@job("examples.cleanup", timeout_s=600)
def cleanup(ctx: Context, keep_days: int = 1) -> dict[str, Any]:
    """Deletes what the web leaves behind: expired sign-in sessions, and idempotency records of past days.

    Counts from the due instant, not from the clock, so that a late or repeated attempt deletes the same.
    """
    oldest = ctx.due_at - timedelta(days=keep_days)
    return {
        "sessions": _delete(ctx, Session.objects.filter(expire_date__lt=ctx.due_at)),
        "idempotency_records": _delete(ctx, IdempotencyRecord.objects.filter(created_at__lt=oldest)),
    }


@job("examples.http_check", retry=Retry(max_attempts=3), timeout_s=30)
def http_check(ctx: Context, url: str = "", answer_within_s: float = 5.0) -> dict[str, Any]:
    """Fails unless `url` answers 2xx in time. Without a url it asks this installation's own /healthz."""
    url = url or f"http://127.0.0.1:{settings.FENCEPOST.port}/healthz"
    if urlsplit(url).scheme not in ("http", "https"):  # urllib would open file: as well
        raise PermanentError(f"url: {url!r} is not an http or https address")
    began = time.monotonic()
    with urlopen(url, timeout=answer_within_s) as answer:  # raises for 4xx, 5xx and network errors
        status: int = answer.status
    if not 200 <= status < 300:
        raise RuntimeError(f"{url} answered {status}")
    return {"status": status, "took_s": round(time.monotonic() - began, 3)}


@job("examples.invoice_run", retry=Retry(max_attempts=10), timeout_s=3600, drains=True)
def invoice_run(ctx: Context, source: str = "usage.csv") -> dict[str, Any]:
    """Writes one invoice per account for the month before the due instant.

    An invoice's number is `ctx.key(account)`: the same in every attempt of the run, so an attempt that
    takes over from a killed one finds what is already written and goes on behind it.
    """
    items = _items_by_account(_rows(source))
    period = f"{ctx.due_at.replace(day=1) - timedelta(days=1):%Y-%m}"
    written = 0
    for done, (account, lines) in enumerate(sorted(items.items()), start=1):
        path = _folder("invoices") / f"{account}-{ctx.key(account)}.json"
        if not path.exists():
            _write_whole(path, _invoice(number=ctx.key(account), account=account, period=period, lines=lines))
            written += 1
        ctx.heartbeat(percent=100 * done // len(items), note=account)
    return {"period": period, "accounts": len(items), "written": written}


@job("demo.record")
def record(ctx: Context, seconds: float = 0.0) -> dict[str, Any]:
    """Works for `seconds` and leaves one line in the effect ledger at its beginning and one at its end."""
    effects.append(ctx, "begin")
    fault_point("worker.mid_body")
    ends = time.monotonic() + seconds
    while (left := ends - time.monotonic()) > 0:
        ctx.check_cancelled()
        time.sleep(min(left, SLICE_S))  # this is the work; in slices, so that a cancel is heard
    effects.append(ctx, "end")
    fault_point("worker.after_effect")
    return {"seconds": seconds}


# ------------------------------------------------------------------------------------------------


def _rows(source: str) -> Iterator[dict[str, str]]:
    """Rows of a sample file. A payload may name a file, not a way to one: it is a tenant's text."""
    if source not in {path.name for path in DATA.glob("*.csv")}:
        raise PermanentError(f"source: there is no sample file {source!r}")
    with (DATA / source).open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _folder(name: str) -> Path:
    folder: Path = settings.FENCEPOST.home / "examples" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _write_whole(path: Path, content: dict[str, Any]) -> None:
    """A reader, and the next attempt after a kill, sees the whole file or none."""
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    beside.replace(path)


def _delete(ctx: Context, rows: QuerySet[Any, Any]) -> int:
    """In batches, so that no lock is held for long and a cancelled run stops soon."""
    model: type[Model] = rows.model
    deleted = 0
    while keys := list(rows.values_list("pk", flat=True)[:DELETE_BATCH]):
        ctx.check_cancelled()
        deleted += model._default_manager.filter(pk__in=keys).delete()[0]
    return deleted


def _items_by_account(rows: Iterable[dict[str, str]]) -> dict[str, list[dict[str, str]]]:
    items: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        amount = Decimal(row["quantity"]) * Decimal(row["unit_price"])
        items[row["account"]].append(
            {"item": row["item"], "quantity": row["quantity"], "amount": f"{amount:.2f}"}
        )
    return items


def _invoice(*, number: str, account: str, period: str, lines: list[dict[str, str]]) -> dict[str, Any]:
    total = sum((Decimal(line["amount"]) for line in lines), Decimal(0))
    return {"number": number, "account": account, "period": period, "lines": lines, "total": f"{total:.2f}"}
