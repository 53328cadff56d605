"""Name places in object stores by URLs that carry the options of reaching them: endpoint, region, credentials.

An `ObjectUrl` is a string and an `ObjectPath` a path, so that they are given wherever a folder can be. Their options
travel with them into tasks and to workers, and are shown nowhere: messages, logs, events, keys of tasks and stored
names have the URL alone.

Whatever names a network or a corpus is made a path by `absolute_place`, once.

Does not cover: reading and writing these places (`giaann_dask.store.places`), and text at URLs
(`giaann_dask.text.input_files`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path, PosixPath
from typing import Any, Self

from giaann_dask.errors import OptionError
from giaann_dask.keywords import names_keywords
from giaann_dask.local_files import local_name

# A file:// URL names a path of this machine (`giaann_dask.local_files`).
_OBJECT_STORE = re.compile(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]+:/", re.IGNORECASE)
_FLAGS = ("path_style", "anonymous")
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
AZURE_ACCOUNT = "AZURE_STORAGE_ACCOUNT_NAME"
MEMORY = "memory"
"""Scheme of places in the memory of a process."""


@dataclass(frozen=True, kw_only=True, repr=False)
class StorageOptions:
    """Options of reaching an object store; what is left out comes from the environment.

    Attributes
    ----------
    endpoint : str, optional
        Address of an S3-compatible server, or of one for Google Cloud Storage or Azure, as ``http://HOST:PORT``.
    region : str, optional
        Region of S3.
    path_style : bool, optional
        Whether the bucket of S3 is part of the path instead of the host name; by default where there is an endpoint.
    anonymous : bool
        Whether requests are not signed, as public buckets allow.
    access_key_id, secret_access_key, session_token : str, optional
        Credentials of S3.
    service_account : str, optional
        File with the key of a service account of Google Cloud Storage.
    account, account_key, sas_token : str, optional
        Account of Azure and its credentials.

    Raises
    ------
    OptionError
        If an option is empty, the endpoint is no address, credentials are incomplete, or are given with `anonymous`.
    """

    endpoint: str | None = None
    region: str | None = None
    path_style: bool | None = None
    anonymous: bool = False
    access_key_id: str | None = None
    secret_access_key: str | None = None
    session_token: str | None = None
    service_account: str | None = None
    account: str | None = None
    account_key: str | None = None
    sas_token: str | None = None

    def __post_init__(self) -> None:
        if self.service_account:
            object.__setattr__(self, "service_account", local_name(self.service_account))
        for name in self._given():
            if name not in _FLAGS and not getattr(self, name):
                raise _refused(f"{name} is empty", "a value")
        if self.endpoint is not None and not self.endpoint.startswith(("http://", "https://")):
            raise _refused("endpoint is no address", "http://HOST:PORT or https://HOST")
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise _refused("access_key_id or secret_access_key without the other", "both, or none")
        secrets = {"access_key_id", "session_token", "service_account", "account_key", "sas_token"}
        if self.anonymous and (given := secrets & set(self._given())):
            raise _refused(f"anonymous with {', '.join(sorted(given))}", "one of these")

    @classmethod
    def of(cls, values: Mapping[str, object]) -> Self:
        """Return the options of a mapping.

        Parameters
        ----------
        values : mapping of str to str or bool
            Options by name; flags also as ``"true"`` or ``"false"``.

        Raises
        ------
        OptionError
            If a name is unknown, or a value cannot be one.

        Examples
        --------
        >>> StorageOptions.of({"endpoint": "http://127.0.0.1:9000", "secret_access_key": "s", "access_key_id": "a"})
        StorageOptions(endpoint, access_key_id, secret_access_key)
        """
        known = [field.name for field in fields(cls)]
        for name, value in values.items():
            if name not in known:
                raise _refused(f"{name!r} is unknown", f"one of {', '.join(known)}")
            if not isinstance(value, bool if name in _FLAGS else str) and not (
                name in _FLAGS and str(value).lower() in _TRUE + _FALSE
            ):
                found, expected = (f"{value!r}", "true or false") if name in _FLAGS else ("no text", "a text")
                raise _refused(f"{name} is {found}", expected)
        return cls(**{name: _flag(value) if name in _FLAGS else value for name, value in values.items()})  # type: ignore[arg-type]

    @classmethod
    def parse(cls, pairs: Iterable[str]) -> Self:
        """Return the options of texts ``KEY=VALUE``; errors do not show values."""
        values: dict[str, object] = {}
        for pair in pairs:
            name, equals, value = pair.partition("=")
            if not equals:
                raise _refused("a text without =", "KEY=VALUE")
            values[name.strip().lower().replace("-", "_")] = value
        return cls.of(values)

    def __repr__(self) -> str:
        """Return the names of the options that are given, without their values."""
        return f"{type(self).__name__}({', '.join(self._given())})"

    def _given(self) -> list[str]:
        return [field.name for field in fields(self) if getattr(self, field.name) != field.default]

    @property
    def s3_endpoint(self) -> str | None:
        """Address of an S3-compatible server, None for Amazon's."""
        return self.endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")

    @property
    def is_plain(self) -> bool:
        """Whether the endpoint is given, and is not encrypted."""
        return (self.endpoint or "").startswith("http://")

    @property
    def s3_path_style(self) -> bool:
        """Whether the bucket of S3 is part of the path instead of the host name."""
        return self.s3_endpoint is not None if self.path_style is None else self.path_style

    def for_obstore(self, scheme: str) -> dict[str, Any]:
        """Return the keyword arguments of obstore's clients for a scheme such as ``"s3"``."""
        endpoint = self.s3_endpoint if scheme == "s3" else self.endpoint
        names: dict[str, object] = {"skip_signature": self.anonymous or None}
        if scheme == "s3":
            names |= {"endpoint": endpoint, "region": self.region}
            names |= {name: getattr(self, name) for name in ("access_key_id", "secret_access_key", "session_token")}
            if self.path_style is not None:
                names["virtual_hosted_style_request"] = not self.path_style
        elif scheme == "gs":
            names |= {"base_url": endpoint, "service_account": self.service_account}
        elif scheme == "az":
            names |= {"endpoint": endpoint, "account_name": self.account, "account_key": self.account_key}
            names |= {"sas_token": self.sas_token}
        config = {name: value for name, value in names.items() if value is not None}
        plain = (endpoint or "").startswith("http://")
        return {**({"config": config} if config else {}), **({"client_options": {"allow_http": True}} if plain else {})}


