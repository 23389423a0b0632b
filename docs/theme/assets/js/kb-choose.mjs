// The small chooser: model × GPU × method × lengths → the setting to start from, by kb's own engine, on click.
import { Engine, STUCK } from "./kb-engine.mjs";
import { language, make, memoryChart, picker } from "./kb-dom.mjs";

const root = document.getElementById("kb-choose");
if (root) start(JSON.parse(root.dataset.given));

function start(given) {
  const { words } = given;
  if (typeof WebAssembly !== "object") {
    root.append(make("p", { class: "kb-notice" }, words.no_wasm));
    return;
  }
  const engine = new Engine();
  const asked = { model: given.model, gpu: given.gpu, method: "auto", source_length: "", target_length: "", effective_batch: "" };
  const result = make("div", { class: "kb-chosen", "aria-live": "polite" });
  const status = make("span", { role: "status", class: "kb-status" });
  const button = make("button", { class: "md-button md-button--primary", type: "button", onclick: show }, words.compute);
  const target = field("kb-choose-target", words.target, "target_length");
  root.append(make("div", { class: "kb-pickers" },
    models(), picker("kb-choose-gpu", words.gpu, given.gpus, asked.gpu, change("gpu")),
    picker("kb-choose-method", words.method, ["auto", "full", "lora", "qlora"].map((name) => [name, words[name]]), "auto", change("method")),
    field("kb-choose-source", words.source, "source_length"), target, field("kb-choose-effective", words.effective, "effective_batch")),
  make("p", { class: "kb-buttons" }, button, status), result);
  let number = 0;

  function change(key) {
    return (event) => {
      asked[key] = event.target.value.trim();
      if (key === "model") target.hidden = !readsTarget(asked.model);
      if (engine.started) show(); // nothing is loaded before the reader asks for it
    };
  }

  function readsTarget(model) {
    return given.models.some(([, rows]) => rows.some(([id, , reads]) => id === model && reads));
  }

  function models() {
    const select = make("select", { id: "kb-choose-model", onchange: change("model") });
    for (const [family, rows] of given.models) {
      select.append(make("optgroup", { label: family }, ...rows.map(([id, name]) => make("option", { value: id, selected: id === asked.model }, name))));
    }
    return make("label", { for: "kb-choose-model" }, make("span", {}, words.model), select);
  }

  function field(id, label, key) {
    return make("label", { for: id }, make("span", {}, label),
      make("input", { id, type: "number", min: 1, placeholder: words.usual, onchange: change(key) }));
  }

  async function show() {
    const mine = ++number;
    if (!engine.ready) status.textContent = words.loading;
    try {
      await engine.start();
      engine.ready = true;
    } catch (error) {
      status.textContent = `${words.failed} ${error.message}`;
      return;
    }
    const wanted = { ...asked };
    for (const key of ["source_length", "target_length", "effective_batch"]) wanted[key] = Math.floor(Number(asked[key])) || null;
    if (!readsTarget(asked.model)) wanted.target_length = null;
    const before = performance.now();
    const { chosen, fault } = await engine.call("choose", JSON.stringify(wanted), language);
    if (mine !== number) return; // something newer was asked meanwhile
    status.textContent = words.done.replace("{ms}", Math.round(performance.now() - before));
    window.kbChosen = chosen;
    result.replaceChildren(...(fault ? [make("p", { class: "kb-notice" }, fault === STUCK ? words.stuck : fault)] : parts(chosen)));
  }

  /** As the page's own bars: loading is over before any batch is read. */
  function shownPhases({ prediction: { phases: { load, ...rest } } }) {
    return rest;
  }

  function parts(chosen) {
    const ways = make("ul", { class: "kb-ways" }, ...chosen.ways.map((way) =>
      make("li", way.chosen ? { class: "kb-way--chosen" } : {}, `${way.title}: `, make("b", {}, String(way.batch || "–")))));
    const largest = make("details", {}, make("summary", {}, words.largest), ways);
    if (!chosen.prediction) return [make("p", { class: "kb-notice" }, chosen.nothing_fits), largest];
    const verdict = chosen.prediction.verdict.status;
    const facts = [[words.way, chosen.way], [words.batch, chosen.batch], [words.accumulation, chosen.accumulation],
      [words.effective, chosen.effective], [words.evaluation, chosen.evaluation || "–"], [words.inference, chosen.inference || "–"]];
    return [
      make("dl", { class: "kb-facts" }, ...facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, String(value))))),
      make("p", {}, make("span", { class: `kb-verdict kb-verdict--${verdict}` }, words.verdict[verdict])),
      memoryChart({ phases: shownPhases(chosen) }, chosen.limit_bytes, words),
      make("details", { open: true }, make("summary", {}, words.config), make("pre", {}, make("code", {}, chosen.config))),
      largest,
    ];
  }
}
