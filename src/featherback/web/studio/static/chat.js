import * as api from "./api.js";
import { field, fromHTML, h, show, terminal } from "./dom.js";
import { app, chooseRun, loadRuns, next, report, say } from "./app.js";
import { isUnderway } from "./training.js";

const SIDES = [["original", "Original model"], ["trained", "Trained model"]];
let abort = null;

export default {
  id: "chat",
  title: "Chat",
  lead: "Ask the trained model and the original the same question.",

  leave() { abort?.abort(); },

  async draw(body) {
    await loadRuns();
    const busy = app.runs.find(isUnderway);
    if (busy) return show(body, h("p", {}, `The run ${busy.name} is being trained. Chat needs its memory: wait for its end, or stop it.`), next("training", "Watch the training"));
    const runs = app.runs.filter((run) => run.can_chat);
    if (!runs.length) return show(body, h("p", {}, "There is no trained adapter to talk to yet. It is written when training ends."),
      app.runs.length ? next("training", "Go to training") : next("settings", "Go to settings"));
    const name = runs.some((run) => run.name === app.chosen.run) ? app.chosen.run : runs[0].name;
    const run = await api.get(api.runPath(name));
    let talks = { original: [], trained: [] };
    const list = h("div", { class: "talk", role: "log", "aria-label": "Conversation", "aria-live": "off" });
    const text = h("textarea", { rows: 2, maxLength: 20000 });
    const send = h("button", { type: "submit", class: "primary" }, "Send");
    const stop = h("button", { type: "button", hidden: true, onclick: () => api.post("/chat/stop").catch(() => {}) }, "Stop");
    const fresh = h("button", { type: "button", onclick: () => { talks = { original: [], trained: [] }; empty(); text.focus(); } }, "New conversation");
    const heat = h("input", { type: "number", min: 0, max: 2, step: 0.1, value: "0.7", class: "short" });
    const wrong = h("div", { class: "stack" });
    const ask = h("form", { class: "card ask", onsubmit: (event) => { event.preventDefault(); answer(); } },
      field("Your message", text, "Enter sends it. Shift+Enter begins a new line."),
      h("div", { class: "row" }, send, stop, fresh, h("span", { class: "push" }), field("Temperature", heat, "0: always the likeliest word")), wrong);
    text.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        answer();
      }
    });
    const ideas = [...new Set(run.samples.map((each) => fromHTML(each.question).textContent))].filter((each) => each.length < 200).slice(0, 3);
    const empty = () => show(list, h("p", { class: "quiet" }, "Nothing has been asked yet. Both answers appear here."),
      ideas.length ? h("div", { class: "row ideas" }, h("span", { class: "quiet" }, "Try one from your file:"),
        ideas.map((each) => h("button", { type: "button", class: "small", onclick: () => { text.value = each; answer(); } }, each))) : null);
    show(body, chooseRun((each) => { app.chosen.keep({ run: each }); this.leave(); this.draw(body); }, name, "Run", runs), list, ask, next("export", "Next: export"), terminal(run.commands.chat));

    const answer = async () => {
      const said = text.value.trim();
      if (!said || abort) return;
      if (!talks.original.length) show(list);
      show(wrong);
      text.value = "";
      send.disabled = fresh.disabled = true;
      stop.hidden = false;
      const now = { original: "", trained: "" };
      const places = Object.fromEntries(SIDES.map(([side]) => [side, h("p", { class: "text writing", tabIndex: 0 })]));
      list.append(h("div", { class: "turn" }, h("p", { class: "asked" }, h("span", { class: "unseen" }, "You: "), said),
        h("div", { class: "two-answers" }, SIDES.map(([side, title]) => h("div", { class: `card ${side}` }, h("h2", {}, title), places[side])))));
      places.original.closest(".turn").scrollIntoView({ block: "nearest" });
      const question = (side) => [...talks[side], { role: "user", content: said }];
      abort = new AbortController();
      try {
        await api.stream("/chat", { run: name, ask: { original: question("original"), trained: question("trained") }, temperature: Number(heat.value), seed: talks.original.length },
          (line) => {
            if (line.piece) {
              now[line.side] += line.piece;
              places[line.side].textContent = now[line.side];
            } else if (line.side) {
              places[line.side].classList.remove("writing");
              if (line.end && !now[line.side]) places[line.side].textContent = "(no text)";
              if (line.end === "length") places[line.side].after(h("p", { class: "help" }, `Cut off after ${line.tokens} tokens.`));
            }
            if (line.error) report(wrong, new Error(line.error));
          }, abort.signal);
        for (const [side] of SIDES) talks[side] = [...question(side), { role: "assistant", content: now[side] }];
        say(`The trained model answers: ${now.trained}`);
      } catch (error) {
        report(wrong, error);
        if (!now.original && !now.trained) {
          list.lastElementChild.remove();
          text.value = said;
          if (!list.childElementCount) empty();
        }
      }
      abort = null;
      Object.values(places).forEach((each) => each.classList.remove("writing"));
      send.disabled = fresh.disabled = false;
      stop.hidden = true;
      text.focus();
    };
    empty();
  },
};
