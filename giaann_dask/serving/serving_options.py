"""Validate the options of a server: address, authentication, limits, timeouts and concurrency.

Does not cover: rules of inference (`giaann_dask.models.columns.state.inference_options`), and how a network is opened
(`giaann_dask.serving.engine`).
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field

from giaann_dask.errors import OptionError, require_at_least, require_between, require_option
from giaann_dask.keywords import names_keywords

# What a header can hold as one word: visible characters of ASCII.
_KEY = re.compile(r"[!-~]+")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a request.

    Parameters
    ----------
    body_bytes : int
        Bytes of a request's body.
    prompts : int
        Prompts, and choices, of a request.
    prompt_characters : int
        Characters of a prompt.
    tokens : int
        Tokens to generate for a prompt; larger requests are reduced to this number.
    stops : int
        Stop sequences.
    candidates : int
        Candidates, or connections, reported with a token.
    columns : int
        Concept columns reported with a token.
    sentences : int
        Training sentences reported for a connection.
    documents : int
        Documents added or listed by a request.
    document_bytes : int
        Bytes of a request that adds documents; of one that is streamed, of each line.
    commit_bytes : int
        Bytes of the documents of a streamed request that are one commit, or one longer document.

    Raises
    ------
    OptionError
        If one is below 1.
    """

    body_bytes: int = 1 << 20
    prompts: int = 64
    prompt_characters: int = 10_000
    tokens: int = 1_000
    stops: int = 4
    candidates: int = 20
    columns: int = 50
    sentences: int = 50
    documents: int = 1_000
    document_bytes: int = 64 << 20
    commit_bytes: int = 4 << 20

    def __post_init__(self) -> None:
        require_at_least(1, self, *vars(self))


@dataclass(frozen=True, kw_only=True)
class QueueOptions:
    """Limits of the prompts that are continued at the same time, and of those that wait.

    Parameters
    ----------
    slots : int
        Prompts continued concurrently.
    waiting : int
        Prompts that may wait for a slot.
    wait_s : float
        Seconds that a prompt may wait for a slot.

    Raises
    ------
    OptionError
        If a value is out of range.
    """

    slots: int = 32
    waiting: int = 64
    wait_s: float = 10.0

    def __post_init__(self) -> None:
        require_at_least(1, self, "slots")
        require_at_least(0, self, "waiting")
        _require_positive(self, "wait_s")


@names_keywords
@dataclass(frozen=True, kw_only=True)
class ServingOptions:
    """Address, authentication, limits and timeouts of a server.

    Parameters
    ----------
    host : str
        Name or address to listen at.
    port : int
        Port; 0 takes any free one.
    api_key : str, optional
        Key that clients must send; required if other machines can reach `host`.
    writable : bool
        Whether documents can be added to the network and removed from it, which `write_key` allows.
    write_key : str, optional
        Key that clients must send to add and remove documents, required by `writable`; it also allows everything that
        `api_key` allows.
    keep_texts : bool
        Whether the texts of documents are kept in a file beside the network. If a text is not kept, the request to
        remove its document must contain it.
    model_name : str, optional
        Name of the first model; that of the network's folder by default.
    timeout_s : float
        Maximum duration of a request in seconds, including waiting.
    drain_s : float
        Seconds for running requests to finish when the server is stopped.
    head_s : float
        Timeout in seconds for the headers of a request, from its first byte or from the connection.
    connections : int
        Maximum number of open connections; beyond it, connections without a running request are closed.
    limits : Limits
        The largest request.
    queue : QueueOptions
        Numbers of running and waiting prompts.

    Raises
    ------
    OptionError
        If a value is out of range, or if other machines could reach the server without a key.

    Examples
    --------
    >>> ServingOptions(port=0).private
    True
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    writable: bool = False
    write_key: str | None = None
    keep_texts: bool = True
    model_name: str | None = None
    timeout_s: float = 60.0
    drain_s: float = 30.0
    head_s: float = 10.0
    connections: int = 1_000
    limits: Limits = field(default_factory=Limits)
    queue: QueueOptions = field(default_factory=QueueOptions)

    def __post_init__(self) -> None:
        require_at_least(1, self, "connections")
        _require_positive(self, "timeout_s", "drain_s", "head_s")
        require_between(0, 65535, self, "port")
        for name, key in (("api_key", self.api_key), ("write_key", self.write_key)):
            if key is not None and not _KEY.fullmatch(key):
                # The key itself is not shown.
                raise OptionError(
                    f"the key {name} is empty or has white space, control or non-ASCII characters",
                    "one word, without a line end",
                    f"set {name} to such a word",
                )
        if self.writable and self.write_key is not None and self.write_key == self.api_key:
            raise OptionError(
                "writable without a separate write key",
                "a key for writers only",
                "set GIAANN_WRITE_KEY or write_key, to another key than api_key",
                names=("writable",),
            )
        from giaann_dask.representations import text_fault

        if self.model_name is not None and (fault := text_fault(self.model_name)) is not None:
            raise OptionError(
                f"the model's name {self.model_name!r} holds {fault}",
                "text in UTF-8",
                "set model_name to such a text",
            )
        if not self.private and self.api_key is None:
            raise OptionError(
                f"host is {self.host!r}, which other machines can reach, without an API key",
                "127.0.0.1, or a key",
                "set GIAANN_API_KEY or api_key",
                names=("host",),
            )

    @property
    def private(self) -> bool:
        """Whether only this machine can reach the host."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def _require_positive(options: object, *names: str) -> None:
    for name in names:
        # Not a number is refused too.
        require_option(0 < getattr(options, name) < float("inf"), name, getattr(options, name), "more than 0")
