import * as api from "./api.js";
import { chartOf, counted, fromHTML, h, notesOf, problem, show, terminal, tilesOf } from "./dom.js";
import { app, chooseRun, loadRuns, next, report, say, statusOf } from "./app.js";

const EVERY = 1000; // milliseconds between looks at a run
const SPOKEN = 15000; // milliseconds between reports to a screen reader
const UNDERWAY = ["running", "starting", "stopping"];
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
        const runs = ["key", "away"].includes(error.code) ? app.runs : await loadRuns().catch(() => app.runs);
        if (mine !== generation) return;
        if (!runs.some((run) => run.name === name)) return this.draw(body); // a new run that was stopped before its first step is deleted
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
  if (run.status !== "running" || !run.step) return `${run.name}: ${progressOf(run)}`;
  const loss = run.tiles?.[0];
  return `${progressOf(run)}${loss ? `, loss ${loss.value}` : ""}`;
};

// The sentence beside the status.
function progressOf(run) {
  const step = run.steps ? `Step ${counted(run.step)} of ${counted(run.steps)}` : "";
  if (run.status === "stopping") return step ? `${step}. The run saves and stops after the step that is under way.` : "The run is being stopped.";
  if (run.status === "starting") return step && run.step ? `${step} is done. The run is being resumed.` : "The model is being opened and the data are being prepared.";
  if (run.status === "running") return `${step}${run.left ? `, ${run.left} left` : ""}`;
  if (run.status !== "interrupted") return step;
  if (!run.saved) return `${step ? `${step}. ` : ""}Nothing is saved yet; training begins anew.`;
  return run.saved === run.step ? `${step} is saved; training goes on from there.` : `${step}. Step ${counted(run.saved)} is saved; training goes on from there.`;
}

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
    await loadRuns().catch(() => {}); // the look reports what is wrong
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
  parts.count.textContent = progressOf(run);
  parts.bar.value = run.steps ? run.step / run.steps : 0;
  if (!run.step && isUnderway(run)) parts.bar.removeAttribute("value");
  parts.stop.hidden = !run.alive || !isUnderway(run);
  parts.stop.disabled = run.status === "stopping";
  parts.resume.hidden = !run.can_resume || run.alive;
  parts.onward.hidden = isUnderway(run) || !run.can_export;
  parts.log.textContent = run.log;
  parts.output.hidden = !run.log;
  parts.command.hidden = !run.commands;
  if (run.commands) parts.command.set(run.can_resume && !run.alive ? run.commands.resume : run.commands.report);
  const words = [run.failure, run.worse_message].filter(Boolean);
  show(parts.problems, words.map((text) => problem({ message: text })));
  if (!run.charts) return show(parts.body);
  if (!run.step) return show(parts.body, ["starting", "running"].includes(run.status) && h("p", { class: "quiet" }, "The curves begin with the first step. Before it, the held-out loss is measured."));
  show(parts.body, run.tiles.length ? tilesOf(run.tiles) : null, chartOf(run.charts),
    h("div", { class: "charts" }, run.charts.more.map((svg) => h("div", { class: "card drawn" }, fromHTML(svg)))),
    run.notes.length ? h("details", { class: "card" }, h("summary", {}, "Notes about the data"), notesOf(run.notes)) : null);
}
