// The forms of the Contribute page: fields → the file of a GPU, a model, a rule or a measurement, checked by kb's own
// engine, and the link that opens it as a new file on the repository's host.
import { Engine, STUCK } from "./kb-engine.mjs";
import { filled, language, make } from "./kb-dom.mjs";

const engine = new Engine();
for (const place of document.querySelectorAll(".kb-entry")) formOf(place, JSON.parse(place.dataset.given));

function formOf(place, { kind, fields, words }) {
  const id = (name) => `kb-entry-${kind}-${name}`;
  const inputs = new Map(fields.map((field) => [field.name, inputOf(field, id(field.name))]));
  const told = new Map(fields.map(({ name }) => [name, make("span", { id: `${id(name)}-fault`, class: "kb-fault" })]));
  const rows = fields.map(({ name, label, hint, rows }) => make("div", { class: `kb-entry-field${rows ? " kb-entry-wide" : ""}` },
    make("label", { for: id(name) }, label), inputs.get(name), ...(hint ? [make("small", {}, hint)] : []), told.get(name)));
  const status = make("span", { role: "status", class: "kb-status" });
  const result = make("div", { "aria-live": "polite" });
  const button = make("button", { class: "md-button md-button--primary", type: "submit" }, words.check);
  const paste = kind === "hardware" ? [make("div", { class: "kb-entry-field kb-entry-wide" },
    make("label", { for: id("paste") }, words.paste),
    make("textarea", { id: id("paste"), rows: 2, spellcheck: "false", placeholder: "NVIDIA L4, 23034 MiB, 8.9", oninput: (event) => take(event.target.value) }))] : [];
  place.append(make("form", { novalidate: true, onsubmit: check }, ...paste, make("div", { class: "kb-entry-fields" }, ...rows),
    make("p", { class: "kb-buttons" }, button, status)), result);
  inputs.get("name")?.addEventListener("change", name);
  let named = false; // whether the id was typed rather than made from the name
  inputs.get("id").addEventListener("input", () => (named = true));

  /** `name, memory, capability`, as nvidia-smi prints it with --format=csv. */
  function take(text) {
    const match = /^\s*([^,\n]+),\s*(\d+)\s*MiB(?:,\s*(\d+\.\d))?/m.exec(text);
    if (!match) return;
    inputs.get("name").value = match[1].trim();
    inputs.get("reported").value = match[2];
    if (match[3]) inputs.get("capability").value = match[3];
    name();
  }

  function name() {
    const plain = inputs.get("name").value.split("/").pop().replace(/^NVIDIA\s+(GeForce\s+)?/i, "").trim();
    if (!named) inputs.get("id").value = plain.toLowerCase().replace(/[^a-z0-9.]+/g, "-").replace(/^-|-$/g, "");
    if (inputs.has("aliases") && !inputs.get("aliases").value && plain) inputs.get("aliases").value = plain;
  }

  async function check(event) {
    event.preventDefault();
    if (typeof WebAssembly !== "object") return void result.replaceChildren(make("p", { class: "kb-notice" }, words.no_wasm));
    status.textContent = words.loading;
    try {
      await engine.start();
    } catch (error) {
      status.textContent = `${words.failed} ${error.message}`;
      return;
    }
    const form = Object.fromEntries([...inputs].map(([field, input]) => [field, input.value.trim()]));
    const answer = await engine.call("contribution.entry_file", kind, JSON.stringify(form), language);
    status.textContent = "";
    window.kbEntry = answer;
    if (answer.fault) return void result.replaceChildren(make("p", { class: "kb-notice" }, answer.fault === STUCK ? words.stuck : answer.fault));
    mark(answer.problems);
    show(answer);
  }

  /** Each fault beside its field, and read out with it. */
  function mark(problems) {
    for (const [field, input] of inputs) {
      const own = problems.filter((problem) => problem.field === field).map(({ message }) => message);
      told.get(field).textContent = own.join(" ");
      if (own.length) input.setAttribute("aria-invalid", "true");
      else input.removeAttribute("aria-invalid");
      if (own.length) input.setAttribute("aria-describedby", told.get(field).id);
      else input.removeAttribute("aria-describedby");
    }
    [...inputs].find(([, input]) => input.hasAttribute("aria-invalid"))?.[1].focus();
  }

  function show({ path, text, beside, problems }) {
    const unplaced = problems.filter(({ field }) => !inputs.has(field)).map(({ message }) => make("p", { class: "kb-notice" }, `${words.unplaced}: ${message}`));
    const verdict = make("p", { class: problems.length ? "kb-notice" : "kb-answer-line" }, problems.length ? filled(words.wrong, { n: problems.length }) : words.right);
    const right = problems.length === 0;
    const files = [{ path, text }, ...beside].filter((file) => file.text);
    result.replaceChildren(verdict, ...unplaced, ...files.flatMap((file, at) => [
      ...(at ? [make("p", {}, words.beside)] : []), ...shown(file), ...(right ? opened(file) : [])]),
    ...(right && files.length ? [make("p", { class: "kb-when" }, newFile(path, text) ? words.open_note : words.no_address)] : []));
  }

  function shown(file) {
    return [make("p", {}, make("code", {}, file.path)), make("pre", { tabindex: 0 }, make("code", {}, file.text))];
  }

  function opened(file) {
    const address = newFile(file.path, file.text);
    const copy = make("button", { type: "button", class: "md-button", onclick: async () => {
      await navigator.clipboard.writeText(file.text);
      status.textContent = words.copied;
    } }, words.copy);
    const open = address ? [make("a", { class: "md-button md-button--primary", href: address, rel: "noopener" }, words.open)] : [];
    return [make("p", { class: "kb-buttons" }, ...open, copy)];
  }
}

/** A line, a text of several, or a list to choose from. */
function inputOf({ rows, options }, id) {
  if (options.length) return make("select", { id }, ...options.map(([value, text]) => make("option", { value }, text)));
  return make(rows ? "textarea" : "input", { id, ...(rows ? { rows } : {}), spellcheck: "false", autocomplete: "off" });
}

/** Where the repository's host takes a new file; the page's own edit link says where that is. */
function newFile(path, text) {
  const edit = document.querySelector(".md-content__button[href*='/edit/']")?.href;
  if (!edit) return null;
  const [, host, branch] = /^(.*)\/edit\/([^/]+)\//.exec(edit);
  return `${host}/new/${branch}?${new URLSearchParams({ filename: path, value: text })}`;
}
