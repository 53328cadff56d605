"""Validate the options of packing a bundle."""

from __future__ import annotations

from dataclasses import dataclass

from giaann_dask.errors import require_option
from giaann_dask.keywords import names_keywords


@names_keywords
@dataclass(frozen=True, kw_only=True)
class PackOptions:
    """Options of packing text.

    Parameters
    ----------
    offer_text : bool
        Whether the bundle contains the text, so that it can be audited without requesting it.
    group_characters : int
        Approximate number of characters that are counted together, in whole parts. Audits count the groups of the
        sampled sequences: with smaller groups that is less text, but the bundle is larger.

    Raises
    ------
    OptionError
        If a group has no characters.
    """

    offer_text: bool = False
    group_characters: int = 262_144

    def __post_init__(self) -> None:
        require_option(self.group_characters >= 1, "group_characters", self.group_characters, "1 or more")
