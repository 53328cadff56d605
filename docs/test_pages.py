"""What must hold of all pages: no block escapes being tested, and no page loads anything from elsewhere."""

from __future__ import annotations

import itertools
import pkgutil
import re
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType, SimpleNamespace

import click
import pytest
from page_blocks import FOLDER, MARK, BlockParser
from repository_links import on_config, web_address
from sybil import Document
from sybil.parsers.markdown.lexers import RawFencedCodeBlockLexer

import giaann_dask as gd
from giaann_dask.cli import giaann_dask as command_line

PAGES = sorted(Path(__file__).parent.rglob("*.md"))
ROOT = Path(__file__).parent.parent
SITE = ROOT / "build" / "docs"
URLS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
ANYTHING = RawFencedCodeBlockLexer(re.compile(r"[^\n]*\n"))


def evaluated(text: str, folder: Path) -> list[str | None]:
    """Return what is wrong with each block of a page."""
    document = Document(text, str(folder / "page.md"))
    document.namespace[FOLDER] = str(folder)
    found = []
    for region in BlockParser()(document):
        document.add(region)
    for example in document.examples():
        assert example.region.evaluator is not None
        found.append(example.region.evaluator(example))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_fence_is_a_test(page: Path) -> None:
    document = Document(page.read_text(encoding="utf-8"), str(page))
    fences = list(ANYTHING(document))
    tested = {region.start for region in BlockParser()(document)}
    # Each example of a Python block with >>> is a test of its own, somewhere in the block.
    for region in fences:
        assert any(region.start <= start < region.end for start in tested), document.text[region.start : region.end]
    assert fences or "```" not in document.text


def test_no_merge_was_left_half_done_and_every_relative_link_leads_to_a_file() -> None:
    for page in [*PAGES, *ROOT.glob("*.md")]:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"^(<{7} |>{7} |={7}$)", text, re.MULTILINE), page
        links = re.findall(r"\]\((?!\w+:)([^)#\s]+)", text)
        assert [link for link in links if not target_of(page, link).exists()] == [], page


def target_of(page: Path, link: str) -> Path:
    """Return the file that a relative link leads to: of a page of the gallery, the notebook it is made of."""
    target = page.parent / link
    made_of = ROOT / "notebooks" / f"{target.stem}.ipynb"
    return made_of if target.parent.name == "gallery" and target.stem != "index" else target


def test_the_architecture_page_follows_a_sentence_and_a_prompt_through_functions_that_exist() -> None:
    page = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    tables = re.split(r"^## ", page, flags=re.MULTILINE)
    for heading, most in (("A sentence, from file to commit", 15), ("A prompt, to its next token", 12)):
        (section,) = [table for table in tables if table.startswith(heading)]
        steps = re.findall(r"^\| \d+ \|.*`(giaann_dask\.[\w.]+)` \|$", section, re.MULTILINE)
        assert 0 < len(steps) <= most
        assert len(steps) == len(re.findall(r"^\| \d+ \|", section, re.MULTILINE)), "each step names its function"
        assert all(callable(pkgutil.resolve_name(step)) for step in steps)


def documented(*pages: str) -> dict[str, object]:
    """Return the objects that pages of the reference describe, by name."""
    found: dict[str, object] = {}
    for page in pages:
        text = (ROOT / "docs" / "reference" / page).read_text(encoding="utf-8")
        for path in re.findall(r"^::: (giaann_dask\S+)$", text, re.MULTILINE):
            described = pkgutil.resolve_name(path)
            found |= vars(described) if isinstance(described, ModuleType) else {path.rpartition(".")[2]: described}
    return found


def test_the_reference_describes_every_exported_name_and_the_very_object() -> None:
    pages = (ROOT / "docs" / "reference" / "python").glob("*.md")
    described = documented("errors.md", "options.md", *(f"python/{page.name}" for page in pages))
    assert sorted(set(gd.__all__) - set(described)) == []
    assert [name for name in gd.__all__ if described[name] is not getattr(gd, name)] == []
    assert set(documented("options.md")) <= set(gd.__all__)


def options_by_command(command: click.Command, path: str = "") -> dict[str, set[str]]:
    """Return the options of every command that is no group, by what is typed for it."""
    if isinstance(command, click.Group):
        below = [options_by_command(inner, f"{path} {name}".strip()) for name, inner in command.commands.items()]
        return {name: options for each in below for name, options in each.items()}
    names = [(*p.opts, *p.secondary_opts, *getattr(p, "aliases", ())) for p in command.params]
    return {path: {"--help", "-h", *itertools.chain(*names)}}


@pytest.mark.parametrize("page", [*PAGES, *ROOT.glob("*.md")], ids=lambda page: page.name)
def test_commands_options_and_names_that_a_page_names_are_there(page: Path) -> None:
    text, known = page.read_text(encoding="utf-8").replace("\\\n", " "), options_by_command(command_line)
    # A command in a block of its own line, or between backticks.
    for typed in re.findall(r"(?:^(?:\$ )?|`)giaann-dask ([a-z][^`\n|;&>]*)", text, re.MULTILINE):
        name = next((name for name in known if f"{typed} ".startswith(f"{name} ")), None)
        assert name or isinstance(command_line.commands.get(typed.split()[0]), click.Group), typed
        given = set(re.findall(r"(?<!\S)--[a-z][a-z-]+", typed))
        assert not name or given <= known[name], typed
    public = {name for name in re.findall(r"\bgd\.(\w+)", text) if name != "NAME"}
    assert sorted(name for name in public if not hasattr(gd, name)) == []
    for dotted in re.findall(r"`(giaann_dask(?:\.\w+)+)", text):
        assert pkgutil.resolve_name(dotted), dotted


