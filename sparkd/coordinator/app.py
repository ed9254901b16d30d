"""The REST API (design §11). Handlers translate; the reconciler and the fleet machine decide."""

import json
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from fastapi import Body, FastAPI, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from fastapi.routing import APIRoute

import sparkd
from sparkd.coordinator import metrics
from sparkd.coordinator.fabric import fabric_now, fabric_test, nodes_called
from sparkd.coordinator.hashing import Hashing
from sparkd.coordinator.logs import LogReader
from sparkd.coordinator.planner import plan_now
from sparkd.coordinator.preflight import Check
from sparkd.coordinator.problems import answer_with_problems
from sparkd.coordinator.reconciler import Reconciler
from sparkd.coordinator.stacks import ask_stacks
from sparkd.coordinator.store import Store
from sparkd.coordinator.summing import collective_tests
from sparkd.errors import Conflict, IntentDiffers, NotFound
from sparkd.gang.machine import ENDED
from sparkd.profile.check import profile_of
from sparkd.profile.differences import intent_differences
from sparkd.records.answer import CommandAnswer, Membership, NodeEnrolled, Problem, RankStacks
from sparkd.records.defaults import DEFAULTS
from sparkd.records.event import Event
from sparkd.records.fabric import FabricTest, FabricView
from sparkd.records.hashing import HashLine
from sparkd.records.intent import Intent
from sparkd.records.plan import Plan
from sparkd.records.preflight import Preflight
from sparkd.records.status import DeploymentStatus, NodeStatus, RankStatus, Status

if TYPE_CHECKING:
    from sparkd.coordinator.registry import Registry

_SSE_KEEPALIVE_S = 15.0


