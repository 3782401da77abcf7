"""The studio in a real Chromium: from a dropped file to a chat and an export; axe, keyboard and widths on the way."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import axe_core_python
import numpy as np
import pytest

import featherback as fb
from featherback.data.demo import HELD_OUT, TRAIN
from featherback.runs.run_directory import RunDirectory
from tests.data.test_brought import workbook
from tests.support.tiny_chat import write_tiny_talker
from tests.web.studio.browser import PATIENCE, SHOWN, STEPS, browser, chromium, studio

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

MISSING = "Chromium is not installed, so the studio is not tested in a browser: apt-get install chromium"
pytestmark = pytest.mark.skipif(chromium() is None, reason=MISSING)
if chromium() is None:
    warnings.warn(MISSING, stacklevel=1)  # the summary of the tests shows it
long = pytest.mark.full("a studio, and the runs that it starts")
AXE = (Path(axe_core_python.__file__).parent / "axe.min.js").read_text()
QUESTION = "Show the last 30 lines of mail.log"
DROP = """([name, text]) => {
  const data = new DataTransfer();
  data.items.add(new File([text], name));
  const event = new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true });
  document.querySelector(".drop").dispatchEvent(event);
}"""
WIDE = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def opened() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model, the demo's data and two short runs."""
    folder = tmp_path_factory.mktemp("trained")
    write_tiny_talker(folder / "tiny.gguf")
    shutil.copyfile(TRAIN, folder / "train.jsonl")
    shutil.copyfile(HELD_OUT, folder / "held-out.jsonl")
    for name, rank in (("one", "4"), ("two", "8")):
        data = ["--data", "train.jsonl", "--eval-data", "held-out.jsonl"]
        words = ["train", "tiny.gguf", *data, "--out", name, "--epochs", "0.1", "--rank", rank]
        subprocess.run([sys.executable, "-m", "featherback", *words], cwd=folder, check=True, capture_output=True)
    return folder


def page_of(opened: Browser, address: str, **context: Any) -> Page:
    """A page of the studio. A script error, or a request to another host, fails the test when the page is closed."""
    page = opened.new_context(**context).new_page()
    page.set_default_timeout(PATIENCE)
    page.set_default_navigation_timeout(PATIENCE)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "request", lambda request: request.url.startswith(address.partition("/#")[0]) or problems.append(request.url)
    )
    page.on("console", lambda line: problems.append(line.text) if "Content Security" in line.text else None)
    page.on("close", lambda _: check(problems))
    page.goto(address)
    page.wait_for_selector("#steps a")
    return page


def check(problems: list[str]) -> None:
    assert not problems


def open_step(page: Page, step: str) -> None:
    page.click(f'#steps a[href="#{step}"]')
    page.wait_for_selector(f'#steps a[href="#{step}"][aria-current]')


def choose(page: Page, **chosen: object) -> None:
    """Make the choices of the first steps, as the browser keeps them."""
    script = (
        "kept => localStorage.setItem(`featherback-choices:${document.getElementById('folder').textContent}`, kept)"
    )
    page.evaluate(script, json.dumps(chosen))
    page.reload()
    page.wait_for_selector("#steps a")


