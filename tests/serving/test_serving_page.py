"""The page in a real browser, headless, with a scripted engine or a small network behind a real server."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.browsers import NEEDS_BROWSER, WIDTHS, errors, keep_picture, open_browser, overlapping, set_width
from support.serving_engines import DrawingNetwork, ScriptedEngine, models_of

import giaann_dask as gd
from giaann_dask.serving.app import build_app
from giaann_dask.serving.server import address_of, bind, serve
from giaann_dask.serving.serving_options import Limits, ServingOptions

pytest.importorskip("selenium.webdriver", reason="needs selenium (extra dev)")
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

pytestmark = NEEDS_BROWSER


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with open_browser(tmp_path_factory.mktemp("profile"), 1000) as opened:
        yield opened


@pytest.fixture
def browser(driver: Any) -> Any:
    set_width(driver, 1000)
    return driver


@contextmanager
def serving(*engines: ScriptedEngine, **fields: Any) -> Iterator[str]:
    options, stop, ready = ServingOptions(port=0, drain_s=5, **fields), threading.Event(), threading.Event()
    served = models_of(*engines)
    with bind(options) as bound, ExitStack() as opened:
        for engine in engines:
            opened.enter_context(closing(engine))
        url = address_of(bound)
        arguments = {"stop": stop, "ready": ready.set}
        thread = threading.Thread(target=serve, args=(build_app(served, options), bound, options), kwargs=arguments)
        thread.start()
        try:
            assert ready.wait(60)
            yield url
        finally:
            for engine in engines:
                engine.network.released.set()
            stop.set()
            thread.join(60)


def wait(browser: Any, condition: Any) -> Any:
    return WebDriverWait(browser, 30, poll_frequency=0.05).until(condition)


def text(browser: Any, identity: str) -> str:
    return str(browser.find_element(By.ID, identity).text)


def rows(browser: Any, identity: str) -> list[list[str]]:
    found = browser.find_elements(By.CSS_SELECTOR, f"#{identity} tr")
    return [[cell.text for cell in row.find_elements(By.TAG_NAME, "td")] for row in found]


def write(browser: Any, prompt: str) -> None:
    area = browser.find_element(By.ID, "prompt")
    area.clear()
    area.send_keys(prompt)


def test_a_prompt_is_continued_and_explained(browser: Any) -> None:
    with serving(ScriptedEngine()) as url:
        browser.get(url)
        assert browser.title == "giaann_dask"
        wait(browser, lambda b: text(b, "network") == "network scripted, profile v1, commit COMMIT")
        write(browser, "the old mill")
        browser.find_element(By.ID, "go").click()
        wait(browser, lambda b: text(b, "status").startswith("8 tokens"))
        assert text(browser, "text") == "the old mill to the baker before the sun rise and home"
        assert "no candidates" in text(browser, "status")
        words = browser.find_elements(By.CSS_SELECTOR, "#tokens-out button")
        assert [word.get_attribute("aria-pressed") for word in words] == ["false"] * 7 + ["true"]
        words[2].send_keys(Keys.ENTER)
        assert words[2].get_attribute("aria-pressed") == "true"
        assert rows(browser, "candidates") == [["baker", "baker", "5.000"], ["other", "baker", "4.000"]]
        assert rows(browser, "columns") == [["baker", "9.000"], ["mill", "3.000"]]
        bars = [bar.rect["width"] for bar in browser.find_elements(By.CSS_SELECTOR, "#columns .bar")]
        assert bars[1] == pytest.approx(bars[0] / 3, rel=0.02)
        assert errors(browser) == []
        loaded = browser.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
        assert loaded
        assert all(name.startswith(url) for name in loaded)


def test_training_sentences_are_shown_under_a_token(browser: Any) -> None:
    engine = ScriptedEngine()
    engine.network.traced = True
    with serving(engine) as url:
        browser.get(url)
        wait(browser, lambda b: "scripted" in text(b, "network"))
        write(browser, "the old mill")
        browser.find_element(By.ID, "go").click()
        wait(browser, lambda b: text(b, "status").startswith("8 tokens"))
        assert not browser.find_element(By.ID, "sentences-section").is_displayed()
        browser.find_elements(By.CSS_SELECTOR, "#tokens-out button")[2].click()
        wait(browser, lambda b: b.find_element(By.ID, "sentences-section").is_displayed())
        assert text(browser, "sentences").split("\n") == [
            "flour [mill]: 2 sentences",
            "50.0 % The <b>miller</b> sings. <a>.txt, character 1,200",
        ]
        keep_picture(browser, "sentences")


def fill(browser: Any, **values: str) -> None:
    for name, value in values.items():
        field = browser.find_element(By.ID, name.replace("_", "-"))
        field.clear()
        field.send_keys(value)


def test_a_document_is_learned_shown_under_its_words_and_forgotten(browser: Any, tmp_path: Path) -> None:
    village = ["The miller hung the coat over the door.", "The captain opened the old door."]
    (tmp_path / "coin.txt").write_text("The widow dropped the coin.")
    with gd.connect(workers=0) as client:
        network = gd.train(village, tmp_path / "net", client=client, profile="contexts", regions=2, trace=True)
    with gd.serve(network, writable=True, port=0, drain_s=5) as server:
        browser.get(f"{server.url}/#key={server.write_key}")
        wait(browser, lambda b: "None yet" in text(b, "library-status"))
        assert browser.current_url == f"{server.url}/"
        browser.find_element(By.ID, "files").send_keys(str(tmp_path / "coin.txt"))
        wait(browser, lambda b: text(b, "library-status") == "coin.txt is learned.")

        browser.execute_script("sessionStorage.clear()")
        fill(browser, document_text="The captain hung the lantern on the ship.", document_id="ship")
        browser.find_element(By.CSS_SELECTOR, "#add button").click()
        wait(browser, lambda b: "need the write key" in text(b, "library-status"))
        browser.switch_to.active_element.send_keys(server.write_key, Keys.ENTER)
        wait(browser, lambda b: text(b, "library-status") == "ship is learned.")
        names = browser.find_elements(By.CSS_SELECTOR, "#documents .name")
        assert [name.text for name in names] == ["coin.txt", "ship"]

        fill(browser, prompt="The captain hung the", tokens="2", temperature="0")
        continued(browser)
        assert text(browser, "text") == "The captain hung the lantern on"
        browser.find_elements(By.CSS_SELECTOR, "#tokens-out button")[0].click()
        wait(browser, lambda b: b.find_element(By.ID, "sentences-section").is_displayed())
        assert "100 % The captain hung the lantern on the ship. document ship" in text(browser, "sentences").split("\n")
        browser.find_element(By.CSS_SELECTOR, "#sentences .document").send_keys(Keys.ENTER)
        wait(browser, lambda b: "The captain hung the lantern on the ship." in text(b, "documents"))

        forget = browser.find_element(By.CSS_SELECTOR, "[aria-label='Forget ship']")
        forget.send_keys(Keys.ENTER)
        assert forget.text == "For good?"
        forget.send_keys(Keys.ENTER)
        wait(browser, lambda b: re.search("[0-9a-f]{64}", text(b, "facts")))
        assert gd.open(network.path).digest() in text(browser, "facts")
        assert "1 sentence, 9 tokens" in text(browser, "facts")
        assert browser.switch_to.active_element.text == "coin.txt", "the focus is beside what is gone"
        browser.find_element(By.ID, "again").click()
        wait(browser, lambda b: "The answer has changed" in text(b, "status"))
        marked = [each.text for each in browser.find_elements(By.CSS_SELECTOR, "#before-text mark")]
        assert (marked[0], text(browser, "before-text")) == ("lantern", "The captain hung the lantern on")
        assert "lantern" not in text(browser, "text")
        for width in (WIDTHS[-1], WIDTHS[0]):
            set_width(browser, width)
            keep_picture(browser, f"documents-{width}")
            assert overlapping(browser) == []
        assert browser.execute_script(CONTRAST)[0] >= 4.5
        assert [each for each in errors(browser) if "401" not in each["message"]] == []


def press(browser: Any, *keys: str) -> str:
    """Press keys, and return what has the focus then: its id, else its name."""
    ActionChains(browser).send_keys(*keys).perform()
    return focused(browser)


def focused(browser: Any) -> str:
    return str(browser.execute_script("const e = document.activeElement; return e.id || e.ariaLabel || e.textContent;"))


@pytest.mark.parametrize("width", [WIDTHS[0], WIDTHS[-1]])
def test_the_keyboard_reaches_all_and_keeps_its_place(browser: Any, tmp_path: Path, width: int) -> None:
    village = ["The miller hung the coat over the door.", "The captain opened the old door."]
    with gd.connect(workers=0) as client:
        network = gd.train(village, tmp_path / "net", client=client, profile="contexts", regions=2)
    set_width(browser, width)
    with gd.serve(network, writable=True, port=0, drain_s=5) as server:
        browser.get(server.url)
        browser.execute_script("sessionStorage.clear()")
        wait(browser, lambda b: "None yet" in text(b, "library-status"))
        order = ["document-text", "document-id", "Learn", "files", "purge", "prompt", "model", "tokens", "temperature"]
        assert [press(browser, Keys.TAB) for _ in range(11)] == [*order, "seed", "go"]
        browser.find_element(By.ID, "document-text").click()
        press(browser, "The captain hung the lantern on the ship.", Keys.TAB, Keys.TAB, Keys.ENTER)
        wait(browser, lambda b: "need the write key" in text(b, "library-status"))
        assert focused(browser) == "write-key"
        # Pressed twice, a document is learned once.
        press(browser, server.write_key, Keys.ENTER)
        assert press(browser, Keys.ENTER) == "Learn", "what the key was asked for has the focus again"
        wait(browser, lambda b: "is learned" in text(b, "library-status"))
        assert len(browser.find_elements(By.CSS_SELECTOR, "#documents .name")) == 1
        browser.find_element(By.ID, "go").send_keys(Keys.ENTER)
        wait(browser, lambda b: " tokens" in text(b, "status"))
        assert focused(browser) == "go"
        forget = browser.find_element(By.CSS_SELECTOR, "#documents .forget")
        forget.send_keys(Keys.ENTER, Keys.ENTER)
        wait(browser, lambda b: "is forgotten" in text(b, "library-status"))
        assert focused(browser) == "document-text", "no document is left beside what is gone"
        browser.find_element(By.ID, "again").send_keys(Keys.ENTER)
        wait(browser, lambda b: "The answer" in text(b, "status"))
        assert focused(browser) == "go"
        assert overlapping(browser) == []
        # The page asks for the digest of the certificate until then.
        browser.get("about:blank")
        assert [each for each in errors(browser) if "401" not in each["message"]] == []


def continued(browser: Any) -> None:
    """Continue the prompt, and wait until that is done."""
    browser.find_element(By.ID, "go").click()
    wait(browser, lambda b: " tokens" in text(b, "status"))


def heads(browser: Any) -> list[str]:
    return [head.text for head in browser.find_elements(By.CSS_SELECTOR, "#candidates-title ~ table th") if head.text]


def shown_fields(browser: Any) -> set[str]:
    fields = browser.find_elements(By.CSS_SELECTOR, "#form input, #form select, #form textarea")
    return {field.get_attribute("id") for field in fields if field.is_displayed()}


def test_a_model_is_chosen_and_draws_where_it_has_probabilities(browser: Any) -> None:
    drawing = ScriptedEngine(DrawingNetwork(), "drawing")
    with serving(ScriptedEngine(), drawing) as url:
        browser.get(url)
        wait(browser, lambda b: "scripted" in text(b, "network"))
        model = Select(browser.find_element(By.ID, "model"))
        assert [option.text for option in model.options] == ["scripted", "drawing"]
        assert shown_fields(browser) == {"prompt", "model", "tokens"}
        assert "at least one noun" in text(browser, "prompt-help")
        continued(browser)
        assert heads(browser) == ["Word", "Column", "Activation"]
        assert "not a probability" in text(browser, "candidates-note")

        model.select_by_visible_text("drawing")
        assert text(browser, "network") == "network drawing, profile contexts, commit COMMIT"
        assert shown_fields(browser) == {"prompt", "model", "tokens", "temperature", "seed"}
        assert "noun" not in text(browser, "prompt-help")
        assert heads(browser) == ["Word", "Column", "Activation"], "what is shown is of the other model still"
        continued(browser)
        assert heads(browser) == ["Word", "Probability"]
        assert rows(browser, "candidates")[0] == ["home", "62.5 %"]
        assert "Probability of each word" in text(browser, "candidates-note")
        assert not browser.find_element(By.ID, "columns-section").is_displayed()
        first = drawing.network.sampled[-1]
        assert first.temperature == 1, "of the temperatures that were measured, the one that repeats least"
        assert f"drawn with seed {first.seed}." in text(browser, "status")

        for name, value in (("temperature", "0.25"), ("seed", "7")):
            field = browser.find_element(By.ID, name)
            field.clear()
            field.send_keys(value)
        continued(browser)
        wait(browser, lambda b: "drawn with seed 7." in text(b, "status"))
        assert (drawing.network.sampled[-1].temperature, drawing.network.sampled[-1].seed) == (0.25, 7)
        assert errors(browser) == []


def test_the_page_keeps_to_the_limits_of_the_server(browser: Any) -> None:
    limits = Limits(tokens=3, candidates=1, columns=1, prompt_characters=50)
    with serving(ScriptedEngine(), limits=limits) as url:
        browser.get(url)
        wait(browser, lambda b: "scripted" in text(b, "network"))
        tokens = browser.find_element(By.ID, "tokens")
        assert (tokens.get_attribute("max"), tokens.get_attribute("value")) == ("3", "3")
        assert browser.find_element(By.ID, "prompt").get_attribute("maxlength") == "50"
        continued(browser)
        assert text(browser, "status") == "3 tokens."
        assert (len(rows(browser, "candidates")), len(rows(browser, "columns"))) == (1, 1)


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_overlaps(browser: Any, width: int) -> None:
    traced = ScriptedEngine(name="a-very-long-name-of-a-network-in-a-folder-of-many-novels")
    traced.network.traced = True
    set_width(browser, width)
    with serving(traced, ScriptedEngine(DrawingNetwork(), "drawing"), api_key="secret") as url:
        browser.get(url)
        key = browser.find_element(By.ID, "key")
        wait(browser, lambda _: key.is_displayed())
        key.send_keys("secret", Keys.TAB)
        wait(browser, lambda b: "a-very-long" in text(b, "network"))
        for name in (traced.name, "drawing"):
            Select(browser.find_element(By.ID, "model")).select_by_visible_text(name)
            continued(browser)
            browser.find_elements(By.CSS_SELECTOR, "#tokens-out button")[2].click()
            if name == traced.name:
                wait(browser, lambda b: b.find_element(By.ID, "sentences-section").is_displayed())
            keep_picture(browser, f"{name}-{width}")
            assert overlapping(browser) == []


def test_a_continuation_is_stopped_and_errors_are_shown(browser: Any) -> None:
    engine = ScriptedEngine()
    with serving(engine) as url:
        browser.get(url)
        write(browser, "slow mill")
        browser.find_element(By.ID, "prompt").send_keys(Keys.CONTROL, Keys.ENTER)
        assert engine.network.begun.acquire(timeout=30)
        stop = browser.find_element(By.ID, "stop")
        wait(browser, lambda _: stop.is_enabled())
        stop.click()
        assert engine.network.ended.acquire(timeout=30), "the generation ends on the server too"
        wait(browser, lambda b: text(b, "status") == "Stopped after 0 tokens.")
        for prompt, said in (("a bad mill", "the prompt is bad"), ("a mill that breaks", "no worker answers")):
            write(browser, prompt)
            browser.find_element(By.ID, "go").click()
            wait(browser, lambda b, said=said: said in text(b, "status"))
            assert "wrong" in browser.find_element(By.ID, "status").get_attribute("class")
        write(browser, "<b>the</b> mill")
        browser.find_element(By.ID, "go").click()
        wait(browser, lambda b: text(b, "given") == "<b>the</b> mill")


def test_the_key_is_asked_for_where_there_is_one(browser: Any) -> None:
    with serving(ScriptedEngine(), api_key="secret") as url:
        browser.get(url)
        field = browser.find_element(By.ID, "key")
        wait(browser, lambda _: field.is_displayed())
        assert text(browser, "network") == ""
        field.send_keys("secret", Keys.TAB)
        wait(browser, lambda b: "scripted" in text(b, "network"))
        browser.find_element(By.ID, "go").click()
        wait(browser, lambda b: text(b, "status").startswith("8 tokens"))


def test_light_and_dark_can_be_read_and_every_field_has_a_name(browser: Any) -> None:
    with serving(ScriptedEngine()) as url:
        for scheme in ("light", "dark"):
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
            browser.get(url)
            browser.find_element(By.ID, "go").click()
            wait(browser, lambda b: text(b, "status").startswith("8 tokens"))
            keep_picture(browser, f"scripted-{scheme}")
            worst = browser.execute_script(CONTRAST)
            assert worst[0] >= 4.5, worst
        names = browser.execute_script(
            "return [...document.querySelectorAll('input, textarea, select')].map(e => e.labels.length)"
        )
        assert names
        assert all(names)


# The smallest contrast of a text with what is behind it, by the formula of WCAG 2, and the element.
CONTRAST = """
const light = (color) => {
  const linear = (x) => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
  const [r, g, b] = color.match(/[\\d.]+/g).map((x) => linear(x / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = (element) => {
  for (let e = element; e; e = e.parentElement) {
    const color = getComputedStyle(e).backgroundColor;
    if (!color.endsWith(", 0)")) return color;
  }
  return "rgb(255, 255, 255)";
};
let worst = [99, ""];
for (const element of document.querySelectorAll("body *")) {
  const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  if (!own || element.disabled || !element.offsetParent) continue;
  const bar = element.className === "figure" ? element.previousElementSibling : element;
  const two = [light(getComputedStyle(element).color), light(behind(bar))].sort((a, b) => b - a);
  const contrast = (two[0] + 0.05) / (two[1] + 0.05);
  if (contrast < worst[0]) worst = [contrast, element.outerHTML];
}
return worst;
"""
