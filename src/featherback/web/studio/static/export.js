import * as api from "./api.js";
import { card, field, h, notesOf, select, show, terminal } from "./dom.js";
import { app, chooseRun, loadRuns, next, report, say } from "./app.js";

export default {
  id: "export",
  title: "Export",
  lead: "Write the result in the form that another program reads. It appears in the opened folder, beside the run.",

  async draw(body) {
    await loadRuns();
    const runs = app.runs.filter((run) => run.can_export);
    if (!runs.length) return show(body, h("p", {}, "There is no result to export yet. It is written when training ends."),
      app.runs.length ? next("training", "Go to training") : next("settings", "Go to settings"));
    const name = runs.some((run) => run.name === app.chosen.run) ? app.chosen.run : runs[0].name;
    const run = await api.get(api.runPath(name));
    const asked = { run: name, to: app.start.targets[0].name, type: null, force: false };
    const types = h("div");
    const result = h("div", { class: "stack" });
    const command = terminal("");
    const button = h("button", { type: "button", class: "primary", onclick: () => write() }, "Export");
    const targets = app.start.targets.map((target) => h("label", { class: "option" },
      h("input", { type: "radio", name: "target", value: target.name, checked: target.name === asked.to, onchange: () => { asked.to = target.name; asked.type = null; draw(); } }),
      h("span", {}, h("strong", {}, target.title), h("span", { class: "help" }, target.help[0].toUpperCase() + target.help.slice(1)))));
    const force = h("input", { type: "checkbox", id: "force", onchange: () => { asked.force = force.checked; draw(); } });
    const draw = () => {
      const target = app.start.targets.find((each) => each.name === asked.to);
      show(types, target.types.length > 1 ? field("Number format", select([["", "the default"], ...target.types.map((each) => [each, each])], asked.type ?? "",
        (type) => { asked.type = type || null; draw(); })) : null);
      command.set([run.commands.export.replace("TARGET", asked.to), asked.type && `--type ${asked.type}`, asked.force && "--force"].filter(Boolean).join(" "));
    };
    const write = async () => {
      button.disabled = true;
      button.textContent = "Exporting …";
      show(result);
      try {
        const done = await api.post("/export", asked);
        const onward = terminal(done.next);
        onward.querySelector("figcaption").textContent = "To use it";
        show(result, card("Written", h("p", {}, h("code", {}, done.path)), notesOf(done.notes), onward));
        say(`Written: ${done.path}`);
      } catch (error) {
        report(result, error);
      }
      button.disabled = false;
      button.textContent = "Export";
    };
    draw();
    show(body, chooseRun((each) => { app.chosen.keep({ run: each }); this.draw(body); }, name, "Run", runs),
      h("fieldset", { class: "card" }, h("legend", {}, "For which program?"), h("div", { class: "options many" }, targets), types,
        h("p", { class: "row" }, h("label", { class: "check" }, force, " Replace an earlier export")), h("p", { class: "row" }, button)),
      result, command);
  },
};
