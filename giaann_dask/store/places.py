"""Locate networks: folders, and prefixes in the buckets of object stores.

Icechunk reads and writes the networks; obstore handles the single objects beside them. At ``memory://NAME`` both are in
the memory of this process.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from giaann_dask.errors import OptionError, StoreExistsError, StoreMissingError, StoreUnreachableError, StoreWriteError
from giaann_dask.local_files import is_there, local_name
from giaann_dask.object_urls import AZURE_ACCOUNT, MEMORY, is_object_store, options_of
from giaann_dask.storage import (
    bytes_on_disk,
    first_line,
    is_unreachable,
    reading,
    unreachable,
    writing,
)
from giaann_dask.store.icechunk_library import (
    CONCURRENT,
    create_repository,
    icechunk,
    is_second_version,
    use_icechunk,
)

if TYPE_CHECKING:
    from obstore.store import MemoryStore, ObjectStore

SCHEMES = ("s3", "gs", "az", MEMORY)
"""Schemes of the URLs of places that hold networks and corpora."""
_NO_REGION = "region must be set"
_places: dict[str, MemoryPlace] = {}
_making = threading.Lock()
# A worker that was writing when a call was interrupted makes a folder anew: it is removed until it stays gone so long.
_QUIET_S, _LONGEST_S = 0.5, 10.0
# Where clients look for credentials that no options give.
_VARIABLES = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}


class StorePlace:
    """Location of a network: a folder, a prefix in a bucket of S3, Google Cloud Storage or Azure, or memory.

    Parameters
    ----------
    name : str
        Path of a folder, ``s3://BUCKET/PREFIX``, ``gs://BUCKET/PREFIX``, ``az://CONTAINER/PREFIX`` or
        ``memory://NAME``, which is in the memory of this process. Credentials,
        region and endpoint that a `giaann_dask.object_urls.ObjectUrl` does not carry come from the environment
        (``AWS_ACCESS_KEY_ID``, ``AWS_REGION``, ``AWS_ENDPOINT_URL``, ``GOOGLE_APPLICATION_CREDENTIALS``,
        ``AZURE_STORAGE_ACCOUNT_NAME`` and so on).

    Raises
    ------
    OptionError
        If there is no bucket or prefix, or the scheme is unknown.

    Examples
    --------
    >>> str(StorePlace("s3://bucket/village"))
    's3://bucket/village'
    """

    def __init__(self, name: str) -> None:
        self._name = name = local_name(name)
        self._options = options_of(name)
        self._scheme, separator, rest = name.partition("://")
        self._bucket, _, self._prefix = rest.partition("/") if separator else ("", "", "")
        if self._scheme == MEMORY:
            self._prefix = rest
        if separator and (self._scheme not in SCHEMES or not self._bucket or not self.key):
            raise OptionError(
                f"the place {name!r}",
                "a folder, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or memory://NAME",
                "name one of these",
            )

    def __str__(self) -> str:
        """Return the name, with the options of an `giaann_dask.object_urls.ObjectUrl`."""
        return self._name

    @property
    def folder(self) -> Path | None:
        """The folder, None for a bucket."""
        return None if self._bucket else Path(self._name)

    def storage(self) -> icechunk.Storage:
        """Return Icechunk's storage of the place."""
        use_icechunk()
        if self.folder is not None:
            return icechunk.local_filesystem_storage(str(self.folder))
        if self._scheme == MEMORY:
            return memory_place(self.key).storage
        if self._scheme in ("gs", "az"):
            storage = self._google_storage() if self._scheme == "gs" else self._azure_storage()
            # Where credentials cannot be read, Icechunk panics at the first request; obstore raises an error here.
            with suppress(ImportError):
                self.objects()
            return storage
        given, endpoint = self._options, self._options.s3_endpoint
        return icechunk.s3_storage(
            bucket=self._bucket,
            prefix=self.key,
            region=given.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"),
            endpoint_url=endpoint,
            allow_http=(endpoint or "").startswith("http://"),
            force_path_style=given.s3_path_style,
            access_key_id=given.access_key_id,
            secret_access_key=given.secret_access_key,
            session_token=given.session_token,
            anonymous=given.anonymous or None,
            from_env=not given.anonymous and given.access_key_id is None,
        )

    def _google_storage(self) -> icechunk.Storage:
        given = self._options
        config = {} if given.endpoint is None else {"base_url": given.endpoint}
        return icechunk.gcs_storage(
            bucket=self._bucket,
            prefix=self.key,
            service_account_file=given.service_account,
            anonymous=given.anonymous or None,
            from_env=not given.anonymous and given.service_account is None,
            config=config,
        )

    def _azure_storage(self) -> icechunk.Storage:
        given = self._options
        flags = {"endpoint": given.endpoint, "skip_signature": "true" if given.anonymous else None}
        # Unlike its other clients, Icechunk's one of Azure refuses such an endpoint by itself.
        flags["allow_http"] = "true" if given.is_plain else None
        return icechunk.azure_storage(
            account=given.account or _require_variable(AZURE_ACCOUNT, self),
            container=self._bucket,
            prefix=self.key,
            access_key=given.account_key,
            sas_token=given.sas_token,
            # Where requests are not signed, too: Icechunk knows no other way to give none.
            from_env=not (given.account_key or given.sas_token),
            config={name: value for name, value in flags.items() if value is not None},
        )

    def objects(self) -> ObjectStore:
        """Return the client of the bucket, for single objects.

        Raises
        ------
        ImportError
            If obstore is not installed.
        OptionError
            If no client can be made of the options and the environment.
        """
        if self._scheme == MEMORY:
            return memory_place(self.key).objects
        import obstore.store
        from obstore.exceptions import BaseError

        try:
            return obstore.store.from_url(f"{self._scheme}://{self._bucket}", **self._options.for_obstore(self._scheme))
        except BaseError as error:
            raise OptionError(
                f"the credentials for {self} ({first_line(error)})",
                "readable credentials",
                f"correct {_VARIABLES[self._scheme]}, or storage_options",
            ) from error

    @property
    def key(self) -> str:
        """Prefix of all keys of the network in the bucket, without a slash at its end."""
        return self._prefix.strip("/")

    def entries(self) -> Iterator[tuple[list[str], int]]:
        """Yield the keys of a batch of objects of the network, and their bytes together."""
        with answering(f"network {self}"):
            for batch in self.objects().list(f"{self.key}/"):
                yield [each["path"] for each in batch], sum(int(each["size"]) for each in batch)

    def size(self) -> int:
        """Return the bytes of all files or objects."""
        if self.folder is not None:
            return bytes_on_disk(self.folder)
        if self._scheme == MEMORY:
            # What Icechunk has in memory cannot be listed; elsewhere a listing takes a request for a thousand objects,
            # and Icechunk's statistics one for each snapshot and manifest, and leave out what no commit needs.
            stored = self.repository().chunk_storage_stats()
            return int(stored.native_bytes + stored.inlined_bytes)
        return sum(nbytes for _, nbytes in self.entries())

    def remove(self) -> None:
        """Remove all objects below the prefix of a bucket, or what is in memory."""
        if self._scheme == MEMORY:
            memory_place(self.key).clear()
        for keys, _ in self.entries():
            self.objects().delete(keys)

    def exists(self) -> bool:
        """Return whether a network exists, perhaps an empty one."""
        if self.folder is not None and not is_there(self.folder / "refs"):
            return False
        try:
            there = icechunk.Repository.exists(self.storage())
        except icechunk.IcechunkError as error:
            if self.folder is not None:
                raise
            if _NO_REGION in str(error).lower():
                raise OptionError(
                    f"{self} without a region",
                    "a region",
                    "set AWS_REGION, or region in storage_options",
                ) from error
            if is_unreachable(error):
                raise unreachable(f"network {self}", error) from error
            raise self._unreadable() from error
        if not there and self.folder is None and self._scheme != MEMORY and is_second_version():
            self._require_bucket()
        return there

    def _require_bucket(self) -> None:
        """Raise an error if there is no bucket; Icechunk 2 takes a missing one for an empty one."""
        try:
            from obstore.exceptions import BaseError
        except ImportError:
            return
        try:
            next(iter(self.objects().list(f"{self.key}/", chunk_size=1)), None)
        except BaseError as error:
            raise self._unreadable() from error

    def _unreadable(self) -> StoreMissingError:
        return StoreMissingError(
            f"the bucket of {self} cannot be read",
            "an existing bucket, and permission to read it",
            f"check the name and {_VARIABLES[self._scheme]}, or storage_options",
        )

    def repository(self, *, make: bool = False, config: icechunk.RepositoryConfig | None = None) -> icechunk.Repository:
        """Return the repository.

        Parameters
        ----------
        make : bool
            Whether to make an empty one where there is none.
        config : icechunk.RepositoryConfig, optional
            Options of Icechunk; of a repository that is there those of `remembering` by default.

        Raises
        ------
        StoreMissingError
            If there is none and none is to be made.
        StoreExistsError
            If something else is in the folder.
        """
        if self.exists():
            with reading(f"network {self}"):
                return icechunk.Repository.open(self.storage(), config=config or remembering())
        if not make:
            raise StoreMissingError(f"there is no network at {self}", "a network or a copy of one", "check the name")
        folder = self.folder
        if folder is not None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise StoreExistsError(
                f"{folder} exists and is not a network", "a new path", "name a path that does not exist"
            )
        with writing(f"network {self}"):
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
            return create_repository(self.storage(), config)


