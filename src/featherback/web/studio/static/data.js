import * as api from "./api.js";
import { card, counted, field, fold, fromHTML, h, notesOf, select, show, size, terminal, unique } from "./dom.js";
import { app, clear, next, report, say } from "./app.js";

export default {
  id: "data",
  title: "Data",
  lead: "Choose your examples: a table or spreadsheet of questions and answers, a chat, or texts. They stay on this machine.",
  done: ({ chosen }) => chosen?.data.split("/").pop(),

  async draw(body) {
    if (!app.chosen.model) return show(body, h("p", {}, "Choose a model first: it decides how examples become tokens."), next("model", "Choose a model"));
    const input = h("input", { type: "file", id: unique("file"), class: "unseen", onchange: () => input.files[0] && take(input.files[0]) });
    const drop = h("label", { class: "drop", for: input.id },
      h("strong", {}, "Drop a file here, or choose one"),
      h("span", { class: "help" }, "It is copied into the private folder .featherback/uploads of the opened folder."));
    for (const kind of ["dragenter", "dragover"]) drop.addEventListener(kind, (event) => { event.preventDefault(); drop.classList.add("over"); });
    for (const kind of ["dragleave", "drop"]) drop.addEventListener(kind, (event) => { event.preventDefault(); drop.classList.remove("over"); });
    drop.addEventListener("drop", (event) => event.dataTransfer.files[0] && take(event.dataTransfer.files[0]));
    const lists = h("div", { class: "pair" });
    const equal = h("p", { class: "problem" }, "The held-out examples are the same file. Choose another one, or hold some out automatically.");
    const seen = h("div", { class: "stack" });
    show(body, input, drop, lists, seen);

    const take = async (file) => {
      say(`Copying ${file.name}`);
      try {
        const { path } = await api.upload(file);
        clear(body);
        choose(path);
        await load();
      } catch (error) {
        report(body, error);
      }
      input.value = "";
    };

    // How another file was read says nothing about this one.
    const choose = (data) => app.chosen.keep({ data, settings: without(app.chosen.settings, READING) });

    const load = async () => {
      const files = await api.get("/files");
      const names = files.map((file) => [file.path, `${file.uploaded ? file.path.split("/").pop() : file.path} · ${size(file.bytes)}${file.uploaded ? " · dropped" : ""}`]);
      for (const each of ["data", "eval_data"]) if (!files.some((file) => file.path === app.chosen[each])) app.chosen.keep({ [each]: "" });
      show(lists,
        field("Examples to learn from", select([["", "choose a file of the folder"], ...names], app.chosen.data, (data) => { clear(body); choose(data); inspect(); })),
        field("Held-out examples (optional)", select([["", "hold some out automatically"], ...names], app.chosen.eval_data, (eval_data) => { app.chosen.keep({ eval_data }); same(); }),
          "They are not learned. They show whether the model has understood or only memorised."), equal);
      same();
      await inspect();
    };

    const same = () => {
      equal.hidden = !app.chosen.data || app.chosen.data !== app.chosen.eval_data;
    };

    const read = (values) => {
      app.chosen.keep({ settings: { ...without(app.chosen.settings, Object.keys(values)), ...values } });
      return inspect();
    };

    const inspect = async () => {
      same();
      if (!app.chosen.data) return show(seen, h("p", { class: "quiet" }, "Nothing is chosen yet. Fifty good examples are a start; two hundred are enough for a clear change."));
      show(seen, h("p", { class: "quiet", role: "status" }, "Reading the examples …"));
      try {
        const found = await api.post("/examples", { model: app.chosen.model, data: app.chosen.data, settings: app.chosen.settings });
        show(seen, reading(() => { choose(app.chosen.data); inspect(); }), h("div", { class: "beside" }, h("div", { class: "stack" }, problems(found, read), examples(found.examples)), numbers(found)),
          next("settings", "Next: settings"), terminal(found.command));
        say(`${found.examples.length} examples are shown`);
      } catch (error) {
        show(seen, remedy(error, read));
        report(seen, plain(error));
      }
    };
    await load();
  },
};

const READING = ["columns", "skip_bad", "table", "me"];
const without = (settings, names) => Object.fromEntries(Object.entries(settings).filter(([name]) => !names.includes(name)));

// What was chosen about reading the file, and a button that undoes it.
function reading(undo) {
  const { columns, skip_bad, table, me } = app.chosen.settings;
  if (!READING.some((name) => app.chosen.settings[name])) return null;
  const [question, answer] = (columns ?? "").split("\n").map((pair) => pair.slice(pair.indexOf("=") + 1));
  const said = [columns && (answer ? `The questions are in column ${question}, the answers in column ${answer}.` : `Columns: ${columns}.`),
    table && `The file is read with ${listed(table)}.`, me && `The messages of ${listed(me)} are learned.`,
    skip_bad && "Examples that cannot be used are skipped."];
  return h("p", { class: "card row" }, h("span", {}, said.filter(Boolean).join(" ")), h("button", { type: "button", class: "small", onclick: undo }, "Undo"));
}

const listed = (lines) => lines.split("\n").join(", ");

// An error without the options of the command line that this page has lists and buttons for.
const plain = (error) => Object.assign(Object.create(error), { message: error.message.replace(/ [^.]*(?:hoose the columns?[^:]*: |: --(?:table|me) |or add --skip-bad).*$/s, "") });

