"""The page in a real browser: Chromium and its driver, with the network cut. `make browser` runs these.

RANKFOLD_PAGE names a page to test in place of a small one, RANKFOLD_REPORT a file for the browser, date and timings.
"""

import os
import shutil
import statistics
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rankfold
from rankfold.analysis.hidden_chain import HiddenChain
from rankfold.data.brackets import parse_tree
from rankfold.explore.bundle import page, read_page
from rankfold.explore.chain_page import ChainPage
from rankfold.explore.frame_page import frame_bundle
from rankfold.explore.grammar_page import GrammarPage
from rankfold.explore.serve import PageServer
from tests.explore.runs import ODD, SAVED, odd_model

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
try:
    import selenium  # noqa: F401
except ImportError:
    DRIVER = None
pytestmark = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(
        CHROMIUM is None or DRIVER is None,
        reason="no chromium, chromedriver or selenium: apt-get install chromium chromium-driver; extra `browser`",
    ),
    # selenium leaves the pipe to its driver to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1440,900"),
)
GIVEN = os.environ.get("RANKFOLD_PAGE")
MEASURED: dict[str, str] = {}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    MEASURED["browser"] = f"{driver.capabilities['browserName']} {driver.capabilities['browserVersion']}"
    yield driver
    driver.quit()
    if report := os.environ.get("RANKFOLD_REPORT"):
        rows = [f"| {name} | {value} |" for name, value in MEASURED.items()]
        stamp = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        Path(report).write_text("\n".join(["| measured | value |", "|---|---|", f"| date | {stamp} |", *rows]) + "\n")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of RANKFOLD_PAGE, or one of a small model and 400 sentences."""
    if GIVEN:
        return Path(GIVEN).resolve()
    model: Any = rankfold.load(SAVED / "lhmm")
    drawn = np.random.default_rng(0)
    text = [[f"w{i:02}" for i in drawn.integers(1, 18, size=drawn.integers(4, 14))] for _ in range(400)]
    bundle = ChainPage(HiddenChain(model), model.vocabulary).bundle(text, about_text={"title": "a run"})
    found = tmp_path_factory.mktemp("pages") / "page.html"
    found.write_text(page(bundle))
    return found


def opened(browser: Any, path: Path | str, hash: str = "") -> float:
    """Open a page afresh; the seconds until it was ready."""
    browser.get("about:blank")
    browser.get_log("browser")
    browser.get_log("performance")
    began = time.perf_counter()
    browser.get((path if isinstance(path, str) else path.as_uri()) + hash)
    wait(browser, "return document.body.dataset.ready")
    seconds = time.perf_counter() - began
    assert browser.execute_script("return document.body.dataset.ready") == "true"
    return seconds


def wait(browser: Any, script: str, seconds: float = 30) -> Any:
    """The value of a script, once it is true."""
    until = time.perf_counter() + seconds
    while not (found := browser.execute_script(script)):
        assert time.perf_counter() < until, f"never true: {script}"
        time.sleep(0.05)
    return found


def go(browser: Any, hash: str, heading: str | None = None) -> str:
    """The heading of another view."""
    browser.execute_script("document.querySelector('#panel').replaceChildren(); location.hash = arguments[0]", hash)
    wait(browser, "return document.querySelector('#panel').children.length")
    return str(browser.execute_script("return document.querySelector('#panel h1')?.textContent ?? ''"))


def expect_silence(browser: Any) -> None:
    """No console error, and no request but of the file itself."""
    assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []


def requests(browser: Any) -> list[str]:
    import json

    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    return [url for url in sent if not url.startswith("data:")]


def test_it_loads_with_the_network_cut(browser: Any, path: Path) -> None:
    browser.execute_cdp_cmd("Network.enable", {})
    browser.execute_cdp_cmd(
        "Network.emulateNetworkConditions",
        {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0},
    )
    seconds = opened(browser, path)
    for hash in ("#/state/1", "#/sentence/1", "#/graph", "#/table", "#/sentences", "#/"):
        assert go(browser, hash) or hash == "#/sentence/1"
    assert requests(browser) == [path.as_uri()]
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    expect_silence(browser)
    meta = read_page(path).meta
    MEASURED.update(
        {
            "states": f"{meta['states']:,}",
            "sentences": f"{meta['sentences']:,} ({meta['tokens']:,} positions)",
            "page": f"{path.stat().st_size / 1e6:.2f} MB",
            "trustworthiness of the map (k = 10)": f"{meta['trust']:.3f}, over {meta['checked']:,} states",
            "requests, network cut": "the file itself, no other",
            "opened and drawn": f"{seconds:.2f} s",
        }
    )
    assert path.stat().st_size <= 10_000_000
    shown = browser.execute_script("return document.querySelector('.trust').textContent")
    assert f"trustworthiness {meta['trust']:.3f}" in shown


def test_it_finds_a_word(browser: Any, path: Path) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    opened(browser, path)
    word = browser.execute_script("const c = rankfold.chain; return c.words[c.token[3]]")
    browser.find_element(By.TAG_NAME, "body").send_keys("/")
    box = browser.switch_to.active_element
    assert box.get_attribute("role") == "combobox"
    began = time.perf_counter()
    box.send_keys(word, Keys.ARROW_DOWN, Keys.ENTER)
    wait(browser, f"return document.querySelector('#panel h1')?.textContent === {word!r}")
    MEASURED["word typed and found"] = f"{1000 * (time.perf_counter() - began):.0f} ms, keys included"
    assert browser.execute_script("return rankfold.map.marks.some.size") > 0
    expect_silence(browser)


def test_a_click_on_the_map_opens_a_state(browser: Any, path: Path) -> None:
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.by import By

    opened(browser, path)
    state, x, y, width, height = wait(
        browser,
        "const m = rankfold.map; if (!m.width) return null; const i = m.chain.byShare[0];"
        "return [i, m.sx(i), m.sy(i), m.width, m.height]",
    )
    canvas = browser.find_element(By.CSS_SELECTOR, ".map canvas")
    ActionChains(browser).move_to_element_with_offset(
        canvas, round(x - width / 2), round(y - height / 2)
    ).click().perform()
    wait(browser, "return location.hash.startsWith('#/state/')")
    opened_state = int(browser.execute_script("return location.hash").split("/")[2].split("?")[0])
    places = [
        browser.execute_script("const m = rankfold.map; return [m.chain.x[arguments[0]], m.chain.y[arguments[0]]]", i)
        for i in (state, opened_state)
    ]
    assert np.abs(np.subtract(*places)).max() <= 65535 * 14 / min(width, height)  # it, or one under the same pointer
    assert browser.execute_script("return document.querySelectorAll('#panel .bars li').length") > 0
    expect_silence(browser)


def test_a_span_is_selected_and_its_pattern_found(browser: Any, path: Path) -> None:
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.by import By

    opened(browser, path, "#/sentence/5")
    cells = browser.find_elements(By.CSS_SELECTOR, ".cell .word")
    ActionChains(browser).move_to_element(cells[1]).click_and_hold().move_to_element(cells[2]).release().perform()
    wait(browser, "return document.querySelector('.results h2')")
    assert browser.execute_script("return location.hash") == "#/sentence/5/1-3"
    assert browser.execute_script("return rankfold.lastSearch.milliseconds") < 100
    times = browser.execute_script(
        """const { chain } = rankfold, index = rankfold.patterns(), found = [];
        for (let k = 0; k < 200; k++) {
          const n = (k * 7919) % chain.numSentences, one = chain.sentence(n), length = 2 + (k % 4);
          if (one.words.length < length) continue;
          const from = k % (one.words.length - length + 1);
          found.push(index.search(one.states.slice(from, from + length), { similar: k % 2 === 1 }).milliseconds);
        }
        return found;"""
    )
    assert max(times) < 100
    MEASURED["matches of a span"] = (
        f"median {statistics.median(times):.1f} ms, slowest {max(times):.1f} ms ({len(times)} spans of 2 to 5 words)"
    )
    expect_silence(browser)


def test_the_pattern_is_the_overlap_of_posteriors(browser: Any, path: Path) -> None:
    opened(browser, path)
    bundle = read_page(path)
    state, p, starts = bundle.arrays["state"], bundle.arrays["p"] / 255, bundle.arrays["start"].astype(int)
    found = browser.execute_script(
        "return rankfold.patterns().search(rankfold.chain.sentence(2).states.slice(0, 2), { least: 0.1, limit: 1e9 })"
    )
    sentence = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    overlap = np.zeros(len(state) - 1)
    for t in range(2):
        own = starts[2] + t
        same = state[own][None, :, None] == state[t : len(state) - 1 + t, None, :]
        roots = np.sqrt(p[own][None, :, None] * p[t : len(state) - 1 + t, None, :])
        overlap += (same * roots).sum((1, 2)) / 2
    overlap[sentence[:-1] != sentence[1:]] = 0
    assert found["total"] == pytest.approx(int((overlap >= 0.1).sum()), abs=2)  # float32 at the border
    for match in found["matches"][:50]:
        assert match["overlap"] == pytest.approx(min(1, overlap[match["from"]]), abs=1e-4)
    assert found["matches"][0]["overlap"] == pytest.approx(min(1, overlap.max()), abs=1e-4)


def test_a_sentence_is_typed(browser: Any, path: Path) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    opened(browser, path, "#/sentences")
    text = browser.execute_script("const one = rankfold.chain.sentence(7); return one.words.slice(0, 3).join(' ')")
    browser.find_element(By.ID, "typed").send_keys(text, Keys.ENTER)
    wait(
        browser, "return location.hash.startsWith('#/typed/') && document.querySelector('.concordance .line, .ribbon')"
    )
    browser.find_element(By.ID, "typed").send_keys(" nosuchword", Keys.ENTER)
    told = wait(browser, "return document.querySelector('#panel .missing')?.parentElement.textContent")
    assert "nosuchword" in told
    assert "rankfold explore RUN --serve" in told
    expect_silence(browser)


def test_keys_select_a_span_and_walk_the_map(browser: Any, path: Path) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    opened(browser, path, "#/sentence/3")
    first = browser.find_element(By.CSS_SELECTOR, ".cell")
    first.send_keys(Keys.ARROW_RIGHT)
    browser.switch_to.active_element.send_keys(Keys.SHIFT, Keys.ARROW_RIGHT)
    wait(browser, "return document.querySelector('.results h2')")
    assert browser.execute_script("return location.hash") == "#/sentence/3/1-3"
    canvas = browser.find_element(By.CSS_SELECTOR, ".map canvas")
    canvas.send_keys(Keys.ARROW_RIGHT)
    assert "state" in wait(browser, "return document.querySelector('.unseen[role=status]').textContent")
    canvas.send_keys(Keys.ENTER)
    wait(browser, "return location.hash.startsWith('#/state/')")
    expect_silence(browser)


def test_links_keep_the_view_and_light_and_dark_change(browser: Any, path: Path) -> None:
    opened(browser, path, "#/state/2?colour=entropy")
    assert (
        browser.execute_script("return document.querySelector('[aria-pressed=true][data-colour]').dataset.colour")
        == "entropy"
    )
    before = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    browser.execute_script("document.querySelector('.theme').click()")
    assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") != before
    browser.execute_script("document.querySelector('.theme').click()")
    assert go(browser, "#/state/999999999") == ""
    assert "There is no state" in browser.execute_script("return document.querySelector('#panel').textContent")
    assert go(browser, "#/word/%E0%A4%A") == ""
    expect_silence(browser)


def test_narrow_screens_do_not_scroll_sideways(browser: Any, path: Path) -> None:
    size = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        opened(browser, path)
        for hash in ("#/", "#/state/1", "#/sentence/1/0-2", "#/graph", "#/table"):
            go(browser, hash)
            assert browser.execute_script("return document.documentElement.scrollWidth") <= 390, hash
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_odd_words_are_shown_and_never_run(browser: Any, tmp_path: Path) -> None:
    model: Any = odd_model()
    bundle = ChainPage(HiddenChain(model), model.vocabulary).bundle([list(ODD)], about_text={"title": ODD[0]})
    file = tmp_path / "odd.html"
    file.write_text(page(bundle))
    opened(browser, file)
    for hash in ("#/", "#/sentence/0", "#/sentence/0/0-2", "#/state/0", "#/graph", "#/table", f"#/typed/{ODD[0]}"):
        go(browser, hash)
        assert browser.execute_script("return window.broken === undefined && !document.querySelector('#app script')")
    go(browser, "#/sentence/0")
    words = browser.execute_script("return [...document.querySelectorAll('.cell .word')].map((e) => e.textContent)")
    assert words[:-1] == list(ODD)
    assert browser.execute_script("return getComputedStyle(document.querySelector('.ribbon')).direction") == "ltr"
    directions = browser.execute_script(
        "return [...document.querySelectorAll('.cell .word bdi')].map((e) => getComputedStyle(e).direction)"
    )
    assert directions[:3] == ["ltr", "rtl", "rtl"]
    expect_silence(browser)


def test_a_damaged_page_says_so(browser: Any, path: Path, tmp_path: Path) -> None:
    text = path.read_text()
    at = text.index('id="data">') + 200
    broken = tmp_path / "broken.html"
    broken.write_text(text[:at] + text[at + 400 :])
    browser.get(broken.as_uri())
    wait(browser, "return document.body.dataset.ready")
    assert "Write the page again" in browser.execute_script("return document.body.textContent")
    browser.get_log("browser")


def test_the_server_answers_typed_sentences(browser: Any) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    model: Any = odd_model()
    browser.execute_cdp_cmd(
        "Network.emulateNetworkConditions",
        {"offline": False, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1},
    )
    own = ChainPage(HiddenChain(model), model.vocabulary)
    with PageServer(own.bundle([list(ODD)], about_text={"title": "a run"}), own.answer) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            opened(browser, server.address, "#/sentences")
            browser.find_element(By.ID, "typed").send_keys("a&b <img src=x onerror=window.broken=1>", Keys.ENTER)
            wait(browser, "return document.querySelectorAll('.ribbon .cell').length === 5")
            assert "Log-probability" in browser.execute_script("return document.querySelector('#panel').textContent")
            assert browser.execute_script("return window.broken === undefined && !document.querySelector('#app img')")
            expect_silence(browser)
        finally:
            server.shutdown()
            thread.join()
    browser.find_element(By.ID, "typed").send_keys(" again", Keys.ENTER)
    told = wait(browser, "return document.querySelector('#panel .missing')?.textContent", 90)
    assert "does not answer" in told


def test_grammars_and_recordings_are_shown(browser: Any, tmp_path: Path) -> None:
    model: Any = rankfold.load(SAVED / "npcfg")
    gold = [parse_tree("(S (NP (D w03) (N w15)) (VP (V w10) (N w17)))"), parse_tree("(S (D w01) (NP (N w02) (N w03)))")]
    trees = GrammarPage(model).bundle([one.words for one in gold], gold=gold, about_text={"title": "trees"})
    (tmp_path / "trees.html").write_text(page(trees))
    opened(browser, tmp_path / "trees.html")
    for hash in ("#/", "#/sentences", "#/tree/0", "#/symbols", "#/differences", "#/typed/w01%20w02"):
        assert go(browser, hash), hash
    go(browser, "#/tree/0")
    shown = browser.execute_script("return [...document.querySelectorAll('.tree-word')].map((e) => e.textContent)")
    assert shown == gold[0].words
    assert browser.execute_script("return document.querySelectorAll('.pill.plain').length") == 3
    name = browser.execute_script("return document.querySelector('.pill').getAttribute('href')")
    assert go(browser, name)
    expect_silence(browser)
    opened(browser, recordings(tmp_path))
    for hash in ("#/", "#/recording/0", "#/states", "#/states/1"):
        assert go(browser, hash), hash
    go(browser, "#/recording/0")
    assert browser.execute_script("return document.querySelectorAll('.strip rect').length") == 2 + 3
    expect_silence(browser)


def recordings(folder: Path) -> Path:
    from rankfold.data.frame_space import FrameSpace
    from rankfold.data.frames import Frames

    features = np.arange(12.0).reshape(6, 2)
    given = Frames([features], ["one"], [np.array([0, 0, 0, 1, 1, 1])], ("sit", "walk"))
    states = [np.array([1, 1, 0, 0, 1, 1])]
    bundle = frame_bundle(
        FrameSpace(2), given, states, [np.full(6, 0.5)], num_states=2, about_text={"title": "recordings"}
    )
    found = folder / "frames.html"
    found.write_text(page(bundle))
    return found