@long
def test_from_a_dropped_file_to_a_chat(opened: Browser, tmp_path: Path) -> None:
    write_tiny_talker(tmp_path / "tiny.gguf")
    with studio(tmp_path) as (address, _):
        page = page_of(opened, address)
        assert "key" not in page.url
        page.check('input[value="tiny.gguf"]')
        page.click("text=Next: data")
        for name, path in (("held-out.jsonl", HELD_OUT), ("requests.jsonl", TRAIN)):
            page.wait_for_selector(".drop")
            page.evaluate(DROP, [name, path.read_text()])
            page.wait_for_selector(f"figcaption:has-text('{name}, line 1')")
        page.select_option("select >> nth=1", ".featherback/uploads/held-out.jsonl")
        marked = page.locator(".example mark").first.inner_text()
        assert "head -n 10 notes.txt" in marked
        assert "Show the first" not in marked
        page.click("text=Next: settings")
        page.wait_for_selector(".forecast .figure")
        page.fill("fieldset:has-text('How long?') input[type=text]", "0.2")
        page.keyboard.press("Tab")
        page.wait_for_selector(".terminal code:has-text('--epochs 0.2')")
        page.click("text=All options")
        page.click(".panels summary:has-text('Adapter')")
        page.fill(".panels .field:has(label:text-is('--rank')) input", "4")
        page.keyboard.press("Tab")
        page.click(".panels summary:text-is('Run')")
        page.select_option(".panels .field:has(label:text-is('--compute')) select", "fp32")
        page.wait_for_selector(".terminal code:has-text('--rank 4'):has-text('--compute fp32')")
        command = page.inner_text(".terminal code").replace(".featherback/uploads/", "")
        page.click("button:text-is('Train')")
        page.wait_for_selector(".pill.finished")
        page.wait_for_selector(".chart:visible")
        run = RunDirectory.open(tmp_path / "run")
        assert run.config.rank == 4
        assert run.config.epochs == 0.2
        data = "--data requests.jsonl --eval-data held-out.jsonl"
        options = "--rank 4 --epochs 0.2 --compute fp32"
        assert " ".join(command.split()) == f"featherback train tiny.gguf {data} {options} --out run"
        assert_the_curve_is(page, [each["loss"] for each in run.metrics()])
        page.click("text=Next: answers")
        page.wait_for_selector(".exchange >> nth=1")
        assert page.locator(".exchange").count() == 2
        first = json.loads(HELD_OUT.read_text().partition("\n")[0])["messages"]
        assert page.locator(".question").first.inner_text() == first[0]["content"]
        assert page.locator(".expected .text").first.inner_text() == first[1]["content"]
        page.fill("input[type=number]", "3")
        page.click("button:text-is('Answer')")
        page.wait_for_selector(".exchange >> nth=2")
        page.click("text=Next: chat")
        page.fill("input[type=number]", "0")
        page.fill("textarea", QUESTION)
        page.press("textarea", "Enter")
        page.wait_for_selector(".turn")
        page.wait_for_selector("button[type=submit]:enabled")
        assert page.locator(".turn").count() == 1
        said = {side: page.locator(f".{side} .text").text_content() for side in ("original", "trained")}
        assert said == answers_of(tmp_path / "tiny.gguf", run.path, len(said["original"] or ""))
        assert said["original"] != said["trained"]
        page.click("text=Next: export")
        page.check("input[value=peft]")
        page.click("button:text-is('Export')")
        page.wait_for_selector("h2:text-is('Written')")
        page.close()
    assert list(tmp_path.glob("run-*/adapter_config.json"))


@long
def test_answers_appear_when_they_are_written(opened: Browser, trained: Path, tmp_path: Path) -> None:
    """A run has finished its steps before its answers are written."""
    shutil.copytree(trained, tmp_path / "work")
    run = RunDirectory.open(tmp_path / "work" / "one")
    samples = run.record.samples
    assert samples
    run.lock()
    run.update(samples=[], status="running")
    with studio(tmp_path / "work") as (address, _):
        page = page_of(opened, address)
        choose(page, model="tiny.gguf", data="train.jsonl", run="one")
        open_step(page, "answers")
        page.wait_for_selector("main:has-text('The answers are written when training ends')")
        run.update(samples=samples, status="finished")
        page.wait_for_selector(".exchange")
        page.close()
    run.release()


def assert_the_curve_is(page: Page, losses: list[float]) -> None:
    """The line of each step in the chart has a point for each loss, at the height of its logarithm."""
    drawn = page.locator(".chart:visible polyline.raw").first.get_attribute("points") or ""
    heights = [float(point.partition(",")[2]) for point in drawn.split()]
    assert len(heights) == len(losses)
    assert np.corrcoef(heights, np.log(losses))[0, 1] < -0.999  # y points down


def answers_of(model: Path, adapter: Path, length: int) -> dict[str, str]:
    """The greedy answers to QUESTION, as `generate` gives them. A token of the model is a letter."""
    opened, asked = fb.load(model), [{"role": "user", "content": QUESTION}]
    sides = {"original": None, "trained": adapter}
    return {
        side: opened.generate(asked, adapter=path, max_tokens=length, compute="fp32") for side, path in sides.items()
    }


@long
def test_a_run_outlives_page_and_server_and_comes_back(opened: Browser, trained: Path, tmp_path: Path) -> None:
    for name in ("tiny.gguf", "train.jsonl"):
        shutil.copyfile(trained / name, tmp_path / name)
    metrics = tmp_path / "long" / "metrics.jsonl"
    with studio(tmp_path, str(tmp_path / "tiny.gguf"), "--data", str(tmp_path / "train.jsonl")) as (address, _):
        page = page_of(opened, address)
        choose(page, model="tiny.gguf", data="train.jsonl", settings={"steps": "100000"}, name_of_run="long")
        open_step(page, "settings")
        page.wait_for_selector(".terminal code:has-text('--steps')")
        page.click("button:text-is('Train')")
        page.wait_for_selector(".pill.running")
        page.wait_for_selector(".chart:visible")
        open_step(page, "chat")
        page.wait_for_selector("main:has-text('The run long is being trained')")
        open_step(page, "export")
        page.wait_for_selector("main:has-text('There is no result to export yet')")
        other = page_of(opened, address)  # a second tab, with the key
        other.wait_for_selector(".pill.running")
        other.close()
        page.close()
        _grows(metrics)
    _grows(metrics)  # without a server
    with studio(tmp_path) as (address, _):
        page = page_of(opened, address)
        page.wait_for_selector(".pill.running")  # it opens at the run
        page.click("button:text-is('Save and stop')")
        page.wait_for_selector(".pill.interrupted")
        page.wait_for_selector("main:has-text('is saved; training goes on from there')")
        assert violations(page) == []
        stopped = len(metrics.read_text().splitlines())
        page.click("button:text-is('Resume')")
        page.wait_for_selector(".pill.starting")
        page.wait_for_selector("main:has-text('The run is being resumed')")
        page.wait_for_selector(".pill.running")
        _grows(metrics, stopped)
        page.click("button:text-is('Save and stop')")
        page.wait_for_selector(".pill.interrupted")
        page.close()
    assert not RunDirectory.open(tmp_path / "long").is_locked