class _Json(Response):
    """A record as JSON, by msgspec: the same bytes on every interface."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return msgspec.json.encode(content)


class _Request(Request):
    """A body by msgspec: it refuses what no answer of ours could hold, such as half a surrogate pair."""

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            try:
                self._json = msgspec.json.decode(await self.body())
            except msgspec.DecodeError as error:
                raise json.JSONDecodeError(str(error), "", 0) from error  # FastAPI knows this one
        return self._json


class _Route(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await handler(_Request(request.scope, request.receive))

        return handle


def rest_app(reconciler: Reconciler, store: Store, registry: "Registry | None" = None) -> FastAPI:
    """All routes under `/v1`, `/healthz` and `/metrics`. Without a `registry` nobody can be enrolled."""
    app = FastAPI(
        title="sparkd",
        version=sparkd.__version__,
        default_response_class=_Json,
        docs_url=None,
        redoc_url=None,
        responses={"4XX": {"model": Problem}, "5XX": {"model": Problem}},
    )
    app.router.route_class = _Route
    answer_with_problems(app)
    _add_reads(app, reconciler, store)
    _add_commands(app, reconciler)
    _add_membership(app, registry)
    _add_streams(app, reconciler)
    return app


def _find(reconciler: Reconciler, name: str) -> DeploymentStatus:
    found = next((one for one in reconciler.status().deployments if one.name == name), None)
    if found is None:
        known = ", ".join(sorted(reconciler.fleet.gangs)) or "none"
        raise NotFound(f"no deployment is called {name!r} (known: {known})")
    return found


def _add_reads(app: FastAPI, reconciler: Reconciler, store: Store) -> None:
    @app.get("/healthz")
    async def healthz() -> Response:
        # Open to strangers: none of them keeps a connection by asking.
        once = {"connection": "close"}
        if reconciler.storage_error:
            return _Json({"status": "degraded", "reason": reconciler.storage_error}, 503, headers=once)
        return _Json({"status": "ok"}, headers=once)

    @app.get("/metrics")
    async def get_metrics() -> Response:
        body = metrics.render(reconciler.status())
        return Response(body, media_type=metrics.CONTENT_TYPE)

    @app.get("/v1/status", response_model=Status)
    async def get_status() -> Response:
        return _Json(reconciler.status())

    @app.get("/v1/nodes", response_model=list[NodeStatus])
    async def get_nodes() -> Response:
        return _Json(reconciler.status().nodes)

    @app.get("/v1/fabric", response_model=FabricView)
    async def get_fabric(nodes: str | None = None) -> Response:
        return _Json(await fabric_now(reconciler, nodes.split(",") if nodes else ()))

    @app.get("/v1/deployments", response_model=list[DeploymentStatus])
    async def get_deployments() -> Response:
        return _Json(reconciler.status().deployments)

    @app.get("/v1/deployments/{name}", response_model=DeploymentStatus)
    async def get_deployment(name: str) -> Response:
        return _Json(_find(reconciler, name))

    @app.get("/v1/deployments/{name}/ready")
    async def get_ready(name: str) -> Response:
        found = _find(reconciler, name)
        code = 200 if found.phase == "ready" else 503
        return _Json({"ready": code == 200, "phase": found.phase, "reason": found.reason}, code)

    @app.get("/v1/deployments/{name}/ranks", response_model=list[RankStatus])
    async def get_ranks(name: str) -> Response:
        return _Json(_find(reconciler, name).ranks)

    @app.get("/v1/deployments/{name}/incidents")
    async def get_incidents(name: str) -> Response:
        _find(reconciler, name)
        return _Json(store.incidents(name))

    @app.get("/v1/deployments/{name}/stacks", response_model=list[RankStacks])
    async def get_stacks(name: str, rank: int | None = None) -> Response:
        _find(reconciler, name)
        return _Json(await ask_stacks(reconciler, name, rank))


def _add_commands(app: FastAPI, reconciler: Reconciler) -> None:
    async def answer(name: str, outcome: Any) -> CommandAnswer:
        await reconciler.settle()
        nodes = reconciler.fleet.nodes.values()
        recorded = sum(1 for node in nodes if node.settled)
        return CommandAnswer(_find(reconciler, name), outcome, recorded, len(reconciler.fleet.nodes))

    @app.put("/v1/deployments/{name}", response_model=CommandAnswer)
    async def put_deployment(name: str, intent: Annotated[Intent, Body(embed=True)]) -> Response:
        profile_of(intent)  # whoever sends a profile has checked it, unless it was no sparkd
        try:
            outcome = reconciler.up(name, intent)
        except IntentDiffers as error:
            running = reconciler.fleet.gangs[name].record.intent
            raise IntentDiffers(str(error), intent_differences(running, intent)) from error
        return _Json(await answer(name, outcome), 201 if outcome == "created" else 200)

    @app.delete("/v1/deployments/{name}", response_model=CommandAnswer)
    async def delete_deployment(name: str) -> Response:
        reconciler.down(name)
        ended = reconciler.fleet.gangs[name].record.phase in ENDED
        return _Json(await answer(name, "stopped" if ended else "stopping"))

    @app.post("/v1/deployments/{name}/restart", response_model=CommandAnswer)
    async def restart_deployment(name: str, generation: Annotated[int, Body(embed=True)]) -> Response:
        reconciler.restart(name, generation)
        return _Json(await answer(name, "restarting"))

    @app.post("/v1/nodes/{name}/drain", response_model=list[NodeStatus])
    async def drain_node(name: str) -> Response:
        reconciler.drain(name, drained=True)
        return _Json(reconciler.status().nodes)

    @app.post("/v1/nodes/{name}/resume", response_model=list[NodeStatus])
    async def resume_node(name: str) -> Response:
        reconciler.drain(name, drained=False)
        return _Json(reconciler.status().nodes)

    @app.post("/v1/fabric/test", response_model=FabricTest)
    async def post_fabric_test(nodes: Annotated[list[str], Body(embed=True)]) -> Response:
        return _Json(await fabric_test(reconciler, nodes))

    @app.post("/v1/plan", response_model=Plan)
    async def post_plan(name: Annotated[str, Body()], intent: Annotated[Intent, Body()]) -> Response:
        return _Json(plan_now(reconciler.fleet, name, intent))

    @app.post("/v1/preflight", response_model=Preflight)
    async def post_preflight(
        name: Annotated[str | None, Body()] = None, intent: Annotated[Intent | None, Body()] = None
    ) -> Response:
        if intent is None:
            return _Json(await Check(reconciler).of_nodes())
        profile_of(intent)
        return _Json(await Check(reconciler).of_launch(name or intent.profile_name, intent))

    @app.post("/v1/preflight/hash", response_model=list[HashLine])
    async def post_hash(name: Annotated[str, Body()], intent: Annotated[Intent, Body()]) -> Response:
        profile_of(intent)
        hashing = Hashing(reconciler, name, intent)
        return StreamingResponse(hashing.stream(), media_type="application/x-ndjson")


def _add_membership(app: FastAPI, registry: "Registry | None") -> None:
    def office() -> "Registry":
        if registry is None:
            raise Conflict("this coordinator has no certificates, so nodes cannot join it: run `sparkd init`")
        return registry

    @app.get("/v1/membership", response_model=Membership)
    async def get_membership() -> Response:
        return _Json(office().membership())

    @app.post("/v1/nodes", response_model=NodeEnrolled)
    async def post_node(
        node_id: Annotated[str, Body(alias="id")], name: Annotated[str, Body()], csr: Annotated[str, Body()]
    ) -> Response:
        return _Json(office().enrol(node_id, name, csr), 201)

    @app.delete("/v1/nodes/{name}", response_model=Membership)
    async def delete_node(name: str) -> Response:
        return _Json(office().remove(name))


def _add_streams(app: FastAPI, reconciler: Reconciler) -> None:
    @app.get("/v1/events")
    async def get_events(
        last_event_id: Annotated[str | None, Header()] = None,
        deployment: str | None = None,
        follow: bool = True,
        limit: Annotated[int, Query(ge=0, le=10_000)] = 100,
    ) -> Response:
        if not follow:
            recent = reconciler.events.recent(limit, deployment)
            return _Json([event.wire() for event in recent])
        stream = _event_stream(reconciler, last_event_id, deployment)
        return StreamingResponse(stream, media_type="text/event-stream")

    @app.post("/v1/fabric/collectives")
    async def post_collectives(
        nodes: Annotated[list[str], Body()],
        size: Annotated[int, Body(ge=8)] = DEFAULTS.collective_bytes,
        image: Annotated[str | None, Body()] = None,
    ) -> Response:
        """Sums of up to `size` bytes by ranks of kind `probe`: a CollectiveTest a line, as each changes."""
        nodes_called(reconciler.fleet, nodes)
        tests = collective_tests(reconciler, nodes, size, image)
        return StreamingResponse(_lines(tests), media_type="application/x-ndjson")

    @app.get("/v1/deployments/{name}/logs")
    async def get_logs(  # noqa: PLR0917 - FastAPI passes query parameters by name
        name: str,
        rank: int | None = None,
        generation: int | None = None,
        since: float | None = None,
        lines: Annotated[int, Query(ge=1, le=100_000)] = 1000,
        follow: bool = False,
    ) -> Response:
        _find(reconciler, name)
        reader = LogReader(reconciler, name, rank=rank, generation=generation, since=since, lines=lines)
        return StreamingResponse(reader.stream(follow=follow), media_type="application/x-ndjson")


async def _lines(records: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    async for record in records:
        yield msgspec.json.encode(record) + b"\n"


async def _event_stream(
    reconciler: Reconciler, after: str | None, deployment: str | None
) -> AsyncIterator[bytes]:
    """Events after the one named; an id that is not known gets `reset` with the full status first."""
    log = reconciler.events
    position = after if after is not None else log.newest_id()
    yield b": sparkd\n\n"
    while not log.closed:
        fresh = log.after(position)
        if fresh is None:
            position = log.newest_id()
            body = msgspec.json.encode(reconciler.status())
            yield f"id: {position or ''}\nevent: reset\ndata: ".encode() + body + b"\n\n"
            continue
        for event in fresh:
            position = event.id
            if deployment in (None, event.deployment):
                yield _sse(event)
        if not fresh:
            await log.wait(_SSE_KEEPALIVE_S)
            yield b": alive\n\n"


def _sse(event: Event) -> bytes:
    body = msgspec.json.encode(event.wire())
    return f"id: {event.id}\nevent: {event.kind}\ndata: ".encode() + body + b"\n\n"
