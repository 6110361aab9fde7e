"""The web page in a browser, with a running server."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser_fixtures import IN_A_BROWSER
from inference.generation_fixtures import random_lm
from inference.predictor_fixtures import tokenizer
from reports.run_fixtures import step_facts
from server.page_fixtures import EVIL, browsing, models, records

from bertsmith.encoders import bert
from bertsmith.inference.predictor import Predictor
from bertsmith.model_io.model import Model
from bertsmith.server.page import PANELS
from bertsmith.server.server import running
from bertsmith.system.durable import Disk
from bertsmith.training.log import EventLog

expect = pytest.importorskip("playwright.sync_api").expect
pytestmark = IN_A_BROWSER
PHONE, SMALL = {"width": 390, "height": 844}, {"width": 360, "height": 640}
REFUSED = "Failed to load resource"  # the message of a browser for an error response


@pytest.fixture(scope="module")
def served() -> dict[str, Predictor]:
    return models()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return records(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def address(served: dict[str, Predictor], folder: Path) -> Iterator[str]:
    with running(served, runs=folder) as found:
        yield found


@pytest.fixture
def visit(browser: Any, address: str) -> Iterator[Any]:
    with browsing(browser, address) as go:
        yield go


def button(page: Any, name: str) -> Any:
    return page.get_by_role("button", name=name, exact=True)


def path_of(page: Any, panel: str) -> str:
    """The address without the server, once it has been written."""
    page.wait_for_timeout(350)
    found: str = page.url
    return found[found.index(f"/{panel}") :]


def bars(page: Any) -> list[str]:
    page.locator("#result .bar").first.wait_for()
    return list(page.locator("#result .bar .label").all_text_contents())


def test_words_are_inserted_and_removed(visit: Any, served: dict[str, Predictor]) -> None:
    page = visit("/playground")
    text = "the smith has [MASK] iron"
    page.get_by_label("text").fill(text)
    page.keyboard.press("Control+Enter")
    found = served["judge"].fill_mask(text, top_k=5)
    assert bars(page) == [one["token_str"] for one in found]
    second = page.locator(".candidates button").nth(1)
    second.click()
    assert page.get_by_label("text").input_value() == found[1]["sequence"]
    assert page.locator("#result mark").text_content() == found[1]["token_str"]
    assert second.get_attribute("aria-pressed") == "true"
    second.click()
    assert page.get_by_label("text").input_value() == text
    page.get_by_label("words", exact=True).fill("2")
    page.keyboard.press("Enter")
    expect(page.locator(".candidates button")).to_have_count(2)


def test_filling_one_of_two_masks_predicts_the_other(visit: Any, served: dict[str, Predictor]) -> None:
    page = visit("/playground#task=fill-mask&text=the+%5BMASK%5D+has+%5BMASK%5D+iron&top=3")
    page.get_by_text("mask 2").wait_for()
    first = served["judge"].fill_mask("the [MASK] has [MASK] iron", top_k=3)[0][0]
    page.locator(".candidates button").first.click()
    page.get_by_text("mask 2").wait_for(state="detached")
    assert bars(page) == [one["token_str"] for one in served["judge"].fill_mask(first["sequence"], top_k=3)]


def test_answers_are_marked_in_their_text(visit: Any, served: dict[str, Predictor]) -> None:
    page = visit("/playground", viewport=PHONE, color_scheme="dark")
    page.get_by_role("tab", name="Question answering").click()
    question, context = "which thing", "👩‍🚀 the smith has gold, 🔨 and iron in it"
    page.get_by_label("question", exact=True).fill(question)
    page.get_by_label("text", exact=True).fill(context)
    button(page, "Answer").click()
    found = served["reader"].answer(question, context, top_k=3)
    assert bars(page) == [one["answer"] for one in found]
    assert page.locator("#result mark").text_content() == found[0]["answer"]
    assert found[0]["answer"].startswith("gold")
    page.locator(".candidates button").nth(1).click()
    assert page.locator("#result mark").text_content() == found[1]["answer"]
    assert page.locator("#result .passage").text_content() == context


def test_entities_are_marked_with_their_types(visit: Any, served: dict[str, Predictor]) -> None:
    page = visit("/playground")
    page.get_by_role("tab", name="Entities").click()
    text = f"🔨 the red iron, {unicodedata.normalize('NFD', '쇠')}에서 gold {EVIL}"
    page.get_by_label("text").fill(text)
    button(page, "Find").click()
    marks = page.locator("#result mark")
    marks.first.wait_for()
    found = served["reader"].ner(text)
    assert len(found) == 4
    shown = [one.evaluate("one => [one.firstChild.data, one.lastChild.textContent]") for one in marks.all()]
    assert shown == [[one["word"], one["entity_group"]] for one in found]
    assert page.locator(".legend li").all_text_contents() == ["COLOUR 1", "METAL 3"]
    page.get_by_text("4 entities").click()
    assert page.locator("#result tbody tr").count() == 4


def test_labels_rankings_and_choices(visit: Any, served: dict[str, Predictor]) -> None:
    page, judge = visit("/playground", color_scheme="dark"), served["judge"]
    page.get_by_role("tab", name="Classify").click()
    page.get_by_label("text", exact=True).fill("the smith has red iron")
    button(page, "Classify").click()
    assert bars(page) == [one["label"] for one in judge.predict("the smith has red iron", top_k=5)]

    others = ["it is blue", "the smith has red iron", "gold"]
    page.get_by_role("tab", name="Similarity").click()
    page.get_by_label("text", exact=True).fill("the smith has red iron")
    page.get_by_label("texts to compare with").fill("\n".join(others))
    button(page, "Compare").click()
    assert bars(page) == others
    assert page.locator("#result .best .label").text_content() == others[1]
    assert page.locator("#result .bar b").nth(1).text_content() == "1.000"

    page.get_by_role("tab", name="Rank").click()
    page.get_by_label("query").fill("the smith")
    page.get_by_label("texts, one per line").fill("\n".join(others))
    button(page, "Rank").click()
    assert bars(page) == [one["text"] for one in judge.rank("the smith", others)]

    page.get_by_role("tab", name="Multiple choice").click()
    page.get_by_label("question", exact=True).fill("the smith has")
    page.get_by_label("choices").fill("\n".join(others))
    button(page, "Choose").click()
    assert bars(page) == others
    assert page.locator("#result .big").text_content() == judge.choose("the smith has", others)["choice"]

    page.get_by_role("tab", name="Next sentence").click()
    page.get_by_label("first").fill("it is a thing")
    page.get_by_label("second").fill("the smith has it")
    button(page, "Predict").click()
    page.locator("#result .bar").first.wait_for()
    share = judge.next_sentence("it is a thing", "the smith has it")["is_next"]
    assert float(page.locator("#result .bar b").first.text_content().removesuffix(" %")) == pytest.approx(
        100 * share, abs=0.06
    )


def test_errors_are_shown_in_the_panel(visit: Any) -> None:
    page = visit("/playground", expected=REFUSED)
    page.get_by_label("text").fill("")
    page.keyboard.press("Control+Enter")
    assert page.locator("#form textarea:invalid").count() == 1  # nothing is sent
    assert page.locator("#result .error").count() == 0
    page.get_by_label("text").fill("nothing is hidden")
    button(page, "Fill").click()
    assert "the text has no [MASK]" in page.locator("#result .error").text_content()
    page.get_by_label("text").fill("the [MASK]")
    button(page, "Fill").click()
    page.locator("#result .bar").first.wait_for()
    assert page.locator("#result .error").count() == 0
    page.route("**/fill-mask", lambda route: route.abort())
    button(page, "Fill").click()
    page.get_by_text("The server does not respond").wait_for()
    page.route("**/fill-mask", lambda route: route.fulfill(status=503, body="<h1>gateway</h1>"))
    button(page, "Fill").click()
    page.get_by_text("not JSON (status 503)").wait_for()


def test_url_fragment_is_the_state_of_the_page(visit: Any) -> None:
    page = visit("/playground")
    page.get_by_label("text").fill("a [MASK] 한국 & more")
    button(page, "Fill").click()
    page.locator("#result .bar").first.wait_for()
    page.get_by_role("tab", name="Next sentence").click()
    page.go_back()
    expect(page.get_by_label("text")).to_have_value("a [MASK] 한국 & more")
    assert page.get_by_role("tab", name="Fill mask").get_attribute("aria-selected") == "true"
    page.locator("#result .bar").first.wait_for()
    assert "?" not in path_of(page, "playground")  # a text in the query would be sent, and logged
    other = visit(path_of(page, "playground"))
    assert other.get_by_label("text").input_value() == "a [MASK] 한국 & more"
    other.locator("#result .bar").first.wait_for()  # requested immediately
    other.get_by_role("tab", name="Fill mask").focus()
    other.keyboard.press("ArrowRight")
    assert other.get_by_role("tab", name="Question answering").get_attribute("aria-selected") == "true"


def test_requests_are_copied_as_curl_and_python(visit: Any, address: str, served: dict[str, Predictor]) -> None:
    page = visit("/playground#task=fill-mask&text=the+%5BMASK%5D+isn%27t+%22iron%22+%5C+%ED%95%9C&top=2")
    page.locator("#result .bar").first.wait_for()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    button(page, "copy as curl").click()
    page.get_by_role("status").get_by_text("copied").wait_for()
    words = shlex.split(page.evaluate("navigator.clipboard.readText()").replace("\\\n", ""))
    assert words[:3] == ["curl", "-sS", f"{address}/fill-mask"]
    text = 'the [MASK] isn\'t "iron" \\ 한'
    assert json.loads(words[-1]) == {"inputs": text, "top_k": 2}
    button(page, "copy as Python").click()
    page.get_by_text("import json").wait_for()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(page.locator("#result pre").text_content(), {})
    assert [one["token_str"] for one in eval(printed.getvalue())] == [
        one["token_str"] for one in served["judge"].fill_mask(text, top_k=2)
    ]


def test_unsupported_tasks_name_the_needed_model(browser: Any, served: dict[str, Predictor]) -> None:
    with running({"reader": served["reader"]}) as address, browsing(browser, address) as go:
        page = go("/playground")
        assert page.get_by_role("tab", selected=True).text_content() == "Question answering"  # the first that it can
        page.get_by_role("tab", name="Fill mask").click()
        assert "reader cannot do this" in page.locator("#form").text_content()
        assert "masked_lm" in page.locator("#form").text_content()
        assert page.locator("#form textarea").count() == 0
        assert page.locator(".models").text_content() == "reader"


def test_a_model_can_be_selected(visit: Any) -> None:
    page = visit("/playground")
    page.get_by_label("model").select_option("reader")
    page.get_by_text("reader cannot do this").wait_for()
    assert "model=reader" in path_of(page, "playground")
    page.get_by_label("model").select_option("judge")
    button(page, "Fill").click()
    page.locator("#result .bar").first.wait_for()


def test_attention_is_read_with_pointer_and_keys(visit: Any, served: dict[str, Predictor]) -> None:
    page = visit("/attention")
    text = "the smith has red iron"
    page.get_by_label("text", exact=True).fill(text)
    button(page, "Show").click()
    page.get_by_text("7 tokens, 3 layers of 4 heads").wait_for()
    assert page.locator("#grid canvas").count() == 12
    page.get_by_role("gridcell", name="layer 2, head 3").click()
    assert page.locator("#selected-head").text_content() == "Layer 2, head 3"
    weights = served["judge"].attention(text).weights[1, 2]
    page.locator(".map").focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):  # the first shows the first cell
        page.keyboard.press(key)
    assert page.locator("#weight").text_content() == f"the attends to the: {100 * weights[1, 1]:.1f} %"
    box = page.locator(".field-of-weights").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 5.5 / 7, box["y"] + box["height"] * 2.5 / 7)
    assert page.locator("#weight").text_content() == f"smith attends to iron: {100 * weights[2, 5]:.1f} %"
    page.get_by_role("gridcell", name="layer 2, head 3").focus()
    page.keyboard.press("ArrowUp")
    assert page.locator("#selected-head").text_content() == "Layer 1, head 3"
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "layer 1, head 3"


def test_attention_as_lines_without_special_tokens(visit: Any, served: dict[str, Predictor]) -> None:
    page = visit("/attention#text=the+smith&second=has+iron&layer=3&head=4&view=lines", viewport=PHONE)
    page.get_by_text("7 tokens, 3 layers of 4 heads").wait_for()
    assert page.locator(".lines .from li").all_text_contents() == "[CLS] the smith [SEP] has iron [SEP]".split()  # noqa: SIM905
    button(page, "special tokens").click()
    assert page.locator(".lines .from li").all_text_contents() == ["the", "smith", "has", "iron"]
    page.locator(".lines .from").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    found = served["judge"].attention("the smith", "has iron").weights[2, 3]
    best = max((1, 2, 4, 5), key=lambda place: found[2, place])
    shown = page.locator("#weight").text_content()
    assert shown.startswith(f"smith attends most to {['', 'the', 'smith', '', 'has', 'iron'][best]} ")
    assert f"{100 * found[2, best]:.1f} %" in shown
    assert 0 < page.locator(".lines line").count() <= 4
    again = visit(path_of(page, "attention"))
    again.locator('.lines [aria-selected="true"]').wait_for()
    assert again.locator("#weight").text_content() == shown


def test_attention_of_too_many_tokens_is_rejected(browser: Any) -> None:
    shape = bert.Config(layers=1, width=32, heads=2, vocab_size=tokenizer().vocab_size, max_positions=400)
    with running({"long": Predictor(Model.build(shape, []), tokenizer())}) as address, browsing(browser, address) as go:
        page = go("/attention")
        page.get_by_text("1 layer of 2 heads").wait_for()
        page.get_by_label("text", exact=True).fill("iron " * 300)
        button(page, "Show").click()
        page.get_by_text("This text has 302 tokens; the maximum is 256").wait_for()
        assert page.locator("#attention").is_hidden()
        page.get_by_label("text", exact=True).fill("iron " * 126)
        button(page, "Show").click()
        page.get_by_text("128 tokens, 1 layer of 2 heads").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def boxes(page: Any) -> list[str]:
    return [one.evaluate("one => one.firstChild.data") for one in page.locator(".token").all()]


def test_token_boxes_cover_the_text(visit: Any, served: dict[str, Predictor]) -> None:
    page = visit("/tokenizer", color_scheme="dark")
    text = "쇠에서 🔨 the smiths,  café"
    page.get_by_label("text", exact=True).fill(text)
    expect(page.locator("#tokens")).to_contain_text("smiths,")  # without a click
    assert boxes(page) == ["[CLS]", "쇠", "에서", "🔨", "the", "smith", "s", ",", "café", "[SEP]"]
    page.get_by_label("special tokens").uncheck()
    expect(page.locator("#tokens")).not_to_contain_text("[CLS]")
    assert page.locator("#tokens").text_content() == text
    (found,) = served["judge"].tokenize([text], special_tokens=False)
    page.locator("#tokens").focus()
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    assert page.locator("#about").text_content() == (
        f"{found.tokens[1]} id {found.ids[1]}  ·  characters 1 – 3  ·  token 2 of {len(found.ids)}"
    )
    page.locator(".token").nth(2).hover()
    assert "characters 4 – 5" in page.locator("#about").text_content()  # an emoji is one character
    button(page, "NFD").click()
    taken_apart = unicodedata.normalize("NFD", text)
    page.get_by_text(str(len(taken_apart)), exact=True).wait_for()  # the count of characters
    assert page.get_by_label("text", exact=True).input_value() == taken_apart
    assert page.locator("#tokens").text_content() == taken_apart
    page.get_by_label("ids").check()
    page.locator(".token small").first.wait_for()
    page.get_by_text("All tokens as a table").click()
    expect(page.locator("#table tbody tr")).to_have_count(len(found.ids))


def test_words_in_context_are_compared_for_every_model(visit: Any, served: dict[str, Predictor]) -> None:
    page = visit("/contexts#sentences=the+*iron*+is+red%0Ait+is+*iron*%0A*쇠*+is+blue", expected=REFUSED)
    page.locator(".contexts td").first.wait_for()
    assert page.locator(".contexts").count() == len(served)
    expected = served["judge"].word_contexts(["the *iron* is red", "it is *iron*", "*쇠* is blue"]).to_json()
    cells = page.locator(".contexts").first.locator("td").all_text_contents()
    assert cells == [f"{value:.2f}" for row in expected["similarity"] for value in row]
    assert page.locator(".contexts").first.locator("mark").all_text_contents() == ["iron", "iron", "쇠"]
    page.get_by_label("sentences").fill("no marks\nat all")
    button(page, "Compare").click()
    page.get_by_text("mark one word with asterisks").wait_for()


@pytest.mark.parametrize("panel", ["tokenizer", "attention"])
def test_input_typed_before_the_first_response_is_kept(visit: Any, panel: str) -> None:
    held: list[Any] = []
    page = visit(f"/{panel}", hold=("/info", held))
    page.get_by_label("text", exact=True).fill("red iron")
    while not held:
        page.wait_for_timeout(20)
    held[0].continue_()
    page.locator({"tokenizer": "#counts dd", "attention": ".map"}[panel]).first.wait_for()
    assert page.get_by_label("text", exact=True).input_value() == "red iron"


def test_a_long_text_is_shown_in_parts(visit: Any) -> None:
    page = visit("/tokenizer")
    page.get_by_label("text", exact=True).fill("iron gold " * 2000)
    page.get_by_text(" more").wait_for()
    assert page.locator(".token").count() <= 1500
    page.get_by_text(" more").click()
    assert page.locator(".token").count() == 4002


def test_curves_follow_a_run(visit: Any, folder: Path) -> None:
    with Disk().lock(folder / EVIL), EventLog(folder / EVIL / "events.jsonl") as log:
        page = visit("/training")
        page.get_by_text("updated every two seconds").wait_for()
        assert page.get_by_role("checkbox", name=EVIL).is_checked()
        output = page.locator("output").first
        assert "4.5" not in output.text_content()
        page.get_by_role("button", name="log", exact=True).click()
        log.write("step", **step_facts(26, loss=4.25))
        expect(output).to_contain_text("4.25", timeout=8000)
        assert button(page, "log").get_attribute("aria-pressed") == "true"  # what was chosen stays
        log.write("step", **step_facts(27))
    page.get_by_text("updated every two seconds").wait_for(state="detached", timeout=8000)
    assert page.locator("#heads h2").text_content().startswith(EVIL)


def test_runs_share_charts(visit: Any) -> None:
    page = visit("/training#runs=forge%2Ftwo", viewport=PHONE)
    page.locator("svg.chart").first.wait_for()
    assert page.locator("#heads h2").count() == 1
    page.get_by_role("checkbox", name="forge/하나").click()
    page.get_by_text("Recipe differences").wait_for()
    assert page.locator("#heads .swatch").count() == 2
    assert "seed" in page.locator("#recipes table").first.text_content()
    assert page.locator("svg.chart").first.locator("path.curve").count() == 4
    again = visit(path_of(page, "training"))
    again.get_by_text("Recipe differences").wait_for()
    button(again, "copy as curl").click()
    assert "/history?with=" in again.locator("#code pre").text_content()


def test_cells_show_their_examples(visit: Any) -> None:
    page = visit("/evaluation")
    page.get_by_role("button", name="forge/two/evaluation").click()
    page.locator("#what").wait_for()
    assert page.locator("#what").text_content() == "Errors"
    cell = page.get_by_role("button", name="copper predicted as iron")
    cell.click()
    assert page.locator("#cases tbody tr").count() == int(cell.text_content())
    again = visit(path_of(page, "evaluation"), viewport=PHONE, color_scheme="dark")
    again.locator("#what").wait_for()
    assert again.locator("#what").text_content().startswith("copper predicted as iron")
    again.keyboard.press("Tab")
    button(again, "probability").click()
    assert again.locator("#cases th").nth(2).get_attribute("aria-sort") == "ascending"


def test_missing_runs_folder_is_reported(browser: Any, served: dict[str, Predictor]) -> None:
    with running({"reader": served["reader"]}) as address, browsing(browser, address) as go:
        for panel in ("training", "evaluation"):
            page = go(f"/{panel}", expected=REFUSED)
            page.get_by_text("start it with --runs FOLDER").wait_for()
            assert page.locator(".card:visible").count() == 0  # no empty ones


def test_api_key_is_prompted_for_and_kept_in_the_tab(browser: Any, served: dict[str, Predictor]) -> None:
    with running({"judge": served["judge"]}, api_key="open sesame 12345") as address, browsing(browser, address) as go:
        page = go("/playground", expected=REFUSED)
        page.get_by_label("This server requires an API key").fill("wrong")
        assert page.locator(".card:visible").count() == page.locator("button:visible").count() == 1
        page.keyboard.press("Enter")
        page.get_by_label("The server rejected this API key").fill("open sesame 12345")
        page.keyboard.press("Enter")
        button(page, "Fill").click()
        page.locator("#result .bar").first.wait_for()
        button(page, "copy as curl").click()
        page.locator("#result pre").wait_for()
        assert "$BERTSMITH_KEY" in page.locator("#result pre").text_content()
        assert "sesame" not in page.content() + page.url
        page.get_by_role("link", name="Tokenizer").click()
        page.locator(".token").first.wait_for()


BROKEN_WORDS = r"""() => {
  const texts = document.createTreeWalker(document.getElementById("shown"), NodeFilter.SHOW_TEXT);
  const found = [], range = document.createRange();
  while (texts.nextNode()) for (const word of texts.currentNode.data.matchAll(/\p{L}+/gu)) {
    range.setStart(texts.currentNode, word.index);
    range.setEnd(texts.currentNode, word.index + word[0].length);
    if (new Set([...range.getClientRects()].map((box) => box.top)).size > 1) found.push(word[0]);
  }
  return found;
}"""
HEADING_GAPS = """() => [...document.querySelectorAll("#shown h2")].slice(1).map((one) => {
  const box = one.getBoundingClientRect(), next = one.nextElementSibling.getBoundingClientRect();
  const others = [...document.querySelectorAll("#shown table, #shown p, #shown dl, #shown svg, #shown summary")];
  const above = others.map((other) => other.closest(".wide, figure, summary") ?? other);
  const ends = above.map((other) => other.getBoundingClientRect().bottom).filter((end) => end && end <= box.top + 1);
  return [box.top - Math.max(...ends), next.top - box.bottom];
})"""


def test_tables_are_readable_at_every_width(visit: Any) -> None:
    page = visit("/evaluation", viewport={"width": 1280, "height": 900})
    page.locator("#cases td.source").first.wait_for()
    assert page.locator("#cases td.source").first.text_content().startswith("dev.jsonl:")  # its folder is in the title
    page.evaluate("document.querySelector('#cases .wrong').textContent = 'telecommunications'")
    for width in (1280, 768, 390):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate(BROKEN_WORDS) == [], width
        gaps = page.evaluate(HEADING_GAPS)
        assert len(gaps) == 6
        assert all(24 <= above < 200 and 4 <= below <= 16 for above, below in gaps), (width, gaps)
        assert page.evaluate("new Set([...document.querySelectorAll('nav a')].map((one) => one.offsetTop)).size") == 1
        assert page.evaluate("document.documentElement.scrollWidth") == width
        last = page.locator(".wide:not(.wrap) th").get_by_text("Recall")
        assert last.bounding_box()["x"] < width  # a long label leaves room for the scores


def test_api_documentation_looks_like_the_page(visit: Any, address: str) -> None:
    look = (
        "JSON.stringify(['fontFamily', 'backgroundColor', 'color'].map((one) => getComputedStyle(document.body)[one]))"
    )
    page = visit("/tokenizer", viewport=SMALL, color_scheme="dark")
    header, style = page.locator("header nav").text_content(), page.evaluate(look)
    page.get_by_role("link", name="API documentation").click()
    page.get_by_role("heading", name="API", exact=True).wait_for()
    assert (page.locator("header nav").text_content(), page.evaluate(look)) == (header, style)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("#post-qa").get_by_role("button", name="copy").click()
    page.get_by_role("status").get_by_text("copied").wait_for()
    words = shlex.split(page.evaluate("navigator.clipboard.readText()").replace("\\\n", ""))
    assert words[:2] == ["curl", f"{address}/qa"]
    for details in page.locator("summary").all()[:2]:
        details.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= SMALL["width"]
    assert page.evaluate(NAMELESS) == []


NAMELESS = """() => [...document.querySelectorAll('button, a, input, textarea, select, [tabindex="0"]')]
  .filter((one) => !one.labels?.length && !(one.getAttribute('aria-label') || one.textContent.trim()))
  .map((one) => one.outerHTML)"""


@pytest.mark.parametrize("panel", PANELS)
def test_panels_fit_a_small_phone(visit: Any, panel: str) -> None:
    page = visit(f"/{panel}", viewport=SMALL, color_scheme="light")
    ready = {"playground": "#form button.main", "attention": ".map", "tokenizer": ".token", "training": "svg.chart"}
    ready["contexts"] = ".contexts td"
    page.locator(ready.get(panel, "#confusion")).first.wait_for()
    if panel == "playground":
        button(page, "Fill").click()
        page.locator("#result .bar").first.wait_for()
    for details in page.locator("summary").all():
        details.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= SMALL["width"]
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        color = page.evaluate("getComputedStyle(document.body).backgroundColor")
        light = sum(map(int, color.removeprefix("rgb(").removesuffix(")").split(","))) > 384
        assert light == (scheme == "light")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement !== document.body")
    assert page.evaluate(NAMELESS) == []
    assert page.locator("h1").count() == 1
    assert page.locator('nav [aria-current="page"]').text_content() == PANELS[panel]


def test_tokens_of_a_generated_text_show_their_alternatives(browser: Any, tmp_path: Path) -> None:
    writer = random_lm()
    with running({"writer": writer}) as address, browsing(browser, address) as visit:
        page = visit("/playground#task=generate", viewport=SMALL, expected=REFUSED)
        page.get_by_label("prompt").fill("the smith heats")
        page.get_by_label("new tokens").fill("12")
        page.get_by_label("temperature").fill("0.7")
        page.get_by_label("stop at this text").fill("")
        page.keyboard.press("Control+Enter")
        options: dict[str, Any] = {"max_new_tokens": 12, "temperature": 0.7, "seed": 0, "top_logprobs": 10}
        expected = writer.generate("the smith heats", **options)
        shown = page.locator(".generated")
        shown.wait_for()
        assert shown.text_content() == "the smith heats" + expected["text"]
        page.locator(".generated button").nth(4).click()
        assert bars(page) == [one["token_str"] for one in expected["logprobs"][4]["top"]]
        assert page.evaluate("document.documentElement.scrollWidth") <= SMALL["width"]
        page.get_by_label("new tokens").fill("40")
        page.keyboard.press("Control+Enter")
        expect(page.locator("#result [role=alert], #result .error").first).to_contain_text("at most 29 new tokens fit")