class ObjectUrl(str):
    """URL of a place in an object store, with the options of reaching it; to all else it is its text.

    Attributes
    ----------
    options : StorageOptions
        They are pickled with the URL, and are part of neither its comparison nor its representation.

    Examples
    --------
    >>> url = ObjectUrl("s3://bucket/village", StorageOptions(region="eu-central-1"))
    >>> url, url == "s3://bucket/village", str(url).options.region
    ('s3://bucket/village', True, 'eu-central-1')
    """

    options: StorageOptions

    def __new__(cls, url: str, options: StorageOptions | None = None) -> Self:
        """Create the URL; without options those of the given URL are kept."""
        made = super().__new__(cls, url)
        made.options = options or options_of(url)
        return made

    def __str__(self) -> str:
        """Return the URL itself, with its options."""
        return self

    def __fspath__(self) -> str:
        """Return the URL itself, so that a list of URLs is one of names and not of texts."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how the URL is pickled, with its options."""
        return type(self), (self[:], self.options)


class ObjectPath(PosixPath):
    """URL of a prefix in an object store, for the places where a network is named by a path.

    It has the names and parents of a path; nothing on it can be opened as a file.

    Attributes
    ----------
    options : StorageOptions
        How the store is reached; pickled with the path.

    Examples
    --------
    >>> url = ObjectPath("s3://bucket/networks/village")
    >>> str(url), url.name, str(url.parent)
    ('s3://bucket/networks/village', 'village', 's3://bucket/networks')
    """

    options: StorageOptions = StorageOptions()

    def with_storage_options(self, options: StorageOptions) -> Self:
        """Return the same path with options."""
        path = type(self)(self)
        path.options = options
        return path

    def __str__(self) -> str:
        """Return the URL, as an `ObjectUrl`."""
        scheme, _, rest = super().__str__().partition(":")
        return ObjectUrl(f"{scheme}://{rest.lstrip('/')}", self.options)

    def __fspath__(self) -> str:
        """Return the URL, as an `ObjectUrl`."""
        return str(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how the path is pickled, with its options."""
        return object_path, (str(self),)

    def __truediv__(self, name: str | os.PathLike[str]) -> Self:
        """Return the path of a name below this one."""
        return super().__truediv__(name)._with(self)

    @property
    def parent(self) -> Self:
        """The path above."""
        return super().parent._with(self)

    def with_name(self, name: str) -> Self:
        """Return the path of another name beside this one."""
        return super().with_name(name)._with(self)

    def _with(self, other: ObjectPath) -> Self:
        self.options = other.options
        return self

    def resolve(self, strict: bool = False) -> Self:
        """Return the URL itself."""
        return self


def object_path(url: str, options: StorageOptions | None = None) -> ObjectPath:
    """Return the path of a URL, with the options given or else those of the URL."""
    return ObjectPath(url).with_storage_options(options or options_of(url))


def options_of(place: str | os.PathLike[str]) -> StorageOptions:
    """Return the options that a place carries; the default ones of a place without."""
    return place.options if isinstance(place, ObjectUrl | ObjectPath) else StorageOptions()


def is_object_store(path: str | os.PathLike[str]) -> bool:
    """Return whether a path names an object store.

    Examples
    --------
    >>> is_object_store("s3://bucket/village"), is_object_store(PosixPath("s3://bucket/village")), is_object_store("/a")
    (True, True, False)
    """
    return _OBJECT_STORE.match(str(path)) is not None


def is_in_memory(path: str | os.PathLike[str]) -> bool:
    """Return whether a path names a place in the memory of a process.

    Examples
    --------
    >>> is_in_memory("memory://village"), is_in_memory("s3://bucket/village")
    (True, False)
    """
    return str(path).startswith(f"{MEMORY}:/")


def absolute_place(path: str | os.PathLike[str]) -> Path:
    """Return where a store is for processes in any working directory: absolute, with links followed.

    To be called once, where a path is given. What names an object store becomes an `ObjectPath`; ``~`` and ``file://``
    are resolved (`giaann_dask.local_files`).

    Raises
    ------
    OptionError
        If the path is relative to a working directory that does not exist any more, holds a NUL character or a name
        that is too long, or links lead in a circle.

    Examples
    --------
    >>> absolute_place("/tmp/../networks/village")
    PosixPath('/networks/village')
    >>> print(absolute_place(Path("s3://bucket/village")))
    s3://bucket/village
    """
    if is_object_store(path):
        return path if isinstance(path, ObjectPath) else object_path(str(path))
    if path == "":
        raise OptionError("the path is ''", "a folder", "give another path")
    try:
        found = os.path.realpath(local_name(path))
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            os.stat(found)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OptionError(
            f"the path {str(path)!r} leads nowhere ({reason})", "a folder", "give another path"
        ) from error
    return Path(found)


@names_keywords
def place(url: str | os.PathLike[str], storage_options: Mapping[str, object]) -> ObjectUrl:
    """Return the URL of a network, a corpus or text with the options of reaching it, for every function that takes one.

    Parameters
    ----------
    url : str or path
        ``s3://BUCKET/PREFIX``, ``gs://BUCKET/PREFIX`` or ``az://CONTAINER/PREFIX``.
    storage_options : mapping of str to str or bool
        See `StorageOptions`; those that are left out come from the environment.

    Raises
    ------
    OptionError
        If an option is unknown or cannot be used, or the place is a folder.

    Examples
    --------
    >>> place("s3://bucket/village", {"endpoint": "http://127.0.0.1:9000", "region": "us-east-1"})
    's3://bucket/village'
    """
    name, options = os.fspath(url), StorageOptions.of(storage_options)
    if not is_object_store(name):
        raise _refused(f"the folder {name!r} has none", "a place in an object store, such as s3://BUCKET/PREFIX")
    return ObjectUrl(name, options)


def with_storage_options(
    name: str | os.PathLike[str], storage_options: Mapping[str, object] | None
) -> str | os.PathLike[str]:
    """Return a name of a place with options, if it is a URL and there are some; any other name as it is."""
    if not storage_options:
        return name
    options = StorageOptions.of(storage_options)
    return ObjectUrl(os.fspath(name), options) if is_object_store(os.fspath(name)) else name


def _flag(value: object) -> bool:
    return value if isinstance(value, bool) else str(value).lower() in _TRUE


def _refused(problem: str, expected: str) -> OptionError:
    return OptionError(f"storage_options: {problem}", expected, "correct it")
