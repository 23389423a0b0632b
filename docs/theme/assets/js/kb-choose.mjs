// The small chooser: model × GPU × method × lengths → the largest batch and the setting to start from, by kb's own engine.
// The first answer is in the page; the engine is loaded once something is changed. What is chosen stands in the address.
import { Engine, STUCK } from "./kb-engine.mjs";
import { computedMark, filled, keepState, language, make, memoryChart, nearest, picker, woven } from "./kb-dom.mjs";
import { remember } from "./kb-state.mjs";

const GIB = 2 ** 30;
const METHODS = ["auto", "full", "lora", "qlora"];
const PRECISIONS = ["", "bf16", "fp16", "fp32"];
const FORMS = ["", "hf", "python", "command", "trl", "axolotl", "llamafactory"];
const sourceAt = (place) => new URL(`sources/#${place}`, location.href).href; // below the first page
const SOURCES = sourceAt("computed");
const NUMBERS = ["source_length", "target_length", "effective_batch", "beams"];
const root = document.getElementById("kb-choose");
if (root) start(JSON.parse(root.dataset.given));

function start(given) {
  const { words } = given;
  const engine = new Engine();
  const models = new Map(given.models.flatMap(([, rows]) => rows.map(([id, name, reads]) => [id, { name, reads }])));
  const gpus = new Map(given.gpus.map(([id, name, place, title]) => [id, { name, place, title }]));
  const usual = { model: given.model, gpu: given.gpu, method: "auto", source_length: "", target_length: "", effective_batch: "", beams: "", precision: "", form: "" };
  const asked = { ...usual, ...fromAddress() };
  const result = make("div", { class: "kb-chosen", "aria-live": "polite" });
  const status = make("span", { role: "status", class: "kb-status" });
  const button = make("button", { class: "md-button md-button--primary", type: "button", onclick: show }, words.compute);
  const fields = {
    model: search("model", words.model, models),
    gpu: search("gpu", words.gpu, gpus),
    method: picker("kb-choose-method", words.method, METHODS.map((name) => [name, words[name]]), asked.method, change("method")),
    precision: picker("kb-choose-precision", words.precision, PRECISIONS.map((name) => [name, name || words.precision_auto]), asked.precision, change("precision")),
    source_length: field("source", words.source, "source_length"),
    target_length: field("target", words.target, "target_length"),
    effective_batch: field("effective", words.effective, "effective_batch"),
    beams: field("beams", words.beams, "beams"),
    form: picker("kb-choose-form", words.form, FORMS.map((name) => [name, words[`form_${name || "kb"}`]]), asked.form, change("form")),
  };
  root.append(make("div", { class: "kb-pickers" }, ...Object.values(fields), make("p", { class: "kb-buttons" }, button, status)), result);
  let number = 0;
  keepState();
  suit();
  if (Object.keys(usual).every((key) => asked[key] === usual[key])) result.replaceChildren(...parts(given.chosen, asked));
  else show();

  /** What a link asks for; names that are not offered stay, to be told of. */
  function fromAddress() {
    const held = new URLSearchParams(location.hash.slice(1));
    return Object.fromEntries(Object.keys(usual).filter((key) => held.get(key)).map((key) => [key, held.get(key)]));
  }

  function toAddress() {
    const kept = Object.keys(usual).filter((key) => asked[key] !== usual[key]).map((key) => [key, asked[key]]);
    remember(kept.length ? Object.keys(usual).filter((key) => asked[key] !== "").map((key) => [key, asked[key]]) : []);
    history.replaceState(null, "", kept.length ? `#${new URLSearchParams(kept)}` : location.pathname + location.search);
  }

  function change(key) {
    return (event) => {
      asked[key] = event.target.value.trim();
      suit();
      toAddress();
      show();
    };
  }

  /** Only an encoder-decoder has a target length. */
  function suit() {
    fields.target_length.hidden = !models.get(asked.model)?.reads;
  }

  /** A field to type into that offers what it knows, ids with their names. */
  function search(key, label, known) {
    const id = `kb-choose-${key}`;
    const list = make("datalist", { id: `${id}-list` }, ...[...known].map(([value, { name }]) => make("option", { value, label: name }, name)));
    const input = make("input", { id, list: list.id, value: asked[key], autocomplete: "off", spellcheck: "false", onchange: change(key), onfocus: (event) => event.target.select() });
    return make("label", { for: id, class: "kb-search" }, make("span", {}, label), input, list);
  }

  function field(name, label, key) {
    const id = `kb-choose-${name}`;
    return make("label", { for: id }, make("span", {}, label),
      make("input", { id, inputmode: "numeric", value: asked[key], placeholder: words.usual, onchange: change(key) }));
  }

  /** What is wrong with a field, by its name; nothing where all can be used. */
  function faults() {
    const found = [];
    for (const [key, known] of [["model", models], ["gpu", gpus]]) {
      const wrong = !known.has(asked[key]);
      mark(key, wrong);
      if (wrong) found.push(filled(words.no_such, { name: words[key], value: asked[key] || "–", near: nearest(asked[key], [...known.keys()]).join(", ") }));
    }
    for (const key of NUMBERS) {
      const wrong = !fields[key].hidden && asked[key] !== "" && !/^[1-9][0-9]{0,6}$/.test(asked[key]);
      mark(key, wrong);
      if (wrong) found.push(filled(words.whole, { name: fields[key].querySelector("span").textContent, value: asked[key] }));
    }
    if (!METHODS.includes(asked.method)) asked.method = "auto";
    if (!PRECISIONS.includes(asked.precision)) asked.precision = "";
    if (!FORMS.includes(asked.form)) asked.form = "";
    return found;
  }

  function mark(key, wrong) {
    const input = fields[key].querySelector("input");
    if (wrong) input.setAttribute("aria-invalid", "true");
    else input.removeAttribute("aria-invalid");
  }

  async function show() {
    const mine = ++number;
    const wrong = faults();
    if (wrong.length) return void result.replaceChildren(...wrong.map((line) => make("p", { class: "kb-notice" }, line)));
    if (typeof WebAssembly !== "object") return void result.replaceChildren(make("p", { class: "kb-notice" }, words.no_wasm));
    if (!engine.ready) status.textContent = words.loading;
    try {
      await engine.start();
      engine.ready = true;
    } catch (error) {
      status.textContent = `${words.failed} ${error.message}`;
      return;
    }
    const wanted = { ...asked };
    for (const key of NUMBERS) wanted[key] = Number(asked[key]) || null;
    if (fields.target_length.hidden) wanted.target_length = null;
    const before = performance.now();
    const { chosen, fault } = await engine.call("choose", JSON.stringify(wanted), language);
    if (mine !== number) return; // something newer was asked meanwhile
    status.textContent = words.done.replace("{ms}", Math.round(performance.now() - before));
    window.kbChosen = chosen;
    result.replaceChildren(...(fault ? [make("p", { class: "kb-notice" }, fault === STUCK ? words.stuck : fault)] : parts(chosen, wanted)));
  }

  /** A number with where it comes from. */
  function linked(value, name = "span") {
    return value && value !== "–" ? make("a", { class: "kb-number", href: SOURCES, title: words.computed_title }, make(name, {}, String(value))) : "–";
  }

  /** The card's memory, with where that is said. */
  function ofCard(shown, { place, title }) {
    return make("a", { class: "kb-number", href: sourceAt(place), title }, shown);
  }

  /** As the page's own bars: loading is over before any batch is read. */
  function shownPhases({ prediction: { phases: { load, ...rest } } }) {
    return rest;
  }

  function batchOf(way) {
    return `${way.rough && way.batch ? "~" : ""}${way.batch}`;
  }

  function parts(chosen, wanted) {
    const named = { model: models.get(wanted.model).name.split("/").pop(), gpu: gpus.get(wanted.gpu).name.replace(/ \(.*/, "") };
    const ways = make("ul", { class: "kb-ways" }, ...chosen.ways.map((way) =>
      make("li", way.chosen ? { class: "kb-way--chosen" } : {}, `${way.title}: `, linked(batchOf(way), "b"))));
    const largest = make("details", {}, make("summary", {}, words.largest), ways);
    if (!chosen.prediction) {
      return [make("p", { class: "kb-answer-line" }, filled(words.nothing, named)), make("p", { class: "kb-notice" }, chosen.nothing_fits), largest];
    }
    const verdict = chosen.prediction.verdict.status;
    const phases = shownPhases(chosen);
    const { train } = phases;
    const size = (bytes) => (bytes / GIB).toFixed(1);
    const own = chosen.ways.find((way) => way.chosen);
    // an offered way needs a file of DeepSpeed beside the config
    const most = chosen.ways.reduce((found, way) => (way.batch > found.batch && !way.offered ? way : found));
    const facts = [[words.batch, chosen.batch], [words.accumulation, chosen.accumulation],
      [words.effective, chosen.effective], [words.evaluation, chosen.evaluation || "–"], [words.inference, chosen.inference || "–"]];
    return [
      make("p", { class: "kb-answer-line" }, filled(words.answer, { ...named, ...chosen, largest: own.batch }), " ",
        computedMark(words, SOURCES)),
      ...(chosen.precision_note ? [make("p", { class: "kb-notice" }, chosen.precision_note)] : []),
      make("p", {}, make("span", { class: `kb-verdict kb-verdict--${verdict}` }, words.verdict[verdict]), " ",
        ...woven(words.used, { way: chosen.way, used: linked(size(train.process_used_bytes)), high: linked(size(train.high_bytes)), limit: ofCard(size(chosen.limit_bytes), gpus.get(wanted.gpu)) }),
        ...(most.batch > own.batch ? [make("br"), make("small", {}, ...woven(words.fits_most, { way: most.title, batch: linked(batchOf(most)) }))] : [])),
      make("dl", { class: "kb-facts" }, ...facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, linked(value))))),
      memoryChart({ phases }, chosen.limit_bytes, words, SOURCES),
      make("details", { open: Boolean(wanted.form) }, make("summary", {}, words.config),
        chosen.config ? make("pre", {}, make("code", {}, chosen.config)) : make("p", {}, chosen.config_fault)),
      largest,
    ];
  }
}