class MemoryPlace:
    """Storage of a repository in the memory of this process, and the objects beside it.

    Icechunk's memory storage cannot be pickled, so each place is opened once in a process.

    Attributes
    ----------
    storage : icechunk.Storage
        Of the repository.
    """

    def __init__(self) -> None:
        self.storage: icechunk.Storage = icechunk.in_memory_storage()

    @cached_property
    def objects(self) -> MemoryStore:
        """Objects beside the repository, such as its lease."""
        from obstore.store import MemoryStore

        return MemoryStore()

    def clear(self) -> None:
        """Remove the repository; the objects beside it stay."""
        self.storage = icechunk.in_memory_storage()


def memory_place(name: str) -> MemoryPlace:
    """Return the place of a name in this process; it is made by the first call, and stays until the process ends."""
    with _making:
        if name not in _places:
            _places[name] = MemoryPlace()
        return _places[name]


def remembering(**most: int) -> icechunk.RepositoryConfig:
    """Return Icechunk's options for a repository of which so much is remembered, as Icechunk names it."""
    # Icechunk would load manifests of coordinates beforehand, and compile patterns of their names at each opening: it
    # took a third of the time of small repositories. No array here has such a name.
    preload = icechunk.ManifestPreloadConfig(preload_if=icechunk.ManifestPreloadCondition.false())
    return icechunk.RepositoryConfig(
        caching=icechunk.CachingConfig(**most),
        manifest=icechunk.ManifestConfig(preload=preload),
        get_partial_values_concurrency=CONCURRENT,
    )


