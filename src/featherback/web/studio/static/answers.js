import * as api from "./api.js";
import { field, fold, fromHTML, h, problem, show, terminal } from "./dom.js";
import { app, chooseRun, loadRuns, next, report, say } from "./app.js";
import { isUnderway } from "./training.js";

const EVERY = 1000; // milliseconds between looks at a run that will write its answers
let timer = null;
const PARTS = [["before", "Before training"], ["after", "After training"], ["expected", "In your file"]];

export default {
  id: "answers",
  title: "Answers",
  lead: "The same questions before and after training, from the held-out examples if there are any. Long answers are cut off.",

  leave() { clearTimeout(timer); },

  async draw(body) {
    clearTimeout(timer);
    await loadRuns();
    if (!app.runs.length) return show(body, h("p", {}, "There are no runs in this folder yet."), next("settings", "Go to settings"));
    const name = app.chosen.run;
    const view = h("div", { class: "stack" });
    show(body, chooseRun((run) => { app.chosen.keep({ run }); this.draw(body); }), view);
    const run = await api.get(api.runPath(name));
    if (!run.samples) return show(view, h("p", {}, "This run has not begun yet."), next("training", "Watch it"));
    const list = h("div", { class: "stack" });
    const count = h("input", { type: "number", min: 1, max: 50, value: "5", class: "short" });
    const button = h("button", { type: "button", onclick: () => make() }, "Answer");
    const wrong = h("div");
    const command = terminal(`${run.commands.report} --samples 5`);
    count.addEventListener("input", () => command.set(`${run.commands.report} --samples ${count.value}`));
    const draw = (samples) => show(list, samples.map((each, index) => exchange(each, index)), samples.length ? null
      : h("p", { class: "quiet" }, isUnderway(run) ? "The answers are written when training ends." : run.alive ? "The answers are being written …" : run.can_export ? "This run has no answers yet." : "Training was stopped. Resume it: the answers are written when it ends."));
    const make = async () => {
      button.disabled = true;
      button.textContent = "Answering …";
      show(wrong);
      try {
        draw((await api.post(`${api.runPath(name)}/samples`, { count: Number(count.value) })).samples);
        say("The answers are ready");
      } catch (error) {
        report(wrong, error);
      }
      button.disabled = false;
      button.textContent = "Answer";
    };
    draw(run.samples);
    const comes = (found) => !found.samples?.length && (isUnderway(found) || found.alive); // they follow the last step
    const look = async () => {
      const found = await api.get(api.runPath(name)).catch(() => run);
      if (app.current !== this || app.chosen.run !== name) return;
      if (comes(found)) timer = setTimeout(look, EVERY);
      else this.draw(body);
    };
    if (comes(run)) timer = setTimeout(look, EVERY);
    show(view, run.worse_message ? problem({ message: run.worse_message }) : null, list,
      isUnderway(run) || !run.can_export ? null : h("div", { class: "card row" }, field("Number of examples to answer", count), button), wrong,
      run.can_chat && !isUnderway(run) ? next("chat", "Next: chat") : run.can_export ? null : next("training", "Go to training"), run.can_export ? command : null);
  },
};

const exchange = (sample, index) => h("article", { class: "card exchange" },
  h("h2", {}, `Question ${index + 1}`), h("p", { class: "question" }, fromHTML(sample.question)),
  h("div", { class: "three" }, PARTS.map(([part, title]) => h("div", { class: part }, h("h3", {}, title, part === "after" && sample.after.trim() === sample.expected.trim() ? h("span", { class: "same" }, "✓ as in your file") : null),
    sample[part].trim() ? h("p", { class: "text" }, fromHTML(sample[part])) : h("p", { class: "quiet" }, "(no text)")))),
  sample.prompt === sample.question ? null : fold("The whole prompt", () => h("p", { class: "prompt" }, fromHTML(sample.prompt))));
