// The playground: an editor, the machine's pickers, findings with their fixes, the memory chart, and a link to share.
import { Engine, STUCK } from "./kb-engine.mjs";
import { parsedTimeline } from "./kb-timeline.mjs";
import { filled, keepState, language, make, memoryChart, picker, wordsOf } from "./kb-dom.mjs";

const root = document.getElementById("kb-playground");
const KEPT = ["gpu", "gpus", "host_memory", "cpus", "versions", "kind", "config"];
const WAIT = 120; // milliseconds after the last key
const SEVERITIES = ["error", "warning", "info"]; // the worst first
const OVER = ["likely_oom", "oom"];
const SAVES = /-would-save$|-peak-exceeds-/; // rules whose fixes take less memory
const LONGEST = 30_000; // characters of a link; more is cut off on its way, and slows the page
if (root) start();

function readState() {
  const given = new URLSearchParams(location.hash.slice(1));
  return Object.fromEntries(KEPT.map((key) => [key, given.get(key) || ""]));
}

async function start() {
  const words = wordsOf(root);
  if (typeof WebAssembly !== "object") {
    root.append(make("p", { class: "kb-notice" }, words.no_wasm));
    return;
  }
  const state = readState();
  const asked = state.config !== ""; // a link that holds a config asks for its check
  const [editor, examples, offered] = await Promise.all([
    import("../vendor/editor.mjs"),
    fetch(new URL("../playground/examples.json", import.meta.url)).then((answer) => answer.json()),
    fetch(new URL("../playground/choices.json", import.meta.url)).then((answer) => answer.json()),
  ]);
  const shown = new Playground(words, editor, examples, offered, state);
  root.append(...shown.parts);
  keepState();
  if (asked) shown.run();
}

class Playground {
  constructor(words, editor, examples, offered, state) {
    Object.assign(this, { words, editor, examples, state, engine: new Engine(), number: 0 });
    if (!state.config) Object.assign(state, { config: examples[0].text, kind: examples[0].kind, gpu: state.gpu || "rtx-3090", host_memory: state.host_memory || "60GB" });
    this.status = make("span", { role: "status", class: "kb-status" });
    this.findings = make("div", { class: "kb-findings", "aria-live": "polite" });
    this.pickers = this.#pickers(offered);
    this.holder = make("div", { class: "kb-editor" });
    this.view = this.#view();
    const buttons = make("p", { class: "kb-buttons" },
      make("button", { class: "md-button md-button--primary", type: "button", onclick: () => this.run() }, words.check),
      make("button", { class: "md-button", type: "button", onclick: () => this.fix("", false) }, words.fix_all),
      make("button", { class: "md-button", type: "button", onclick: () => this.share() }, words.share), this.status);
    this.parts = [this.pickers, this.holder, buttons, this.findings];
  }

