"""The agents' side of the coordinator: protocol v1, `/agent/v1/…` (design §11)."""

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sparkd.coordinator.problems import answer_with_problems
from sparkd.coordinator.reconciler import Reconciler
from sparkd.errors import UsageError
from sparkd.records.document import Revision
from sparkd.records.names import CLOCK_PATH
from sparkd.records.report import Caller, CertificateAsked, CertificateGiven, Hello, Report

if TYPE_CHECKING:
    from sparkd.coordinator.entrance import Entrance

T = TypeVar("T")


def agent_app(reconciler: Reconciler, entrance: "Entrance | None" = None) -> Starlette:
    """hello, document (a long poll) and report, as JSON; every refusal is a problem document.

    With an `entrance` callers have shown certificates, and a node speaks for itself only; without one they
    share a token, and what they say of themselves is believed.
    """

    async def hello(request: Request) -> Response:
        said = await _body(request, Hello)
        if entrance is not None:
            name = entrance.check_is(request, said.caller.node)
            said = replace(said, facts=replace(said.facts, id=said.caller.node, name=name))
        return _json(reconciler.hello(said))

    async def report(request: Request) -> Response:
        said = await _body(request, Report)
        if entrance is None:
            return _json(reconciler.report(said))
        entrance.check_is(request, said.caller.node)
        return _json(replace(reconciler.report(said), renew=entrance.wants_renewal(request)))

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
        if entrance is not None:
            entrance.check_is(request, caller.node)
        found = await reconciler.document(caller, after)
        return Response(status_code=204) if found is None else _json(found)

    routes = [
        Route("/agent/v1/hello", hello, methods=["POST"]),
        Route("/agent/v1/report", report, methods=["POST"]),
        Route("/agent/v1/document", document, methods=["GET"]),
    ]
    if entrance is not None:
        routes += _certificate_routes(entrance)
    app = Starlette(routes=routes)
    answer_with_problems(app)
    return app


def _certificate_routes(entrance: "Entrance") -> list[Route]:
    async def certificate(request: Request) -> Response:
        """A fresh certificate, for oneself."""
        asked = await _body(request, CertificateAsked)
        entrance.check_is(request, asked.node)
        return _json(CertificateGiven(entrance.renew(request, asked.csr)))

    async def clock(request: Request) -> Response:
        """From a node that takes our certificate for out of date: what that tells about its clock."""
        return _json({"detail": entrance.hear_doubt(request)})

    return [
        Route("/agent/v1/certificate", certificate, methods=["POST"]),
        Route(CLOCK_PATH, clock, methods=["POST"]),
    ]


async def _body(request: Request, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(await request.body(), type=kind)
    except msgspec.MsgspecError as error:
        raise UsageError(f"the body is not a {kind.__name__}: {error}") from error


def _json(record: object) -> Response:
    return Response(msgspec.json.encode(record), media_type="application/json")
