"""Read the fenced blocks of a page of Markdown."""

from __future__ import annotations


def fenced(text: str) -> list[tuple[str, str]]:
    """Return language and content of every fenced block; a fence that closes one opens none."""
    found: list[tuple[str, str]] = []
    language, held = None, []
    for line in text.splitlines():
        if language is None and line.startswith("```"):
            language, held = line.removeprefix("```"), []
        elif language is not None and line == "```":
            found.append((language, "\n".join(held)))
            language = None
        elif language is not None:
            held.append(line)
    return found