@contextmanager
def answering(what: str = "the network") -> Iterator[None]:
    """Translate errors of an object store that does not respond; other errors pass unchanged.

    Raises
    ------
    StoreUnreachableError
        If it does not.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, StoreWriteError | StoreUnreachableError) or not is_unreachable(error):
            raise
        raise unreachable(what, error) from error


@contextmanager
def scratch_place(path: Path, purpose: str, *, held: bool = False) -> Iterator[Path]:
    """Yield a place beside a network that all who see the network see, and remove what is there at the end.

    A folder has a random name, is made here and belongs to this user alone, so that nobody can name another one.

    Parameters
    ----------
    path : Path
        Place of the network.
    purpose : str
        Part of the name.
    held : bool
        Whether the caller has the right to write the network: what a call that was killed has left is removed, too.
    """
    place, made = place_beside(path, purpose), list[Path]()
    if not is_object_store(path):
        for left in _left_beside(path, purpose) if held else ():
            remove_place(left)
        made = [folder for folder in place.parents if not folder.exists()]
        with writing(f"network {place}"):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.mkdir(mode=0o700)
    elif held:
        # Always the same one, so that what is left is found without a list of the bucket.
        number = hashlib.blake2b(f"{path.name}.{purpose}".encode(), digest_size=4).hexdigest()
        place = path.parent / f"{path.name}.{purpose}-{number}"
        remove_place(place)
    try:
        yield place
    except BaseException:
        _remove_written(place)
        raise
    finally:
        try:
            remove_place(place)
        except KeyboardInterrupt:
            remove_place(place)
            raise
        with suppress(OSError):
            for folder in made:
                folder.rmdir()


def _left_beside(path: Path, purpose: str) -> list[Path]:
    """Return the folders that calls of this user that were killed have left beside a network."""
    named = re.compile(re.escape(f"{path.name}.{purpose}-") + "[0-9a-f]{8}")
    found = []
    with suppress(OSError):
        for each in path.parent.iterdir():
            if named.fullmatch(each.name) and stat.S_ISDIR((state := each.lstat()).st_mode):
                found += [each] if state.st_uid == os.geteuid() else []
    return found


def _remove_written(place: Path) -> None:
    """Remove a place to which workers may still write, until they write no more."""
    begun = changed = time.monotonic()
    while (now := time.monotonic()) < min(changed + _QUIET_S, begun + _LONGEST_S):
        if is_object_store(place):
            remove_place(place)
        elif os.path.lexists(place):
            changed = now
            remove_place(place)
        time.sleep(_QUIET_S / 10)


def place_beside(path: Path, purpose: str) -> Path:
    """Return a new place beside a network, which all who see the network see."""
    return path.parent / f"{path.name}.{purpose}-{secrets.token_hex(4)}"


def remove_place(path: Path) -> None:
    """Remove what is at a place, as far as it can be removed."""
    if not is_object_store(path):
        shutil.rmtree(path, ignore_errors=True)
        return
    with suppress(Exception):
        StorePlace(str(path)).remove()


def _require_variable(name: str, place: StorePlace) -> str:
    """Return an environment variable that a place needs."""
    value = os.environ.get(name)
    if not value:
        raise OptionError(f"{place} without an account", "its name", f"set {name}, or account in storage_options")
    return value
