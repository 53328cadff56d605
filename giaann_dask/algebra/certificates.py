"""Define the certificate of a removal, and store it beside the network until it is written to its own file.

After a purge the store has no record of what was removed. So the certificate is written before the purge, and a
command that is run again after an interruption finds it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from giaann_dask.errors import StoreDamagedError
from giaann_dask.store.beside import DocumentBeside
from giaann_dask.text.ledger import copies_of

_SUFFIX = ".certificates.json"
# Fields that are tuples here and lists in JSON.
_LISTS = ("parts", "purged", "caches", "elsewhere")


@dataclass(frozen=True)
class RemovalReport:
    """Certificate of a removal.

    Attributes
    ----------
    network : str
        Folder of the network.
    commit_before, commit : str
        Identities of the last commit with the documents, and of the one without.
    specification : mapping of str to Any
        Rules of the network, those of regions left out.
    ever_pos, tokenizer, tagger : str
        Identities of the ever-POS lexicon and of the tokenizer, empty for words, and what tagged the documents, empty
        where a network does without tags.
    parts : tuple of str
        Identities of the removed parts of text in hexadecimal digits (`giaann_dask.text.ledger.identify`).
    sequences, trained, tokens : int
        What was subtracted.
    connections_before, connections : int
        Connections of the network before and after.
    purged_commits : int
        Earlier commits that were removed with their files.
    purged : tuple of str
        Their identities.
    caches : tuple of mapping
        Removed tables of these commits (profile ``contexts``): ``host``, ``folder``, and number of commits. Other
        machines that opened them may still have some.
    elsewhere : tuple of str
        Known copies and files made from the network that may still contain the documents: networks that were kept
        beside it, reports and copies of scheduled jobs, and the sources of the text, if the network has an index.
    digest_removed, digest : str
        SHA-256 of the export of the documents' own network, and of the network without them. Who has the text can
        recompute the first, and who has all other text the second, by training and ``giaann-dask digest``. Empty where
        they have not been computed.
    """

    network: str
    commit_before: str
    commit: str
    specification: Mapping[str, Any]
    ever_pos: str
    tokenizer: str
    tagger: str
    parts: tuple[str, ...]
    sequences: int
    trained: int
    tokens: int
    connections_before: int
    connections: int
    purged_commits: int
    digest_removed: str
    digest: str
    purged: tuple[str, ...] = ()
    caches: tuple[Mapping[str, Any], ...] = ()
    elsewhere: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        lists = {name: list(getattr(self, name)) for name in _LISTS}
        return {**vars(self), "specification": dict(self.specification), **lists}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> RemovalReport:
        """Rebuild a report from such values."""
        return cls(**{**stored, **{name: tuple(stored[name]) for name in _LISTS}})


class KeptCertificates:
    """Certificates of purges that have begun, beside a network that this process has the right to write.

    Parameters
    ----------
    path : Path
        Place of the network.

    Raises
    ------
    StoreDamagedError
        If what is there is something else.
    """

    def __init__(self, path: Path) -> None:
        self._document = DocumentBeside(path, _SUFFIX)
        stored = self._document.read() or []
        try:
            self._reports = [RemovalReport.from_dict(each) for each in stored]
        except (KeyError, TypeError) as error:
            raise StoreDamagedError(
                f"{self._document.name} has no certificates",
                "what giaann-dask forget has written",
                "move the file away",
            ) from error

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self._reports)

    def find(self, parts: Collection[str]) -> RemovalReport | None:
        """Return the last certificate of the removal of these very parts of text, with all copies of each."""
        for each in reversed(self._reports):
            held = {bytes.fromhex(part) for part in each.parts}
            if held == {copy for part in parts for copy in copies_of(bytes.fromhex(part), held)}:
                return each
        return None

    def keep(self, report: RemovalReport) -> None:
        """Write a certificate; raise an error, as `DocumentBeside.write` does, where it cannot be."""
        self._write([*self._reports, report])

    def drop(self, report: RemovalReport) -> None:
        """Remove a certificate that has been written elsewhere."""
        rest = [each for each in self._reports if each.commit != report.commit]
        if len(rest) < len(self._reports):
            self._write(rest)

    def _write(self, reports: list[RemovalReport]) -> None:
        if reports:
            self._document.write([each.as_dict() for each in reports])
        else:
            self._document.remove()
        self._reports = reports
