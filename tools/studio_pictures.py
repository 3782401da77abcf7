"""Take pictures of every step of the studio, light and dark, narrow and wide: build/studio/STEP-THEME-WIDTH.png.

    python -m tools.studio_pictures [--model MODEL] [--docs] [STEP ...]

MODEL is a GGUF model on this machine, by default smollm2-135m. Two runs on the demo's data are trained in
build/studio/work unless an earlier call has left them there. --docs takes the pictures of docs/figures instead.
Chromium must be installed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.web.studio.browser import PATIENCE, SHOWN, STEPS, browser, studio

from featherback.data.demo import HELD_OUT, TRAIN
from featherback.models.hub.locate import locate

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT = Path(__file__).parents[1]
OUT, FIGURES = ROOT / "build" / "studio", ROOT / "docs" / "figures"
SIZES = {400: 860, 1600: 1000}
DOCUMENTED, WIDTH = ("training", "chat"), 1080
RUNS = {"short-run": ("--epochs", "0.5"), "shell-helper": ("--epochs", "1", "--rank", "16")}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--docs", action="store_true")
    parser.add_argument("steps", nargs="*", metavar="STEP", choices=[[], *STEPS])
    asked = parser.parse_args()
    work, model = _prepared(asked.model)
    with studio(work) as (address, _), browser() as opened:
        for width, height in ({WIDTH: 900} if asked.docs else SIZES).items():
            for theme in ("light",) if asked.docs else ("light", "dark"):
                context = opened.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
                page = context.new_page()
                page.set_default_timeout(PATIENCE)
                page.goto(address)
                page.wait_for_selector("#steps a")
                _choose(page, model)
                for step in asked.steps or (DOCUMENTED if asked.docs else STEPS):
                    _show(page, step)
                    if asked.docs:
                        page.locator(".frame").screenshot(path=FIGURES / f"studio-{step}.png")
                    else:
                        page.screenshot(path=OUT / f"{step}-{theme}-{width}.png", full_page=True)
                    print(f"{step}-{theme}-{width}")
                context.close()


def _prepared(name: str) -> tuple[Path, str]:
    """A folder with the model, the demo's data and the runs of RUNS; and the model's name in it."""
    work, model = OUT / "work", f"{Path(name).stem}.gguf"
    work.mkdir(parents=True, exist_ok=True)
    if not (work / model).exists():
        shutil.copyfile(locate(name), work / model)
    for path, name in ((TRAIN, "requests.jsonl"), (HELD_OUT, "held-out.jsonl")):
        shutil.copyfile(path, work / name)
    for name, words in RUNS.items():
        if not (work / name / "report.html").exists():
            shutil.rmtree(work / name, ignore_errors=True)
            data = ["--data", "requests.jsonl", "--eval-data", "held-out.jsonl"]
            command = [sys.executable, "-m", "featherback", "train", model, *data, *words, "--out", name]
            subprocess.run(command, cwd=work, check=True)
    return work, model


def _choose(page: Page, model: str) -> None:
    """Put the choices of the earlier steps into the browser's storage, as a person who made them before has them."""
    chosen = {"model": model, "data": "requests.jsonl", "eval_data": "held-out.jsonl", "run": "shell-helper"}
    script = (
        "kept => localStorage.setItem(`featherback-choices:${document.getElementById('folder').textContent}`, kept)"
    )
    page.evaluate(script, json.dumps(chosen))
    page.reload()
    page.wait_for_selector("#steps a")


def _show(page: Page, step: str) -> None:
    """Open a step and wait for what takes long."""
    page.evaluate("step => { location.hash = step; }", step)
    page.wait_for_selector(f'#steps a[href="#{step}"][aria-current]')
    page.wait_for_selector(SHOWN.get(step, ".body .card"))
    if step == "settings":
        page.click("details.more > summary")
    if step == "chat":
        page.fill("textarea", "Show the last 30 lines of mail.log")
        page.click("button:text-is('Send')")
        page.wait_for_selector(".trained .text:not(.writing)")
        page.wait_for_timeout(20_000)
        if page.is_visible("button:text-is('Stop')"):  # the original may say a lot
            page.click("button:text-is('Stop')")
        page.wait_for_selector("button[type=submit]:enabled")
    page.evaluate("scrollTo(0, 0)")
    page.wait_for_timeout(300)


if __name__ == "__main__":
    main()
