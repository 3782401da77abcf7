import * as api from "./api.js";
import { h, problem, show, size } from "./dom.js";
import { app, clear, next, report } from "./app.js";

const parameters = (count) => (count >= 1e9 ? `${(count / 1e9).toFixed(1)}B` : `${Math.round(count / 1e6)}M`);

export default {
  id: "model",
  title: "Model",
  lead: "Choose the model that will learn. Smaller models learn faster. Models with Instruct, -it or chat in their names can hold a conversation.",
  done: ({ chosen }) => chosen?.model,

  async draw(body) {
    const list = h("div", { class: "options", role: "radiogroup", "aria-label": "Models" });
    const again = h("button", { type: "button", onclick: () => load("/models?anew=1") }, "Look again");
    const onward = next("data", "Next: data");
    onward.hidden = !app.chosen.model;
    show(body, list, h("p", { class: "row" }, again,
      h("span", { class: "quiet" }, "Listed: models in the opened folder, in Featherback's cache, and those of Ollama, LM Studio and Hugging Face.")),
    onward);

    const draw = (models) => show(list, models.map((model) => row(model)), models.length ? null : h("p", {}, "No models were found. Put a .gguf file or a folder of a Hugging Face model into the opened folder, and look again."));
    const load = async (path) => {
      list.setAttribute("aria-busy", "true");
      try {
        draw(await api.get(path));
        clear(body);
      } catch (error) {
        show(list);
        report(body, error);
      }
      list.removeAttribute("aria-busy");
    };
    const row = (model) => {
      const input = h("input", { type: "radio", name: "model", value: model.name, disabled: !model.trainable,
        checked: model.name === app.chosen.model, onchange: () => {
          app.chosen.keep({ model: model.name });
          onward.hidden = false;
        } });
      const facts = [model.architecture, model.parameters && `${parameters(model.parameters)} parameters`, model.type, model.bytes && size(model.bytes)];
      return h("div", { class: model.trainable ? "option" : "option off" },
        h("label", {}, input, h("span", {}, h("strong", {}, model.name),
          h("span", { class: "help" }, facts.filter(Boolean).join(" · "), model.reason && h("span", { class: "reason" }, model.reason)))),
        model.can_fetch ? fetchButton(model) : null);
    };
    const fetchButton = (model) => {
      const button = h("button", { type: "button", onclick: async () => {
        button.disabled = true;
        button.textContent = "Downloading …";
        try {
          draw(await api.post("/fetch", { model: model.name }));
        } catch (error) {
          button.after(problem(error));
          button.textContent = "Download";
          button.disabled = false;
        }
      } }, "Download");
      return button;
    };
    show(list, h("p", { class: "quiet" }, "Looking for models …"));
    await load("/models");
  },
};
