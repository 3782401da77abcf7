// What the steps share: what has been chosen, the runs, and what a screen reader hears.

import * as api from "./api.js";
import { h, problem, show } from "./dom.js";

export const place = document.getElementById("main");

// What the person has chosen, kept by the browser for each folder.
export class Choices {
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
    changed();
  }

  get request() {
    return { model: this.model, data: this.data, eval_data: this.eval_data || null, settings: this.settings, name: this.name_of_run };
  }
}

// The frame shows the steps again.
const changed = () => dispatchEvent(new Event("changed"));

export const app = { start: null, chosen: null, runs: [], next_name: "run", current: null };

export const say = (text) => { document.getElementById("live").textContent = text; };

export async function loadRuns() {
  Object.assign(app, await api.get("/runs"));
  if (!app.runs.some((run) => run.name === app.chosen.run)) app.chosen.keep({ run: app.runs[0]?.name ?? "" });
  changed();
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

export function locked() {
  app.current?.leave?.();
  show(place, h("h1", {}, "Open the address with its key"),
    h("p", {}, "This tab does not have the key of the studio. ", h("code", {}, "featherback studio"),
      " prints an address that ends in #key=…; open that address. The key is new with each start."));
}
