"""Map errors to HTTP error responses in OpenAI's format."""

from __future__ import annotations

import logging
import math

from starlette.responses import JSONResponse

from giaann_dask.errors import GiaannError, PromptError
from giaann_dask.serving.engine import EngineStoppedError
from giaann_dask.text.strings import escaped


class HttpError(Exception):
    """An HTTP error response to a request.

    Parameters
    ----------
    status : int
        HTTP status.
    message : str
        What was received; what was expected; what to do.
    param : str, optional
        Field of the request that is wrong.
    code : str, optional
        Short name of the error, for programs.
    headers : dict of str to str, optional
        More headers of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code, self.headers = status, param, code, headers

    def as_dict(self) -> dict[str, object]:
        """Return the body of the response, ready for JSON."""
        kind = {429: "rate_limit_error"}.get(self.status, "server_error" if self.status >= 500 else "")
        # What a client sent may be part of both, and JSON can name what no UTF-8 can hold.
        param = None if self.param is None else escaped(self.param)
        error = {"message": escaped(str(self)), "type": kind or "invalid_request_error", "param": param}
        return {"error": {**error, "code": self.code}}

    def response(self) -> JSONResponse:
        """Return the response."""
        return JSONResponse(self.as_dict(), self.status, self.headers)


def busy(message: str, seconds: float) -> HttpError:
    """Return the error of a full queue, with the seconds after which to retry."""
    headers = {"Retry-After": str(max(1, math.ceil(seconds)))}
    return HttpError(429, f"{message}; ask again later", code="rate_limit_exceeded", headers=headers)


def late(seconds: float) -> HttpError:
    """Return the error of a request that exceeded its timeout."""
    message = f"the request was not answered within {seconds:g} seconds; ask for fewer tokens or prompts"
    return HttpError(504, message, code="timeout")


def http_error_of(error: BaseException) -> HttpError:
    """Return the HTTP error for an error in the engine; defects are logged."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, PromptError):
        return HttpError(400, str(error), param="prompt", code="invalid_prompt")
    if isinstance(error, GiaannError):
        logging.getLogger(__name__).error("%s", error)
        return HttpError(503, str(error), code="unavailable")
    if isinstance(error, EngineStoppedError):
        return HttpError(500, str(error), code="defect")
    logging.getLogger(__name__).error("a defect while answering", exc_info=error)
    return HttpError(500, f"a defect of the server ({type(error).__name__}); its log says more", code="defect")
