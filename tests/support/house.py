"""An installation with an API, and endpoints on this machine that it may call."""

from typing import Any
from uuid import UUID

from tests.support.api import Answer, Api
from tests.support.endpoints import Behaviour, Endpoint, Request, Wire
from tests.support.installation import TENANT, Installation
from tests.support.machine import find_free_port
from tests.support.processes import Running
from tests.support.wait import wait_until

RARELY_S = 30 * 86_400


class House:
    """An installation with an API, whose targets may be on this machine."""

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        self.ledger = installation.ledger
        self.secrets: dict[str, str] = {}
        installation.be_brisk()
        installation.environ["FENCEPOST_HTTP_ALLOW_NETWORKS"] = "127.0.0.1/32"
        self.ledger.rows("SELECT setval('fence_seq', 100)")  # there are fences that are older than any here
        installation.start("engine")
        port = find_free_port()
        key = installation.command("create_api_key", TENANT, "--role", "admin").split()[-1]
        installation.start("web", env={"PORT": str(port)}).wait_for("ready: web")
        self.api = Api(url=f"http://127.0.0.1:{port}", key=key)

    def worker(self, fault: str = "", concurrency: int = 16, pool: str = "threads") -> Running:
        env = {"FENCEPOST_FAULT": fault} if fault else {}
        return self.installation.start("worker", "--pool", pool, "--concurrency", str(concurrency), env=env)

    def target(
        self, server: Endpoint, name: str, *, schedule: dict[str, Any] | None = None, **fields: Any
    ) -> None:
        """A target at the server, and a schedule of the same name that never comes due by itself."""
        made = self.ask("/targets", {"name": name, "url": server.url, **fields}, 201)
        self.secrets[name] = made.body["signing_secret"]
        retry = {"max_attempts": 5, "initial_interval_s": 0.2, "max_interval_s": 0.5}
        trigger = {"interval": {"every_s": RARELY_S}}
        body = {"name": name, "target": name, "trigger": trigger, "retry": retry, "overlap": "allow"}
        self.ask("/schedules", {**body, **(schedule or {})}, 201)

    def run_now(self, name: str) -> UUID:
        (schedule_id,) = self.ledger.rows("SELECT id FROM schedule WHERE name = %(name)s", name=name)[0]
        return UUID(self.ask(f"/schedules/{schedule_id}/trigger", {}, 202).body["run_id"])

    def ask(self, path: str, body: dict[str, Any], status: int) -> Answer:
        found = self.api.post(f"/api/v1{path}", body)
        assert found.status == status, found
        return found

    def tell(self, run_id: UUID, verb: str, fence: int, **body: Any) -> Answer:
        return self.api.post(f"/api/v1/runs/{run_id}/{verb}", {"fence": fence, **body})

    def of_run(self, run_id: UUID, column: str) -> Any:
        return self.ledger.scalar(f"SELECT {column} FROM occurrence WHERE id = %(id)s", id=run_id)

    def wait_for(self, run_id: UUID, state: str) -> None:
        wait_until(
            lambda: self.of_run(run_id, "state") == state, 60, message=f"{self.of_run(run_id, 'state')}"
        )

    def wait_accepted(self, run_id: UUID) -> int:
        """Until the endpoint holds the run; the fence."""
        accepted = "SELECT fence FROM lease WHERE run_id = %(id)s AND expires_at IS NOT NULL"
        found = wait_until(lambda: self.ledger.rows(accepted, id=run_id), 60)
        return int(found[0][0])

    def outcomes(self, run_id: UUID) -> list[str | None]:
        return [outcome for _, _, outcome in self.ledger.attempts(run_id)]

    def assert_sound(self) -> None:
        assert self.installation.verify(effects=False).violations == ()


def in_turn(*behaviours: Behaviour) -> Behaviour:
    """Each call gets the next of these; the last one stays."""
    left = list(behaviours)

    def behave(request: Request, wire: Wire) -> None:
        (left.pop(0) if len(left) > 1 else left[0])(request, wire)

    return behave
