// The Fix page's box: a pasted error line or log → its cause, by kb's own engine; likely causes by their words meanwhile.
import { Engine, STUCK } from "./kb-engine.mjs";
import { filled, language, make, picker, prose } from "./kb-dom.mjs";

const WAIT = 400; // milliseconds after the last key
const LIKELY = 5; // causes that are named by their words alone
const root = document.getElementById("kb-fix");
if (root) start(JSON.parse(root.dataset.given));

function start({ words, causes, gpus }) {
  const engine = new Engine();
  const page = (id) => new URL(`${id}/`, location.href.replace(/[?#].*/, "")).pathname;
  const log = make("textarea", { id: "kb-fix-log", rows: 4, spellcheck: "false", autocomplete: "off", placeholder: words.log_hint, oninput: typed, onpaste: () => setTimeout(find) });
  const config = make("textarea", { id: "kb-fix-config", rows: 6, spellcheck: "false", autocomplete: "off", placeholder: "config.yaml", onchange: find });
  const gpu = picker("kb-fix-gpu", words.gpu, [["", words.no_gpu], ...gpus], "", find);
  const field = (name, label, hint) => make("label", { for: `kb-fix-${name}` }, make("span", {}, label),
    make("input", { id: `kb-fix-${name}`, placeholder: hint, size: 8, onchange: find }));
  const host = field("host", words.host, "60GB");
  const cpus = field("cpus", words.cpus, "16");
  const status = make("span", { role: "status", class: "kb-status" });
  const button = make("button", { class: "md-button md-button--primary", type: "button", onclick: find }, words.find);
  const result = make("div", { class: "kb-fix-result", "aria-live": "polite" });
  root.append(
    make("label", { for: log.id, class: "kb-fix-label" }, words.log), log,
    make("details", {}, make("summary", {}, words.values), make("p", {}, words.config_about),
      make("label", { for: config.id, class: "kb-fix-label" }, words.config), config, make("div", { class: "kb-pickers" }, gpu, host, cpus)),
    make("p", { class: "kb-buttons" }, button, status), result);
  let number = 0, timer;

  /** As words are typed, the causes that have them; the engine reads what was pasted or asked for. */
  function typed() {
    clearTimeout(timer);
    number += 1; // an answer under way is of an older text
    timer = setTimeout(() => (engine.ready ? find() : show(likely(log.value))), WAIT);
  }

  async function find() {
    clearTimeout(timer);
    const mine = ++number;
    const text = log.value;
    if (!text.trim()) return void result.replaceChildren();
    if (!engine.ready) show(likely(text));
    if (typeof WebAssembly !== "object") return void result.append(notice(words.no_wasm));
    try {
      if (!engine.ready) status.textContent = words.loading;
      await engine.start();
      engine.ready = true;
    } catch (error) {
      status.textContent = `${words.failed} ${error.message}`;
      return;
    }
    if (mine !== number) return; // something newer was asked meanwhile
    const before = performance.now();
    const answer = await engine.call("diagnose", text, config.value, asked(), language);
    if (mine !== number) return;
    status.textContent = filled(words.answered, { n: answer.lines ?? 0, ms: Math.round(performance.now() - before) });
    window.kbDiagnosed = answer;
    if (answer.fault) return void result.replaceChildren(notice(answer.fault === STUCK ? words.stuck : answer.fault));
    const rest = answer.unexplained ? [unexplained(answer.unexplained)] : [];
    if (answer.causes.length) result.replaceChildren(...answer.causes.map(cause), ...rest);
    else show(likely(text), ...(rest.length ? rest : [notice(words.nothing)]));
  }

  function asked() {
    const wanted = { gpu: gpu.querySelector("select").value, host_memory: host.querySelector("input").value.trim(), cpus: cpus.querySelector("input").value.trim() };
    return JSON.stringify(Object.fromEntries(Object.entries(wanted).filter(([, value]) => value !== "")));
  }

  const notice = (text) => make("p", { class: "kb-notice" }, text);

  /** Causes that a text may mean, by its words: a sign that stands in it whole says more than words here and there. */
  function likely(text) {
    const plain = text.toLowerCase();
    const typedWords = new Set(plain.split(/[^\p{L}\p{N}_]+/u).filter((word) => word.length > (/[^\x00-\x7f]/.test(word) ? 1 : 2)));
    const inside = causes.map(([, title, signs, also]) => `${title.toLowerCase()} ${signs.join(" ")} ${also}`);
    const rare = new Map([...typedWords].map((word) => [word, inside.filter((all) => all.includes(word)).length]));
    const score = ([, , signs], at) =>
      signs.reduce((sum, sign) => sum + (plain.includes(sign) ? sign.length : 0), 0)
      + [...rare].reduce((sum, [word, often]) => sum + (inside[at].includes(word) ? word.length / (1 + often) : 0), 0);
    return causes.map((one, at) => [score(one, at), one]).filter(([points]) => points > 0.5)
      .sort((a, b) => b[0] - a[0]).slice(0, LIKELY).map(([, one]) => one);
  }

  function show(found, ...before) {
    if (!log.value.trim()) return void result.replaceChildren();
    const rows = found.map(([id, title]) => make("li", {}, make("a", { href: page(id) }, title)));
    const list = rows.length ? [make("p", { class: "kb-fix-head" }, words.likely), make("ul", {}, ...rows)] : [make("p", {}, words.nothing_near)];
    result.replaceChildren(...before, ...list);
  }

  const quoted = (evidence) => make("pre", { tabindex: 0, "aria-label": words.evidence }, make("code", {}, evidence.map(([line, text]) => `${line} | ${text}`).join("\n")));

  /** The error that ended the run, where kb knows no cause of it. */
  const unexplained = ({ title, evidence, places, means, run }) => make("section", { class: "kb-cause" }, make("p", { class: "kb-answer-line" }, title), quoted(evidence),
    ...places.map((place) => make("p", { class: "kb-when" }, place)), make("p", {}, means), ...(run ? [make("p", {}, make("code", {}, run))] : []));

  function cause({ id, title, about, evidence, numbers, means, steps }, at) {
    const items = steps.map(({ text, changes, run }) => make("li", {}, ...prose(text),
      ...(changes.length ? [make("br"), ...changes.flatMap((change) => [make("code", { class: "kb-changes" }, change), " "])] : []),
      ...(run ? [make("br"), make("code", {}, run)] : [])));
    return make("section", { class: "kb-cause", "data-cause": id },
      ...(at === 1 ? [make("p", { class: "kb-fix-head" }, words.more)] : []),
      make("p", { class: "kb-answer-line" }, make("a", { href: page(id) }, title)),
      make("p", { class: "kb-when" }, [about, ...numbers].join(" · ")),
      quoted(evidence),
      make("p", {}, ...prose(means)),
      make("details", { open: at === 0 }, make("summary", {}, words.steps), make("ol", {}, ...items)),
      make("p", {}, make("a", { href: page(id) }, `${words.page}: ${title}`)));
  }
}