def test_the_glossary_gives_a_word_one_meaning() -> None:
    glossary = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    terms = re.findall(r"^\| ([^|]+?) \|", glossary, re.MULTILINE)
    words = [word for term in terms for word in term.split(", ")]
    assert sorted(word for word in words if words.count(word) > 1) == []


def test_an_unmarked_block_in_an_unknown_language_fails(tmp_path: Path) -> None:
    assert evaluated("```ruby\nputs 1\n```\n", tmp_path) == [
        "a block of language 'ruby' is not tested: name one that is, or text"
    ]
    assert evaluated("```\nputs 1\n```\n", tmp_path) == ["a block without a language is not tested: name one, or text"]


@pytest.mark.parametrize("language", ["sh", "console"])
def test_a_command_that_fails_is_told(language: str, tmp_path: Path) -> None:
    (wrong,) = evaluated(f"```{language}\n$ false\n```\n".replace("$ ", "$ " * (language == "console")), tmp_path)
    assert wrong is not None
    assert "exit code 1" in wrong


def test_shown_output_is_compared(tmp_path: Path) -> None:
    text = "```console\n$ echo one; echo two\n{}\ntwo\n```\n"
    assert evaluated(text.format("one"), tmp_path) == [None]
    (wrong,) = evaluated(text.format("three"), tmp_path)
    assert wrong is not None


def test_a_marked_block_is_parsed_and_not_run(tmp_path: Path) -> None:
    mark = "<!-- not run: would make a file -->\n"
    assert evaluated(mark + "```sh\ntouch made\n```\n", tmp_path) == [None]
    assert not (tmp_path / "made").exists()
    (wrong,) = evaluated(mark + "```sh\nif then\n```\n", tmp_path)
    assert wrong is not None
    with pytest.raises(SyntaxError):
        evaluated(mark + "```python\n1 +\n```\n", tmp_path)


def test_a_mark_has_a_reason() -> None:
    marks = [
        line for page in PAGES for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("<!-- ")
    ]
    assert marks
    assert [line for line in marks if not MARK.search(line)] == []


BADGE = "*not run by us*{ .not-run }"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_nobody_has_run_carries_a_badge(page: Path) -> None:
    """A block that needs what we do not have stands below the badge, in its section or at the head of its page."""
    text = page.read_text(encoding="utf-8")
    head, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    needs = re.compile(r"<!-- not run: needs (a |an |conda|Docker|machines)")
    assert not needs.search(head) or BADGE in head
    assert [each for each in sections if needs.search(each) and BADGE not in head + each] == []


def test_the_changelog_has_releases_of_known_categories() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    order = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
    releases = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    assert releases
    for release in releases:
        assert re.match(r"\d+\.\d+\.\d+ \((unreleased|\d{4}-\d\d-\d\d)\)\n", release)
        found = re.findall(r"^### (.+)$", release, re.MULTILINE)
        assert found == [name for name in order if name in found], "each once, in this order"
        assert not re.search(r"^- ", release.partition("### ")[0], re.MULTILINE), "each change has a category"


def test_links_to_the_repository_are_those_of_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    for remote, address in {
        "git@host.org:some/project.git": "https://host.org/some/project",
        "https://token@host.org/some/project": "https://host.org/some/project",
        "ssh://git@host.org:22/some/project.git": "https://host.org/some/project",
        "/srv/git/project.git": None,
        "": None,
    }.items():
        assert web_address(remote) == address
        monkeypatch.setattr("repository_links.remote", lambda remote=remote: remote)
        config = SimpleNamespace(edit_uri=None, extra={})
        on_config(config)
        linked = URLS.get("Source") or address
        assert config.edit_uri == (linked and f"{linked}/edit/main/docs/")
        assert [each["link"] for each in config.extra.get("social", [])] == [linked] * bool(linked)


class Loads(HTMLParser):
    """Collects what a page makes a browser load."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if tag == "link" and named.get("rel") not in ("canonical", "prev", "next"):
            self.found.append(named.get("href") or "")
        if tag in ("script", "img", "iframe", "source", "video", "audio", "embed"):
            self.found.append(named.get("src") or "")


def test_no_script_is_published() -> None:
    listed = re.search(r"^exclude_docs: \|\n((?:  .*\n)+)", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.M)
    assert listed
    excluded = [pattern.strip() for pattern in listed[1].splitlines()]
    scripts = list(Path(__file__).parent.rglob("*.py"))
    assert scripts
    assert [path for path in scripts if not any(path.match(pattern) for pattern in excluded)] == []


def test_no_page_loads_anything_from_elsewhere() -> None:
    if not SITE.is_dir():
        pytest.skip("the site has not been built: make docs")
    pages = list(SITE.rglob("*.html"))
    assert len(pages) > len(PAGES)  # and the page that says that there is none
    for page in pages:
        loads = Loads()
        loads.feed(page.read_text(encoding="utf-8"))
        assert loads.found
        assert [address for address in loads.found if re.match(r"(\w+:)?//", address)] == [], page
    for sheet in SITE.rglob("*.css"):
        assert not re.search(r"(url\(|@import\s*)[\"']?(https?:)?//", sheet.read_text(encoding="utf-8")), sheet
