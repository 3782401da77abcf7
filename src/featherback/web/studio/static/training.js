import * as api from "./api.js";
import { chartOf, fromHTML, h, notesOf, problem, show, terminal, tilesOf } from "./dom.js";
import { app, chooseRun, loadRuns, next, report, say, statusOf } from "./studio.js";

const EVERY = 1000; // milliseconds between looks at a run
const SPOKEN = 15000; // milliseconds between reports to a screen reader
const UNDERWAY = ["running", "starting"];
let timer = null;
let generation = 0;

export const isUnderway = (run) => UNDERWAY.includes(run.status);

export default {
  id: "training",
  title: "Training",
  lead: "The loss says how surprised the model is by your answers; it should fall. The run is a process of its own: you may close this page.",
  done: ({ runs }) => runs.find(isUnderway)?.name ?? (runs.length ? `${runs.length} run${runs.length > 1 ? "s" : ""}` : ""),

  leave() {
    clearTimeout(timer);
    generation += 1;
  },

  async draw(body) {
    await loadRuns();
    if (!app.runs.length) return show(body, h("p", {}, "There are no runs in this folder yet."), next("settings", "Go to settings"));
    const mine = (generation += 1);
    const view = h("div", { class: "stack" });
    const name = app.chosen.run;
    show(body, chooseRun((run) => { app.chosen.keep({ run }); this.draw(body); }), view);
    let spoken = 0;
    let drawn = "";
    const parts = frame(view, name, () => { clearTimeout(timer); look(); });
    parts.choice = body.querySelector(".choose option:checked");
    const look = async () => {
      let wait = EVERY;
      try {
        const began = performance.now();
        const run = await api.get(api.runPath(name));
        if (mine !== generation) return;
        wait = Math.max(EVERY, 5 * (performance.now() - began)); // a long run takes longer to read
        const now = JSON.stringify(run);
        if (now !== drawn) update(parts, run);
        drawn = now;
        if (Date.now() - spoken > SPOKEN || !isUnderway(run)) {
          spoken = Date.now();
          say(sentence(run));
        }
        if (!isUnderway(run) && !run.alive) return loadRuns();
      } catch (error) {
        if (mine !== generation) return;
        show(parts.problems);
        report(parts.problems, error);
        if (error.code === "key") return;
        wait = 5 * EVERY;
      }
      timer = setTimeout(look, document.hidden ? 5 * wait : wait);
    };
    await look();
  },
};

const sentence = (run) => {
  if (!isUnderway(run)) return `${run.name}: ${statusOf(run)}`;
  if (!run.step) return `${run.name}: the data are being prepared`;
  const loss = run.tiles?.[0];
  return `Step ${run.step} of ${run.steps}, ${loss ? `loss ${loss.value}, ` : ""}${run.left ?? ""} left`;
};

function frame(view, name, look) {
  const parts = {};
  const act = (path, button) => async () => {
    button.disabled = true;
    show(parts.problems);
    try {
      await api.post(`${api.runPath(name)}/${path}`);
    } catch (error) {
      report(parts.problems, error);
    }
    button.disabled = false;
    look();
  };
  parts.stop = h("button", { type: "button" }, "Save and stop");
  parts.stop.addEventListener("click", act("stop", parts.stop));
  parts.resume = h("button", { type: "button", class: "primary" }, "Resume");
  parts.resume.addEventListener("click", act("resume", parts.resume));
  parts.status = h("span", { class: "pill" });
  parts.count = h("span", { class: "quiet" });
  parts.bar = h("progress", { max: 1, value: 0, "aria-label": "Steps" });
  parts.problems = h("div", { class: "stack" });
  parts.body = h("div", { class: "stack" });
  parts.log = h("pre", { tabIndex: 0, "aria-label": "Output of the command" });
  parts.output = h("details", { class: "card" }, h("summary", {}, "Output of the command"), parts.log);
  parts.onward = h("p", { class: "next", hidden: true }, h("a", { class: "button", href: "#answers" }, "Next: answers before and after"));
  parts.command = terminal("");
  show(view, h("div", { class: "card progress" }, h("p", { class: "row" }, parts.status, parts.count, h("span", { class: "push" }), parts.stop, parts.resume), parts.bar),
    parts.problems, parts.body, parts.onward, parts.output, parts.command);
  return parts;
}

function update(parts, run) {
  parts.choice.textContent = `${run.name} (${statusOf(run)})`;
  parts.status.textContent = statusOf(run);
  parts.status.className = `pill ${run.status.replace(" ", "-")}`;
  parts.count.textContent = run.steps ? `step ${run.step} of ${run.steps}${run.left ? `, ${run.left} left` : ""}`
    : isUnderway(run) ? "The data are being prepared." : "";
  if (run.status === "interrupted") parts.count.textContent += run.saved ? `. Step ${run.saved} is saved; training goes on from there.` : ". Nothing is saved yet; training begins anew.";
  parts.bar.value = run.steps ? run.step / run.steps : 0;
  if (!run.steps && isUnderway(run)) parts.bar.removeAttribute("value");
  parts.stop.hidden = !run.alive;
  parts.resume.hidden = !run.can_resume || run.alive;
  parts.onward.hidden = isUnderway(run) || !run.can_export;
  parts.log.textContent = run.log;
  parts.output.hidden = !run.log;
  parts.command.hidden = !run.commands;
  if (run.commands) parts.command.set(run.can_resume && !run.alive ? run.commands.resume : run.commands.report);
  const words = [run.failure, run.worse_message].filter(Boolean);
  show(parts.problems, words.map((text) => problem({ message: text })));
  if (!run.charts) return show(parts.body);
  if (!run.step) return show(parts.body, isUnderway(run) && h("p", { class: "quiet" }, "The curves begin with the first step. Before it, the model answers the held-out examples."));
  show(parts.body, run.tiles.length ? tilesOf(run.tiles) : null, chartOf(run.charts),
    h("div", { class: "charts" }, run.charts.more.map((svg) => h("div", { class: "card drawn" }, fromHTML(svg)))),
    run.notes.length ? h("details", { class: "card" }, h("summary", {}, "Notes about the data"), notesOf(run.notes)) : null);
}
