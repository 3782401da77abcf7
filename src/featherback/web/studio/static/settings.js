import * as api from "./api.js";
import { card, counted, field, h, notesOf, problem, select, show, terminal, unique } from "./dom.js";
import { app, loadRuns, next, report, say } from "./app.js";

const PAUSE = 500; // milliseconds after the last change
const PATIENCE = 20000; // a forecast that took longer is made again on request only
let timer = null;
let took = 0;
let latest = 0; // number of the last request for the command; older answers are not shown

const option = (name) => app.start.form.flatMap((group) => group.options).find((each) => each.name === name);

export default {
  id: "settings",
  title: "Settings",
  lead: "Three questions are enough. Everything else has a good default.",
  done: ({ chosen }) => chosen && Object.entries(chosen.settings).map(([name, value]) => `${option(name)?.flag.slice(2) ?? name} ${value}`).slice(0, 2).join(", ") || (chosen.model && chosen.data ? "as recommended" : ""),

  leave() {
    clearTimeout(timer);
    latest += 1;
  },

  async draw(body) {
    if (!app.chosen.model || !app.chosen.data) {
      return show(body, h("p", {}, "Choose a model and examples first."), next(app.chosen.model ? "data" : "model", app.chosen.model ? "Choose examples" : "Choose a model"));
    }
    await loadRuns();
    const questions = h("div", { class: "stack" });
    const forecast = h("section", { class: "card forecast", "aria-label": "Forecast" });
    const command = terminal("");
    const name = h("input", { type: "text", value: app.chosen.name_of_run || app.next_name, autocomplete: "off", spellcheck: "false", maxLength: 100,
      oninput: () => { app.chosen.keep({ name_of_run: name.value.trim() }); changed(false); } });
    if (app.runs.some((run) => run.name === name.value)) name.value = app.next_name;
    app.chosen.keep({ name_of_run: name.value });
    const start = h("button", { type: "button", class: "primary", onclick: () => train() }, "Train");
    const wrong = h("div", { class: "stack" });
    const more = h("details", { class: "card more" }, h("summary", {}, "All options"), h("div", { class: "panels" }));
    more.addEventListener("toggle", () => { if (more.open) drawPanels(); });
    show(body, h("div", { class: "beside" }, h("div", { class: "stack" }, questions, more),
      h("aside", { class: "column stack", "aria-label": "Forecast and start" }, forecast,
        h("div", { class: "card" }, field("Name of the run", name), h("p", { class: "row" }, start), wrong))),
    command);

    const train = async () => {
      start.disabled = true;
      show(wrong);
      clearTimeout(timer);
      try {
        const { name: run } = await api.post("/runs", app.chosen.request);
        app.chosen.keep({ run, name_of_run: "" });
        location.hash = "training";
      } catch (error) {
        report(wrong, error);
        start.disabled = false;
      }
    };

    const set = (values, redraw = true) => {
      const settings = { ...app.chosen.settings };
      for (const [key, value] of Object.entries(values)) {
        if (value) settings[key] = value;
        else delete settings[key];
      }
      app.chosen.keep({ settings });
      if (redraw) drawQuestions();
      changed();
    };

    const changed = async (anew = true) => {
      clearTimeout(timer);
      const mine = (latest += 1);
      try {
        const found = await api.post("/command", app.chosen.request);
        if (mine !== latest) return;
        command.set(found.command);
        show(wrong);
        start.disabled = false;
      } catch (error) {
        if (mine !== latest) return;
        show(wrong, problem(error));
        start.disabled = true;
        return;
      }
      if (!anew) return;
      if (took > PATIENCE) return waiting(h("button", { type: "button", onclick: () => predict() }, "Make a forecast"));
      timer = setTimeout(predict, PAUSE);
    };

    const waiting = (...inside) => { show(forecast, h("h2", {}, "Forecast"), inside); };

    const predict = async () => {
      const began = performance.now();
      forecast.setAttribute("aria-busy", "true");
      if (!forecast.childElementCount) waiting(h("p", { class: "quiet" }, "Counting tokens, memory and steps …"));
      try {
        const found = await api.post("/forecast", app.chosen.request);
        took = performance.now() - began;
        show(forecast, ...described(found));
        say(`Forecast: ${inWords(found.seconds)} of training, ${Math.round(found.plan.predicted_rss_mb)} megabytes`);
      } catch (error) {
        if (error.code === "replaced") return;
        waiting();
        report(forecast, error);
      }
      forecast.removeAttribute("aria-busy");
    };

    const drawQuestions = () => show(questions, app.start.questions.map((question, index) => asked(question, index, set)));
    const drawPanels = () => show(more.querySelector(".panels"), app.start.form.map((group) => panel(group, (values) => {
      set(values);
      if (Object.keys(values).some((each) => option(each).kind === "choice")) drawPanels();
    })));
    drawQuestions();
    changed();
  },
};

