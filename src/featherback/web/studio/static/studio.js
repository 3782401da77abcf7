// The frame of the page: which step is shown.

import * as api from "./api.js";
import { Choices, app, loadRuns, locked, place, report } from "./app.js";
import { h, problem, show } from "./dom.js";
import answers from "./answers.js";
import chat from "./chat.js";
import compare from "./compare.js";
import data from "./data.js";
import exporting from "./export.js";
import model from "./model.js";
import settings from "./settings.js";
import training, { isUnderway } from "./training.js";

const STEPS = [model, data, settings, training, answers, compare, chat, exporting];

function drawSteps() {
  const list = document.getElementById("steps");
  show(list, STEPS.map((step, index) => {
    const done = step.done?.(app) ?? "";
    const is = step === app.current;
    return h("li", {}, h("a", { href: `#${step.id}`, "aria-current": is ? "step" : null, class: done ? "done" : null },
      h("span", { class: "number", "aria-hidden": "true" }, String(index + 1)),
      h("span", { class: "name" }, step.title, done ? h("span", { class: "chosen" }, done) : null)));
  }));
}

async function draw() {
  const step = STEPS.find((each) => `#${each.id}` === location.hash) ?? STEPS[0];
  const moved = app.current !== null && app.current !== step;
  app.current?.leave?.();
  app.current = step;
  app.chosen.keep({ step: step.id });
  document.title = `${step.title} - Featherback studio`;
  const body = h("div", { class: "body stack" });
  show(place, h("h1", {}, step.title), h("p", { class: "lead" }, step.lead), body);
  if (moved) {
    scrollTo(0, 0);
    place.focus({ preventScroll: true });
  }
  try {
    await step.draw(body, app);
  } catch (error) {
    report(body, error);
  }
}

async function begin() {
  if (!api.takeKey()) return locked();
  addEventListener("changed", drawSteps);
  try {
    app.start = await api.get("/start");
    app.chosen = new Choices(app.start.folder);
    if (!app.chosen.model && app.start.model) app.chosen.model = app.start.model;
    if (!app.chosen.data && app.start.data) app.chosen.data = app.start.data;
    document.getElementById("folder").textContent = app.start.folder;
    await loadRuns();
    const last = app.runs.some(isUnderway) ? "training" : app.chosen.step;
    if (!location.hash && last) history.replaceState(null, "", `#${last}`);
  } catch (error) {
    if (error.code === "key") return locked();
    return show(place, h("h1", {}, "The studio does not answer"), problem(error));
  }
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault(); // the fragment names the step
    place.focus();
  });
  addEventListener("hashchange", () => {
    if (/^#key=/.test(location.hash)) location.reload();
    else draw();
  });
  draw();
}

begin();