  #pickers(offered) {
    const { state, words } = this;
    const change = (key) => (event) => { state[key] = event.target.value.trim(); this.#changed(); };
    const gpus = [["", words.no_gpu], ...offered.gpus.map((gpu) => [gpu.id, gpu.name])];
    const menu = [["", words.examples], ...this.examples.map((example, number) => [String(number), example.name])];
    const field = (id, label, key, hint, size = 8) => make("label", { for: id }, make("span", {}, label),
      make("input", { id, value: state[key], placeholder: hint, size, oninput: change(key) }));
    return make("div", { class: "kb-pickers" },
      picker("kb-example", words.example, menu, "", (event) => this.#load(event.target.value)),
      picker("kb-gpu", words.gpu, gpus, state.gpu, change("gpu")),
      field("kb-gpus", words.gpus, "gpus", "1"),
      field("kb-host", words.host, "host_memory", "60GB"),
      field("kb-cpus", words.cpus, "cpus", "16"),
      field("kb-versions", words.versions, "versions", "transformers==5.0", 20));
  }

  #view() {
    const { EditorView, EditorState, keymap, lineNumbers, drawSelection, history, historyKeymap, defaultKeymap, lintGutter } = this.editor;
    const label = EditorView.contentAttributes.of({ "aria-label": this.words.editor, tabindex: "0" });
    const onChange = EditorView.updateListener.of((update) => { if (update.docChanged) { this.state.config = update.state.doc.toString(); this.#changed(); } });
    const state = EditorState.create({
      doc: this.state.config,
      extensions: [lineNumbers(), drawSelection(), history(), keymap.of([...defaultKeymap, ...historyKeymap]), lintGutter(), label, onChange],
    });
    return new EditorView({ state, parent: this.holder });
  }

  #load(number) {
    const example = this.examples[Number(number)];
    if (number === "" || !example) return;
    this.state.kind = example.kind;
    this.#write(example.text);
  }

  #write(text) {
    this.view.dispatch({ changes: { from: 0, to: this.view.state.doc.length, insert: text } });
  }

  #changed() {
    this.#keep(); // so that the switch to the other language keeps it
    if (!this.engine.started) return; // nothing is loaded before the reader asks for it
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.run(), WAIT);
  }

  asked() {
    const { gpu, gpus, host_memory, cpus, versions, kind } = this.state;
    const wanted = { gpu, host_memory, cpus, versions, kind };
    if (/^\d+$/.test(gpus)) wanted.gpus = Number(gpus);
    return JSON.stringify(Object.fromEntries(Object.entries(wanted).filter(([, value]) => value !== "")));
  }

  /** Whether Python runs; says what it waits for, and why it does not. */
  async #ready() {
    if (!this.engine.started) this.status.textContent = this.words.loading;
    try {
      await this.engine.start();
      return true;
    } catch (error) {
      this.status.textContent = `${this.words.failed} ${error.message}`;
      return false;
    }
  }

  async run() {
    const number = ++this.number;
    if (!(await this.#ready())) return;
    const before = performance.now();
    const answer = await this.engine.call("check", this.state.config, this.asked(), language);
    if (number !== this.number) return; // something newer was asked meanwhile
    window.kbAnswer = answer;
    this.status.textContent = this.words.done.replace("{ms}", Math.round(performance.now() - before));
    this.#show(answer);
    this.#keep();
  }

  #show({ report, fault }) {
    const { words } = this;
    this.findings.replaceChildren();
    if (fault) return void this.findings.append(make("p", { class: "kb-notice" }, fault === STUCK ? words.stuck : fault));
    const marks = [];
    for (const broken of report.unusable) {
      this.findings.append(make("p", { class: "kb-notice" }, `${broken.line}:${broken.column} ${broken.message}`));
      marks.push(this.#mark({ ...broken, severity: "error", end_line: broken.line, end_column: broken.column + 1 }));
    }
    for (const unit of report.files) {
      if (unit.section) this.findings.append(make("h3", {}, unit.section));
      if (unit.prediction) {
        const limit = Math.min(...report.machine.gpus.map((gpu) => gpu.memory_total_bytes));
        const verdict = unit.prediction.verdict.status;
        this.findings.append(make("p", {}, make("span", { class: `kb-verdict kb-verdict--${verdict}` }, words.verdict[verdict])));
        this.findings.append(memoryChart(unit.prediction, Number.isFinite(limit) ? limit : null, words, new URL(`../${"sources"}/#computed`, location.href).href));
        if (unit === report.files.find(({ prediction }) => prediction)) this.findings.append(this.#overTime());
      }
      if (this.fixedAll && OVER.includes(unit.prediction?.verdict.status)) this.findings.append(this.#still(unit, report));
      const worst = (finding) => SEVERITIES.indexOf(finding.severity);
      for (const finding of [...unit.findings].sort((a, b) => worst(a) - worst(b))) {
        if (finding.suppressed) continue;
        this.findings.append(this.#finding(finding));
        marks.push(this.#mark(finding));
      }
    }
    this.fixedAll = false;
    if (!marks.length) this.findings.append(make("p", {}, words.nothing));
    this.view.dispatch(this.editor.setDiagnostics(this.view.state, marks));
  }

  /** The run over time, followed once it is opened; open or closed as it was before. */
  #overTime() {
    const { words } = this;
    const place = make("div", {});
    const show = async () => {
      place.replaceChildren(make("p", { class: "kb-status" }, words.loading));
      const { figure, fault } = await this.engine.call("over_time.timeline", this.state.config, this.asked(), language);
      place.replaceChildren(figure ? parsedTimeline(figure) : make("p", { class: "kb-notice" }, fault === STUCK ? words.stuck : fault));
    };
    const details = make("details", { class: "kb-over-time", ontoggle: () => {
      this.overTime = details.open;
      if (details.open && !place.children.length) show();
    } }, make("summary", {}, words.over_time), place);
    details.open = Boolean(this.overTime);
    return details;
  }

  /** What is left once every safe fix is in: by how much it is over, and the first step that takes less memory. */
  #still(unit, report) {
    const size = (bytes) => (bytes / 2 ** 30).toFixed(1);
    const used = Math.max(...Object.values(unit.prediction.phases).map((phase) => phase.process_used_bytes));
    const limit = Math.min(...report.machine.gpus.map((gpu) => gpu.memory_total_bytes));
    const next = unit.findings.filter(({ rule }) => SAVES.test(rule)).flatMap(({ fixes }) => fixes).find(({ changes }) => changes);
    const values = { used: size(used), limit: size(limit), next: next ? `${next.title} ${next.changes}` : "–" };
    return make("p", { class: "kb-notice" }, filled(this.words.still, values));
  }

  #finding(finding) {
    const { words } = this;
    const go = () => { const at = this.#offset(finding.line, finding.column); this.view.dispatch({ selection: { anchor: at }, scrollIntoView: true }); this.view.focus(); };
    const head = make("p", { class: "kb-finding-head" },
      make("span", { class: `kb-severity kb-severity--${finding.severity}` }, words.severity[finding.severity]), " ",
      make("a", { href: new URL(`../${"rules"}/${finding.rule}/`, location.href).pathname }, finding.rule), " ",
      make("button", { type: "button", class: "kb-place", onclick: go }, `${finding.line}:${finding.column}`));
    const made = make("div", { class: `kb-finding kb-finding--${finding.severity}`, "data-rule": finding.rule }, head, make("p", {}, finding.message));
    for (const fix of finding.fixes) {
      const safe = fix.safety === "safe" && fix.certain;
      made.append(make("p", {}, make("button", { type: "button", class: "md-button kb-fix", onclick: () => this.fix(finding.rule, !safe) }, safe ? words.fix : words.fix_unsafe), ` ${fix.title}`,
        ...(fix.changes ? [make("br"), make("code", { class: "kb-changes" }, fix.changes)] : [])));
    }
    return made;
  }

  #offset(line, column) {
    const document_ = this.view.state.doc;
    const row = document_.line(Math.min(Math.max(line, 1), document_.lines));
    // columns are code points, the editor counts UTF-16 units
    return row.from + [...row.text].slice(0, Math.max(column - 1, 0)).join("").length;
  }

  #mark(finding) {
    const from = this.#offset(finding.line, finding.column);
    const to = Math.max(this.#offset(finding.end_line, finding.end_column), Math.min(from + 1, this.view.state.doc.length));
    return { from: Math.min(from, to), to, severity: finding.severity, message: finding.message, source: finding.rule };
  }

  async fix(rule, unsafe) {
    if (!(await this.#ready())) return;
    const answer = await this.engine.call("fix", this.state.config, this.asked(), language, rule, unsafe);
    if (answer.text !== undefined) this.#write(answer.text);
    else this.status.textContent = answer.fault;
    clearTimeout(this.timer); // of the text that was just written: it is checked now, and once
    this.fixedAll = rule === "";
    this.run();
  }

  /** Puts the state into the address; one that is too long for a link is not kept, and said so when asked for. */
  #keep() {
    const kept = KEPT.filter((key) => this.state[key]).map((key) => [key, this.state[key]]);
    const fragment = `#${new URLSearchParams(kept)}`;
    const fits = fragment.length <= LONGEST;
    history.replaceState(null, "", fits ? fragment : location.pathname);
    return fits;
  }

  async share() {
    if (!this.#keep()) return void (this.status.textContent = this.words.too_long);
    try {
      await navigator.clipboard.writeText(location.href);
      this.status.textContent = this.words.copied;
    } catch {
      this.status.textContent = this.words.copy_by_hand;
    }
  }
}
