// Elements. Texts are set as text; only what the server has escaped is set as HTML.

let count = 0;

export const unique = (name) => `${name}-${++count}`;

export function h(tag, about = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(about)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && !name.includes("-") && name !== "list" && typeof value !== "string") element[name] = value;
    else if (name === "value") element.value = value;
    else element.setAttribute(name === "className" ? "class" : name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function fromHTML(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  return template.content;
}

export const show = (place, ...children) => place.replaceChildren(...children.flat(Infinity).filter(Boolean));

export const card = (title, ...children) => h("section", { class: "card" }, h("h2", {}, title), children);

export const problem = (error) => h("p", { class: "problem", role: "alert" }, error.message ?? String(error));

export const notesOf = (notes) =>
  notes.length ? h("ul", { class: "notes" }, notes.map((note) => h("li", {}, note.replace(/^- /, "")))) : null;

// Details whose content is made when they are opened.
export function fold(title, fill) {
  const inside = h("div", { class: "stack" });
  const details = h("details", {}, h("summary", {}, title), inside);
  details.addEventListener("toggle", () => show(inside, details.open ? fill() : null));
  return details;
}

// The command that does the same in a terminal, with a button that copies it.
export function terminal(command) {
  const code = h("code");
  const button = h("button", { type: "button", class: "small" }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent.trim());
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  const whole = h("figure", { class: "terminal" }, h("figcaption", {}, "The same in a terminal"), h("div", {}, code, button));
  whole.set = (text) => show(code, text.split(" ").flatMap((word) => [h("span", {}, word), " "])); // lines end between words
  whole.set(command);
  return whole;
}

export function field(label, input, help) {
  input.id ||= unique("field");
  const about = help ? h("span", { class: "help", id: `${input.id}-help` }, help) : null;
  if (about) input.setAttribute("aria-describedby", about.id);
  return h("div", { class: "field" }, h("label", { for: input.id }, label), input, about);
}

// 12500 as "12 500", with narrow spaces as in the charts.
export const counted = (number) => String(number).replace(/\B(?=(\d{3})+$)/g, "\u202f");

export const select = (options, value, change) => {
  const element = h("select", { onchange: () => change(element.value) },
    options.map(([name, label]) => h("option", { value: name, selected: name === value }, label)));
  return element;
};

export const size = (bytes) =>
  bytes === null ? "folder" : bytes >= 1e9 ? `${(bytes / 1e9).toFixed(1)} GB` : bytes >= 1e6 ? `${Math.round(bytes / 1e6)} MB`
    : bytes >= 1e3 ? `${Math.round(bytes / 1e3)} kB` : `${bytes} B`;

export const chartOf = (drawn) => h("div", { class: "card drawn" },
  h("div", { class: "wide" }, fromHTML(drawn.large)), h("div", { class: "narrow" }, fromHTML(drawn.small)));

export const tilesOf = (tiles) => h("dl", { class: "tiles" }, tiles.map((tile) =>
  h("div", { class: "card" }, h("dt", {}, tile.name), h("dd", { class: "figure" }, tile.value), h("dd", { class: "quiet" }, tile.more))));
