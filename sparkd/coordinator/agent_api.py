"""The agents' side of the coordinator: protocol v1, `/agent/v1/…` (design §11)."""

from typing import TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sparkd.coordinator.problems import answer_with_problems
from sparkd.coordinator.reconciler import Reconciler
from sparkd.errors import UsageError
from sparkd.records.document import Revision
from sparkd.records.report import Caller, Hello, Report

T = TypeVar("T")


def agent_app(reconciler: Reconciler) -> Starlette:
    """hello, document (a long poll) and report, as JSON; every refusal is a problem document."""

    async def hello(request: Request) -> Response:
        return _json(reconciler.hello(await _body(request, Hello)))

    async def report(request: Request) -> Response:
        return _json(reconciler.report(await _body(request, Report)))

    async def document(request: Request) -> Response:
        query = request.query_params
        try:
            term, _, revision = query["after"].partition(".")
            after = Revision(int(term), int(revision))
            caller = Caller(
                node=query["node"],
                boot=query["boot"],
                run=query["run"],
                seq=int(query["seq"]),
                protocol=int(query["protocol"]),
            )
        except (KeyError, ValueError) as error:
            raise UsageError(f"after, node, boot, run, seq and protocol are needed: {error}") from error
        found = await reconciler.document(caller, after)
        return Response(status_code=204) if found is None else _json(found)

    app = Starlette(
        routes=[
            Route("/agent/v1/hello", hello, methods=["POST"]),
            Route("/agent/v1/report", report, methods=["POST"]),
            Route("/agent/v1/document", document, methods=["GET"]),
        ]
    )
    answer_with_problems(app)
    return app


async def _body(request: Request, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(await request.body(), type=kind)
    except msgspec.MsgspecError as error:
        raise UsageError(f"the body is not a {kind.__name__}: {error}") from error


def _json(record: object) -> Response:
    return Response(msgspec.json.encode(record), media_type="application/json")