@long
def test_a_file_that_cannot_be_read_says_what_to_do(opened: Browser, tmp_path: Path) -> None:
    write_tiny_talker(tmp_path / "tiny.gguf")
    asked = '{"question": "a", "answer": "b"}\n'
    with studio(tmp_path) as (address, _):
        page = page_of(opened, address)
        choose(page, model="tiny.gguf")
        open_step(page, "data")
        for name, text, problem in (
            ("x.exe", "MZ", "is not a data file"),
            ("empty.jsonl", "", "is empty"),
            ("lines.jsonl", "hello\n", "not valid JSON"),
            ("prices.csv", "id,price\n1,2\n3,4\n", "found 'id', 'price'"),
        ):
            page.wait_for_selector(".drop")
            page.evaluate(DROP, [name, text])
            page.wait_for_selector(f'.problem:has-text("{problem}")')
            assert page.locator(".problem:visible").count() == 1  # the last one
        assert violations(page) == []
        page.select_option("select >> nth=2", "price")
        page.select_option("select >> nth=3", "id")
        page.click("text=Read these columns")
        page.wait_for_selector(".example mark:has-text('1')")
        assert page.locator(".problem:visible").count() == 0
        assert "--map prompt=price --map completion=id" in " ".join(page.inner_text(".terminal code").split())
        page.evaluate(DROP, ["u\u0308ber: 1/2.jsonl", '{"question": "a", "answer": ""}\n' + asked * 2])
        page.click("text=Skip examples that cannot be used")  # the columns of another file are forgotten
        page.wait_for_selector("figcaption:has-text('\u00fcber- 1-2.jsonl, line 2')")
        command = " ".join(page.inner_text(".terminal code").split())
        assert "--skip-bad" in command
        assert "--map" not in command
        page.select_option("select >> nth=1", ".featherback/uploads/\u00fcber- 1-2.jsonl")
        page.wait_for_selector(".problem:has-text('the same file')")
        page.click("button:text-is('Undo')")
        page.wait_for_selector(".problem:has-text('is empty')")
        page.close()


@long
def test_how_a_file_is_read_is_chosen_on_the_page(opened: Browser, tmp_path: Path) -> None:
    write_tiny_talker(tmp_path / "tiny.gguf")
    workbook(tmp_path / "book.xlsx", [["x"]], [["question", "answer"], ["a", "b"]])
    (tmp_path / "old.csv").write_bytes("question,answer\na,\u00e4\n".encode("cp1252"))
    (tmp_path / "notes.pdf").write_text("%PDF-1.4")
    with studio(tmp_path) as (address, _):
        page = page_of(opened, address)
        choose(page, model="tiny.gguf")
        open_step(page, "data")
        page.wait_for_selector(".drop")
        chat = "".join(f"[24/12/2025, 18:01:0{n}] {'AB'[n % 2]}nn: Hi {n}\n" for n in range(6))
        page.evaluate(DROP, ["chat.txt", chat])
        page.wait_for_selector(".problem:has-text('holds messages of Ann (3), Bnn (3).')")
        assert "--" not in page.locator(".problem:visible").inner_text()
        page.select_option("select >> nth=2", "Bnn")
        assert violations(page) == []
        page.click("text=Learn these messages")
        page.wait_for_selector(".example mark:has-text('Hi 1')")
        assert "--me Bnn" in " ".join(page.inner_text(".terminal code").split())
        page.select_option("select >> nth=0", "book.xlsx")
        page.select_option("select >> nth=2", "S2")
        page.click("text=Read this sheet")
        page.wait_for_selector(".example mark:has-text('b')")
        page.select_option("select >> nth=0", "old.csv")
        page.click("text=Read it as text of Windows")
        page.wait_for_selector(".example mark:has-text('\u00e4')")
        command = " ".join(page.inner_text(".terminal code").split())
        assert "--table encoding=cp1252" in command
        assert "sheet=" not in command  # how another file is read is forgotten
        (tmp_path / "tickets.csv").write_text("Customer question,Agent reply,Topic\na,b,Parcels\n")
        page.reload()
        page.wait_for_selector("select")
        page.select_option("select >> nth=0", "tickets.csv")
        page.wait_for_selector("text=Reading 'Customer question' as prompt")
        assert "--map" not in page.inner_text(".beside")
        page.click("text=Choose other columns")
        page.select_option("select >> nth=3", "Topic")
        page.click("text=Read these columns")
        page.wait_for_selector(".example mark:has-text('Parcels')")
        page.select_option("select >> nth=0", "notes.pdf")
        page.wait_for_selector(".problem:has-text('pdftotext notes.pdf notes.txt')")
        page.close()