// What a person can do on this page about an error in the data.
function remedy(error, read) {
  const named = (pattern) => pattern.exec(error.message)?.[1];
  const kept = (line) => ({ table: [app.chosen.settings.table, line].filter(Boolean).join("\n") });
  const choice = (title, label, names, button, values) => {
    const list = select(names.map((name) => [name, name]), names[0], () => {});
    return card(title, field(label, list), h("p", { class: "row" }, h("button", { type: "button", class: "primary", onclick: () => read(values(list.value)) }, button)));
  };
  const sheets = named(/it has \d+ sheets \((.*)\)\. Choose one: /s);
  if (sheets) return choice("Which sheet holds the examples?", "Sheet", sheets.split(", "), "Read this sheet", (name) => kept(`sheet=${name}`));
  const people = named(/holds messages of (.*)\. Name the person /s);
  if (people) {
    const names = [...people.matchAll(/(.+?) \(\d+\)(?:, |$)/gs)].map(([, name]) => name);
    return choice("Whose messages should the model learn?", "Person", names, "Learn these messages", (me) => ({ me }));
  }
  if (error.message.includes("not UTF-8 text") && !app.chosen.settings.table?.includes("encoding=")) {
    return h("p", { class: "row" }, h("button", { type: "button", onclick: () => read(kept("encoding=cp1252")) }, "Read it as text of Windows"),
      h("span", { class: "quiet" }, "Or save the file as UTF-8, and drop it again."));
  }
  const found = named(/found (.*?)\. (?:To choose|Choose) the column/);
  const columns = found ? quoted(found) : [];
  if (columns.length > 1) {
    const likely = (key, other) => columns.find((name) => error.message.includes(`${key}=${name}`)) ?? other;
    return columnLists(columns, likely("prompt", columns[0]), likely("completion", columns[1]), read);
  }
  if (/, (line|row|record) \d+: (?!not UTF-8)/.test(error.message) && !app.chosen.settings.skip_bad) {
    return h("p", { class: "row" }, h("button", { type: "button", onclick: () => read({ skip_bad: "yes" }) }, "Skip examples that cannot be used"),
      h("span", { class: "quiet" }, "Or correct the file, and drop it again."));
  }
  return null;
}

const quoted = (text) => [...text.matchAll(/'([^']+)'/g)].map(([, name]) => name);

// Lists to choose the columns of the questions and answers.
function columnLists(columns, likelyQuestion, likelyAnswer, read) {
  const [question, answer] = [likelyQuestion, likelyAnswer].map((chosen) => select(columns.map((name) => [name, name]), chosen, () => {}));
  return card("Which columns hold questions and answers?",
    h("div", { class: "pair" }, field("Questions, or prompts", question), field("Answers", answer)),
    h("p", { class: "row" }, h("button", { type: "button", class: "primary", onclick: () => read({ columns: `prompt=${question.value}\ncompletion=${answer.value}` }) }, "Read these columns")));
}

// Lists to choose other columns than those that were found out, if the file has others.
function otherColumns(notes, read) {
  const [used, unused] = ["Reading ", "These columns or keys are not used: "].map((begin) => quoted(notes.find((note) => note.startsWith(begin)) ?? ""));
  return used.length === 2 && unused.length ? fold("Choose other columns", () => columnLists([...used, ...unused], ...used, read)) : null;
}

const problems = (found, read) => card(found.notes.length ? "Look at these" : "No problems found",
  notesOf(found.notes.map((note) => note.replace(/ To read other columns: .*$/s, ""))) ?? h("p", {}, "No example is empty, cut or a copy of another."),
  otherColumns(found.notes, read));

function numbers(found) {
  const most = Math.max(...Object.values(found.lengths), 1);
  const lengths = Object.entries(found.lengths).sort((a, b) => a[0] - b[0]);
  return card("In numbers",
    h("p", { class: "help" }, "A token is a word or a part of one. The tokens to predict are those that the model learns to write."),
    h("dl", { class: "facts" }, found.counts.map((each) => h("div", {}, h("dt", {}, each.label), h("dd", {}, counted(each.value))))),
    h("h3", {}, "Length of the examples"),
    h("dl", { class: "bars" }, lengths.map(([bound, count]) => h("div", {}, h("dt", {}, `up to ${bound} tokens`),
      h("dd", {}, h("meter", { min: 0, max: most, value: count, "aria-label": `${count} examples` }), h("span", {}, count))))));
}

function examples(list) {
  return card("As the model sees them",
    h("p", { class: "help" }, "Marked text is learned: it should be your answers, and nothing else. Small words, such as im_start, are the model's own marks between the messages."),
    list.slice(0, 3).map(example),
    list.length > 3 ? fold(`${list.length - 3} more`, () => list.slice(3).map(example)) : null);
}

function example(each) {
  const where = each.where.replace(/^.*[/](?=[^/]*$)/, "");
  const text = h("pre", { tabIndex: 0, "aria-label": where },
    each.runs.map((run) => (run.trained ? h("mark", {}, fromHTML(run.html)) : h("span", {}, fromHTML(run.html)))));
  const cut = each.truncated ? `, ${each.truncated} cut off` : "";
  return h("figure", { class: "example" }, text, h("figcaption", {}, `${where}: ${each.n_tokens} tokens, ${each.n_supervised} learned${cut}`));
}