// The options that an answer to a question sets or clears.
const concernedBy = (question) => {
  const own = question.own && option(question.own);
  return [...new Set([...question.choices.flatMap((each) => Object.keys(each.options)), own?.name, own?.instead_of])].filter(Boolean);
};

const isChosen = (choice, question) => {
  const settings = app.chosen.settings;
  const concerned = concernedBy(question);
  const wanted = Object.entries(choice.options);
  return wanted.length ? wanted.every(([name, value]) => settings[name] === value) : concerned.every((name) => !settings[name]);
};

function asked(question, index, set) {
  const cleared = Object.fromEntries(concernedBy(question).map((name) => [name, ""]));
  const choose = (choice) => set({ ...cleared, ...choice.options });
  const choices = question.choices.map((choice, number) => h("label", { class: "option" },
    h("input", { type: "radio", name: `question-${index}`, id: `question-${index}-${number}`, checked: isChosen(choice, question),
      onchange: () => { choose(choice); document.getElementById(`question-${index}-${number}`).focus(); } }),
    h("span", {}, h("strong", {}, choice.title), h("span", { class: "help" }, choice.text))));
  const about = question.own && option(question.own);
  const own = about && h("input", { type: "text", class: "short", placeholder: about.default ?? "", value: app.chosen.settings[question.own] ?? "",
    onchange: () => set({ ...cleared, [question.own]: own.value.trim() }) });
  return h("fieldset", { class: "card" }, h("legend", {}, question.title), h("div", { class: "options" }, choices),
    about ? field(about.brief, own) : null);
}

function inWords(seconds) {
  if (seconds < 100) return `${Math.max(1, Math.round(seconds))} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 100 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

function described(found) {
  const { plan, config } = found;
  const megabytes = (value) => `${Math.round(value)} MB`;
  const rows = [
    ["Steps", `${counted(found.steps)}, ${plan.predicted_step_seconds.toFixed(2)} s each`],
    ["Examples", found.held_out ? `${found.sequences}, and ${found.held_out} held out` : `${found.sequences}`],
    ["Learning rate", config.learning_rate],
    ["Length limit of an example", `${config.seq_len} tokens`],
    ["Least memory limit", `${plan.least_mb} MB, ${plan.least_step_seconds.toFixed(2)} s/step`],
    plan.fastest_mb > plan.least_mb && ["Limit for full speed", `${plan.fastest_mb} MB, ${plan.fastest_step_seconds.toFixed(2)} s/step`],
  ].filter(Boolean);
  return [
    h("h2", {}, "Forecast"),
    h("dl", { class: "two" },
      h("div", {}, h("dt", {}, "time"), h("dd", { class: "figure" }, inWords(found.seconds))),
      h("div", {}, h("dt", {}, "memory"), h("dd", { class: "figure" }, megabytes(plan.predicted_rss_mb)))),
    h("dl", { class: "facts" }, rows.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, String(value))))),
    notesOf(found.notes),
  ];
}

function panel(group, set) {
  const settings = app.chosen.settings;
  const visible = group.options.filter((each) =>
    (!each.only_for || each.only_for === (settings.train || option("train").default)) &&
    (!each.only_with || each.only_with.values.includes(settings[each.only_with.option] || option(each.only_with.option).default)));
  return h("details", { open: visible.some((each) => settings[each.name]) }, h("summary", {}, group.title),
    h("div", { class: "fields" }, visible.map((about) => field(about.flag, inputFor(about, settings[about.name] ?? "", set), `${about.help}${about.default ? ` Default: ${about.default}.` : ""}`))));
}

function inputFor(about, value, set) {
  const change = (text) => set({ [about.name]: text });
  if (about.kind === "choice") return select([["", about.default ?? "default"], ...about.choices.filter((each) => each !== about.default).map((each) => [each, each])], value, change);
  if (about.kind === "switch") return select([["", "no"], ["yes", "yes"]], value, change);
  const list = about.words.length ? h("datalist", { id: unique("words") }, about.words.map((word) => h("option", { value: word }))) : null;
  const input = h("input", { type: "text", value, placeholder: about.default ?? "", inputmode: about.kind === "number" ? "decimal" : null,
    autocomplete: "off", spellcheck: "false", onchange: () => change(input.value.trim()) });
  if (list) {
    input.setAttribute("list", list.id);
    input.after(list);
  }
  return input;
}
