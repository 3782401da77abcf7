// Requests to the server. The key of this start comes in the fragment of the address and stays in this tab.

const KEY = "featherback-key";

export function takeKey() {
  const given = /^#key=([\w-]+)$/.exec(location.hash);
  if (given) {
    sessionStorage.setItem(KEY, given[1]);
    history.replaceState(null, "", location.pathname); // the key is no part of the history
  }
  return sessionStorage.getItem(KEY) !== null;
}

export class Refused extends Error {
  constructor(message, code) {
    super(message);
    this.code = code;
  }
}

async function send(path, options = {}) {
  const headers = { Authorization: `Bearer ${sessionStorage.getItem(KEY)}`, ...options.headers };
  let response;
  try {
    response = await fetch(`/api${path}`, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("The studio does not answer. Start `featherback studio` again, and open the address that it prints. " +
      "Runs go on meanwhile.", "away");
  }
  if (response.ok) return response;
  const found = await response.json().catch(() => ({}));
  if (response.status === 401) throw new Refused("", "key");
  throw new Refused(found.error?.message ?? `The server answered with status ${response.status}.`, found.error?.code);
}

export const get = async (path) => (await send(path)).json();

export const post = async (path, body = {}) => (await send(path, { method: "POST", body: JSON.stringify(body) })).json();

// A name that the server accepts: the file may come from another system, with other rules for names.
const plain = (name) => {
  const dot = name.lastIndexOf(".");
  const [stem, end] = dot > 0 ? [name.slice(0, dot), name.slice(dot)] : [name, ""];
  return (stem.normalize("NFC").replace(/[^\p{L}\p{N}_ .()+-]+/gu, "-").replace(/^[^\p{L}\p{N}_]+/u, "").slice(0, 80).trim() || "data") + end;
};

export const upload = async (file) =>
  (await send("/upload", { method: "POST", body: file, headers: { "X-Name": encodeURIComponent(plain(file.name)) } })).json();

// Calls `each` with every line of an answer that comes piece by piece.
export async function stream(path, body, each, signal) {
  const response = await send(path, { method: "POST", body: JSON.stringify(body), signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    lines.forEach((line) => each(JSON.parse(line)));
  }
}

export const runPath = (name) => `/runs/${name.split("/").map(encodeURIComponent).join("/")}`;