@long
def test_a_page_whose_server_has_ended_says_so(opened: Browser, trained: Path) -> None:
    with studio(trained) as (address, process):
        page = page_of(opened, address)
        page.wait_for_selector(".option")
        process.kill()
        process.wait()
        open_step(page, "training")
        page.wait_for_selector(".problem:has-text('The studio does not answer')")
        open_step(page, "model")
        page.wait_for_selector(".problem:has-text('The studio does not answer')")
        assert "Looking for models" not in page.inner_text("main")
        page.close()


def _grows(metrics: Path, beyond: int = 0) -> None:
    """Wait until a run has made further steps."""
    before = max(beyond, len(metrics.read_text().splitlines()))
    end = time.monotonic() + PATIENCE / 1000
    while len(metrics.read_text().splitlines()) <= before:
        assert time.monotonic() < end, "the run makes no steps"
        time.sleep(0.1)


@long
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1600])
def test_every_step_is_accessible_and_fits(opened: Browser, trained: Path, theme: str, width: int) -> None:
    with studio(trained) as (address, _):
        page = page_of(opened, address, viewport={"width": width, "height": 900}, color_scheme=theme)
        choose(page, model="tiny.gguf", data="train.jsonl", eval_data="held-out.jsonl", run="two")
        for step in STEPS:
            open_step(page, step)
            page.wait_for_selector(SHOWN[step])
            if step == "settings":
                page.click("details.more > summary")
                for summary in page.locator(".panels summary").all():
                    summary.click()
            if step == "chat":
                page.fill("textarea", "Hello")
                page.click("button:text-is('Send')")
                page.wait_for_selector("button[type=submit]:enabled")
                assert page.locator(".turn").count() == 1
            assert page.evaluate(WIDE) <= 0, f"{step} scrolls sideways"
            assert violations(page) == [], step
        page.close()


def violations(page: Page) -> list[str]:
    """The rules of axe that the page breaks, and where."""
    page.evaluate(AXE)
    found = page.evaluate("axe.run()")
    return [
        f"{each['id']}: {node['target']} {node['failureSummary']}"
        for each in found["violations"]
        for node in each["nodes"]
    ]


def test_a_planted_fault_of_the_page_is_found_by_axe(opened: Browser) -> None:
    page = opened.new_page()
    grey = "<p style='color:#ccc;background:#fff'>grey</p>"
    page.set_content(f"<html lang=en><title>x</title><main><h1>x</h1><input>{grey}</main>")
    assert {found.partition(":")[0] for found in violations(page)} == {"label", "color-contrast"}
    page.close()


@long
def test_the_keyboard_reaches_everything(opened: Browser, trained: Path) -> None:
    """From the top of the page, Tab alone reaches the steps and the controls of a step, each with a visible focus."""
    with studio(trained) as (address, _):
        page = page_of(opened, address, reduced_motion="reduce")
        choose(page, model="tiny.gguf", data="train.jsonl", run="two")
        open_step(page, "export")
        page.wait_for_selector("fieldset")
        page.reload()
        page.wait_for_selector("fieldset")
        seen = []
        for _ in range(40):
            page.keyboard.press("Tab")
            seen.append(page.evaluate("document.activeElement.textContent || document.activeElement.id"))
            assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
            if "Export" in seen[-1] and seen[-1] == "Export":
                break
        assert "Skip to the step" in seen[0]
        assert "Export" in seen
        assert any(re.search("Training", text) for text in seen)
        page.keyboard.press("Enter")
        page.wait_for_selector("h2:text-is('Written'), .problem")
        page.close()


@long
def test_without_its_key_the_page_says_what_to_open(opened: Browser, trained: Path) -> None:
    with studio(trained) as (address, _):
        page = opened.new_context().new_page()
        page.set_default_timeout(PATIENCE)
        page.goto(address.partition("#")[0])
        page.wait_for_selector("text=does not have the key")
        page.goto(address.partition("#")[0] + "#key=wrong")
        page.reload()
        page.wait_for_selector("text=does not have the key")
        page.close()
