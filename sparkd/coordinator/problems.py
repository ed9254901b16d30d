"""Every error that leaves the coordinator is an RFC 9457 problem document, whatever raised it."""

import logging
from typing import Any, Final

import msgspec
from fastapi.exceptions import RequestValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from sparkd.errors import NotFound, SparkdError, UsageError

log = logging.getLogger("sparkd.coordinator")

MEDIA_TYPE: Final = "application/problem+json"


def problem(error: SparkdError, status: int | None = None) -> dict[str, Any]:
    """The document's members; `status` replaces the one that the error usually has."""
    body: dict[str, Any] = {
        "type": f"urn:sparkd:{error.code}",
        "title": type(error).__name__,
        "status": status or error.http_status,
        "detail": str(error),
        "code": error.code,
    }
    for extra in ("differences", "problems"):
        if hasattr(error, extra):
            body[extra] = list(getattr(error, extra))
    return body


def answer_with_problems(app: Starlette) -> None:
    """Have all errors of the app answered so: ours, the framework's, and those that nobody meant."""
    app.add_exception_handler(SparkdError, _ours)
    app.add_exception_handler(HTTPException, _frameworks)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(Exception, _unexpected)


async def _ours(_: Request, error: Exception) -> Response:
    if not isinstance(error, SparkdError):
        raise error
    return _answer(problem(error))


async def _frameworks(request: Request, error: Exception) -> Response:
    """No such route or method; or ours, raised while a body was read and wrapped by the framework."""
    if not isinstance(error, HTTPException):
        raise error
    if isinstance(error.__cause__, SparkdError):
        return _answer(problem(error.__cause__))
    what = f"{request.method} {request.url.path}"
    named: SparkdError = NotFound(f"there is no {what}")
    if error.status_code != NotFound.http_status:
        named = UsageError(f"{what}: {error.detail}")
    return _answer(problem(named, error.status_code), error.headers)


async def _invalid(_: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    problems = [f"{'.'.join(str(part) for part in one['loc'])}: {one['msg']}" for one in error.errors()]
    return _answer({**problem(UsageError("; ".join(problems)), 422), "problems": problems})


async def _unexpected(request: Request, _: Exception) -> Response:
    """A bug of ours. The server writes its story into the log; a stranger has no use for it."""
    what = f"{request.method} {request.url.path}"
    return _answer(problem(SparkdError(f"{what} failed inside the coordinator; its log says where")))


def _answer(body: dict[str, Any], headers: Any = None) -> Response:
    return Response(msgspec.json.encode(body), body["status"], headers, media_type=MEDIA_TYPE)
