// The frame of the page: which step is shown, what has been chosen, and what a screen reader hears.

import * as api from "./api.js";
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
const place = document.getElementById("main");

// What the person has chosen, kept by the browser for each folder.
class Choices {
  constructor(folder) {
    this.name = `featherback-choices:${folder}`;
    Object.assign(this, { model: "", data: "", eval_data: "", settings: {}, name_of_run: "", run: "", step: "" });
    try {
      Object.assign(this, JSON.parse(localStorage.getItem(this.name) ?? "{}"));
    } catch { /* a browser without storage */ }
  }

  keep(values) {
    Object.assign(this, values);
    const { name, ...kept } = this;
    try {
      localStorage.setItem(name, JSON.stringify(kept));
    } catch { /* as above */ }
    drawSteps();
  }

  get request() {
    return { model: this.model, data: this.data, eval_data: this.eval_data || null, settings: this.settings, name: this.name_of_run };
  }
}

export const app = { start: null, chosen: null, runs: [], next_name: "run", current: null };

export const say = (text) => { document.getElementById("live").textContent = text; };

export const go = (id) => { location.hash = id; };

export async function loadRuns() {
  Object.assign(app, await api.get("/runs"));
  if (!app.runs.some((run) => run.name === app.chosen.run)) app.chosen.keep({ run: app.runs[0]?.name ?? "" });
  drawSteps();
  return app.runs;
}

// The run that a step shows, and a list to choose another; null without runs.
export function chooseRun(change, value = app.chosen.run, label = "Run", allowed = app.runs) {
  const list = h("select", { onchange: () => change(list.value) },
    allowed.map((run) => h("option", { value: run.name, selected: run.name === value }, `${run.name} (${statusOf(run)})`)));
  list.id = `run-${label.replaceAll(" ", "-")}`;
  return h("div", { class: "choose" }, h("label", { for: list.id }, label), list);
}

export const next = (step, text) =>
  h("p", { class: "next" }, h("a", { class: "button", href: `#${step}` }, text));

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

export function report(body, error) {
  if (error.name === "AbortError" || error.code === "replaced") return;
  if (error.code === "key") locked();
  else {
    clear(body);
    const title = body.querySelector(":scope > h2");
    if (title) title.after(problem(error));
    else body.prepend(problem(error));
  }
}

export const clear = (body) => body.querySelectorAll(":scope > .problem").forEach((old) => old.remove());

// How a status is called on the page.
export const statusOf = (run) => (run.status === "interrupted" ? "stopped" : run.status);

function locked() {
  app.current?.leave?.();
  show(place, h("h1", {}, "Open the address with its key"),
    h("p", {}, "This tab does not have the key of the studio. ", h("code", {}, "featherback studio"),
      " prints an address that ends in #key=…; open that address. The key is new with each start."));
}

async function begin() {
  if (!api.takeKey()) return locked();
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
