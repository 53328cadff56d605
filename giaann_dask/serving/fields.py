"""Read the JSON body of a request and its fields: types, ranges, and errors that name the wrong field.

Does not cover: which fields a request has (`giaann_dask.serving.requests`, `giaann_dask.serving.chat_requests`).
"""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request

from giaann_dask.serving.http_errors import HttpError
from giaann_dask.text.strings import text_fault


async def read_body(http: Request, limit: int) -> bytes:
    """Return the body of a request of a limited length.

    Raises
    ------
    HttpError
        With status 413 or 415.
    """
    if http.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        # Pages of other sites cannot send this type without being asked whether they may.
        raise HttpError(415, "the body is not declared as JSON; expected Content-Type: application/json")
    return await read_bytes(http, limit)


async def read_bytes(http: Request, limit: int) -> bytes:
    """Return the body of a request of a limited length, of any type.

    Raises
    ------
    HttpError
        With status 413, or 415 where it is compressed.
    """
    coding = http.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        message = f"the body has the Content-Encoding {coding[:60]!r}; expected none: send it uncompressed"
        raise HttpError(415, message, code="unsupported_coding", headers={"Accept-Encoding": "identity"})
    body = bytearray()
    async for piece in http.stream():
        body += piece
        if len(body) > limit:
            message = f"the body has more than {limit} bytes; send less at once"
            raise HttpError(413, message, code="too_large", headers={"Connection": "close"})
    return bytes(body)


def read_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object that a body is.

    Raises
    ------
    HttpError
        With status 400, if it is none.
    """
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        detail = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]
        raise HttpError(400, f"the body is not JSON ({detail}); expected one object", code="invalid_json") from error
    if not isinstance(fields, dict):
        raise HttpError(400, f"the body is {shown(fields)}; expected one JSON object", code="invalid_json")
    return fields


def read_integer(fields: dict[str, Any], name: str, default: int, least: int, most: int | None) -> int:
    """Return a whole number within limits, or the default where the field is null or missing."""
    value = fields.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        end = "on" if most is None else f"to {most}"
        raise wrong_field(name, f"is {shown(value)}", f"a whole number from {least} {end}")
    return value


def read_capped(fields: dict[str, Any], name: str, default: int, least: int, most: int) -> tuple[int, str]:
    """Return a whole number, at most the limit, and the name of the field where it was larger, else an empty string.

    It is the default where the field is null or missing.
    """
    value = read_integer(fields, name, default, least, None)
    return min(value, most), name if fields.get(name) is not None and value > most else ""


def read_number(fields: dict[str, Any], name: str, default: float, least: float, most: float) -> float:
    """Return a number within limits, or the default where the field is null or missing."""
    value = fields.get(name)
    if value is None:
        return default
    # Not a number is refused too.
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise wrong_field(name, f"is {shown(value)}", f"a number from {least:g} to {most:g}")
    return float(value)


def read_flag(fields: dict[str, Any], name: str) -> bool:
    """Return true or false, which is also the default."""
    value = fields.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise wrong_field(name, f"is {shown(value)}", "true or false")
    return value


def require_known(fields: dict[str, Any], known: set[str], ignored: set[str]) -> None:
    """Raise an error that lists the known fields where there is another one that is not null."""
    for name, value in fields.items():
        if value is not None and name not in known and name not in ignored:
            raise wrong_field(name, "is not known", f"one of {', '.join(sorted(known))}")


def require_text(name: str, text: str, most: int) -> None:
    """Raise an error where a text is too long, or UTF-8 cannot hold it."""
    if len(text) > most:
        raise wrong_field(name, f"has {len(text)} characters", f"at most {most}")
    if (fault := text_fault(text)) is not None:
        raise wrong_field(name, f"holds {fault}", "Unicode text")


def shown(value: object) -> str:
    """Return the beginning of a value in JSON, for an error."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def wrong_field(name: str, received: str, expected: str) -> HttpError:
    """Return the error of a wrong field, with status 400."""
    return HttpError(400, f"{name[:60]!r} {received}; expected {expected}", param=name[:60], code="invalid_value")
