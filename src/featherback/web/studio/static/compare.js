import * as api from "./api.js";
import { card, chartOf, h, show, terminal } from "./dom.js";
import { app, chooseRun, loadRuns, next, report } from "./app.js";

export default {
  id: "compare",
  title: "Compare",
  lead: "Two runs in one chart. Compare the held-out loss of runs with the same held-out examples: lower is better.",

  async draw(body) {
    await loadRuns();
    const runs = app.runs.filter((run) => run.status !== "damaged" && run.base);
    if (runs.length < 2) return show(body, h("p", {}, "This needs two runs. Train again with another setting, and see which one helps."), next("settings", "Go to settings"));
    const chosen = [runs.find((run) => run.name === app.chosen.run) ?? runs[0]].map((run) => run.name);
    chosen.push((runs.find((run) => run.name !== chosen[0]) ?? runs[1]).name);
    const view = h("div", { class: "stack" });
    const choose = (index, label) => chooseRun((run) => { chosen[index] = run; draw(); }, chosen[index], label, runs);
    show(body, h("div", { class: "row choices" }, choose(0, "First run"), choose(1, "Second run")), view);
    const draw = async () => {
      if (chosen[0] === chosen[1]) return show(view, h("p", { class: "quiet" }, "Choose two different runs."));
      try {
        const found = await api.post("/compare", { runs: chosen });
        show(view, verdict(found, chosen), results(found, chosen), found.charts.map((drawn) => chartOf(drawn)), options(found, chosen),
          next("chat", "Next: chat"), terminal(chosen.map((name) => `featherback report ${/^[\w./-]+$/.test(name) ? name : `'${name}'`}`).join("; ")));
      } catch (error) {
        show(view);
        report(view, error);
      }
    };
    await draw();
  },
};

// Which run predicts the held-out examples better. A difference of one part in a hundred says little.
function verdict(found, names) {
  const [first, second] = names.map((name) => found.held_out[name]?.[1]);
  if (!first || !second) return h("p", {}, "A run without held-out examples cannot be judged here. Compare the answers.");
  if (!found.comparable) return h("p", {}, "The runs have other models or other held-out examples, so their held-out losses cannot be compared.");
  if (Math.abs(first - second) < 0.01 * Math.max(first, second)) return h("p", {}, `Both runs are about equally good: held-out loss ${first.toFixed(4)} and ${second.toFixed(4)}.`);
  const better = first < second ? 0 : 1;
  const [low, high] = [first, second].sort((a, b) => a - b);
  return h("p", {}, h("strong", {}, names[better]), ` is better: held-out loss ${low.toFixed(4)}, and ${high.toFixed(4)} for ${names[1 - better]}.`);
}

const heads = (names) => h("thead", {}, h("tr", {}, h("td"), names.map((name, index) =>
  h("th", { scope: "col" }, h("span", { class: `key ${"ab"[index]}`, "aria-hidden": "true" }), name))));

const scrolled = (title, table) => h("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": title }, table);

function results(found, names) {
  const titles = [...new Set(names.flatMap((name) => found.tiles[name].map((tile) => tile.name)))];
  const value = (name, title) => found.tiles[name].find((tile) => tile.name === title);
  return card("Results", scrolled("Results", h("table", {}, heads(names), h("tbody", {}, titles.map((title) => h("tr", {}, h("th", { scope: "row" }, title),
    names.map((name) => h("td", {}, h("strong", {}, value(name, title)?.value ?? "-"), " ", h("span", { class: "quiet" }, value(name, title)?.more ?? "")))))))));
}

function options(found, names) {
  return card("Options that differ", found.options.length
    ? scrolled("Options that differ", h("table", {}, heads(names), h("tbody", {}, found.options.map((row) =>
      h("tr", {}, h("th", { scope: "row" }, h("code", {}, row.flag)), row.values.map((value) => h("td", {}, value || "-")))))))
    : h("p", {}, "None."));
}
