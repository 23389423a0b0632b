// Small pieces that the playground and the chooser share. Text is always set as text: nothing typed becomes markup.
const GIB = 2 ** 30;
const [SMALL, UNUSED] = [8, 9]; // colours: of all smaller terms, of what no term holds
const SVG = "http://www.w3.org/2000/svg";

export const language = document.documentElement.lang.startsWith("ko") ? "ko" : "en";

/** The page's words, from the element's data-words attribute. */
export const wordsOf = (element) => JSON.parse(element.dataset.words);

/** The switch to the other language keeps what stands in the address behind #. */
export function keepState() {
  for (const link of document.querySelectorAll("a.md-select__link[hreflang]"))
    link.addEventListener("click", () => { link.hash = location.hash; });
}

/** A text of the page with its placeholders filled. */
export const filled = (text, values) => text.replace(/\{(\w+)\}/g, (whole, name) => String(values[name] ?? whole));

/** The same as nodes: a value may be one. */
export const woven = (text, values) => text.split(/\{(\w+)\}/).map((part, at) => (at % 2 ? values[part] ?? "" : part));

/** The mark of what kb computed; leads to what that means, and how far off it is. */
export const computedMark = (words, href) => make("a", { class: "kb-badge kb-badge--computed", href, title: words.computed_title }, words.computed);

/** A sentence of the rules: what stands between backticks is code. */
export const prose = (text) => text.split("`").map((part, at) => (at % 2 ? make("code", {}, part) : part));

/** The names nearest to a text: those that hold its words, then those that share most of its letters' pairs. */
export function nearest(text, names) {
  const typed = text.toLowerCase().split(/[^a-z0-9.]+/).filter(Boolean);
  const pairs = (word) => new Set([...word].map((letter, at) => letter + (word[at + 1] || "")));
  const own = pairs(typed.join("-"));
  const shared = (name) => [...pairs(name)].filter((pair) => own.has(pair)).length / (own.size + name.length);
  const score = (name) => typed.filter((word) => name.includes(word)).length + shared(name);
  return typed.length ? [...names].sort((a, b) => score(b) - score(a)).slice(0, 3) : [];
}

/** make("p", { class: "x", onclick: f }, "text", child) */
export function make(name, given = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(given)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value != null) made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

const draw = (name, given, ...children) => {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(given)) made.setAttribute(key, value);
  made.append(...children);
  return made;
};

/** A figure that kb's engine made (report/bars.py), every text in it escaped there. */
export const parsed = (html) => new DOMParser().parseFromString(html, "text/html").body.firstElementChild;

/** A labelled select; options are [value, text]. */
export function picker(id, label, options, chosen, onchange) {
  const select = make("select", { id, onchange });
  for (const [value, text] of options) select.append(make("option", { value, selected: value === chosen }, text));
  return make("label", { for: id }, make("span", {}, label), select);
}

const [LABEL, BAR, ROW, WHOLE] = [18, 22, 46, 99.4]; // as of report/bars.py

/** Stacked bars by phase with the card's limit; the same terms as in the report. Lengths are shares of the width. */
export function memoryChart(prediction, limit, words, sources) {
  const phases = Object.values(prediction.phases).filter((phase) => phase.title && phase.process_used_bytes);
  const most = Math.max(limit || 0, ...phases.map((phase) => phase.high_bytes || phase.process_used_bytes));
  const share = (bytes) => `${((bytes / most) * WHOLE).toFixed(2)}%`;
  const line = (kind, x1, x2, y1, y2) => draw("line", { class: kind, x1, x2, y1, y2 });
  const chart = draw("svg", { class: "kb-drawing kb-bars", role: "img", width: "100%", height: ROW * phases.length + (limit ? 20 : 0) });
  chart.append(draw("title", {}, words.chart));
  if (limit) {
    chart.append(line("kb-limit", share(limit), share(limit), 2, ROW * phases.length));
    chart.append(draw("text", { class: "kb-label", x: share(limit), y: ROW * phases.length + 14, "text-anchor": limit > most / 2 ? "end" : "start" }, `${(limit / GIB).toFixed(1)} GiB`));
  }
  const colours = termColours(phases);
  phases.forEach((phase, number) => {
    const top = ROW * number + LABEL;
    let at = 0;
    chart.append(draw("text", { class: "kb-label", x: 0, y: top - 5 }, `${phase.title} · ${(phase.process_used_bytes / GIB).toFixed(1)} GiB`));
    const terms = [...phase.terms].sort((a, b) => colours.get(a.name) - colours.get(b.name) || b.bytes - a.bytes);
    const rest = phase.process_used_bytes - terms.reduce((sum, term) => sum + term.bytes, 0);
    for (const term of [...terms, { title: words.unused, bytes: Math.max(rest, 0), name: "" }]) {
      const kind = term.name ? colours.get(term.name) : UNUSED;
      chart.append(draw("rect", { class: `kb-term kb-term--${kind}`, x: share(at), y: top, width: share(term.bytes), height: BAR },
        draw("title", {}, `${phase.title} · ${term.title}: ${(term.bytes / GIB).toFixed(2)} GiB`)));
      at += term.bytes;
    }
    if (phase.high_bytes > phase.low_bytes) { // the error band, over the bar
      const [low, high, middle] = [share(phase.low_bytes), share(phase.high_bytes), top + BAR / 2];
      chart.append(line("kb-band", low, high, middle, middle), line("kb-band", low, low, middle - 5, middle + 5), line("kb-band", high, high, middle - 5, middle + 5));
    }
  });
  const caption = make("figcaption", {}, make("b", {}, words.chart), " ", computedMark(words, sources));
  return make("figure", { class: "kb-figure", tabIndex: 0 }, caption, chart, legend(phases, colours, words, limit));
}

// A term has one colour in every drawing, the guide's too (kb/report/bars.py).
export const HUES = {
  parameters: 0,
  optimizer: 1,
  gradients: 2,
  gradients_held: 2,
  activations_decoder: 3,
  activations_encoder: 4,
  reference_model: 4,
  logits: 5,
  loss: 6,
  vllm: 6,
  buckets: 6,
  activations_head: 7,
  adapters: 7,
  vllm_weights: 7,
  kv_cache_self: 10,
  gathered: 10,
  autocast_copies: 10,
  gathered_parameters: 10,
  kv_cache_cross: 11,
  temporaries: 11,
  quantization: 11,
};
const MOST_NAMED = 9;

/** A colour for each term: its own for the largest of any phase; where two of one colour meet, the smaller is a rest. */
function termColours(phases) {
  const most = new Map();
  for (const { terms } of phases) for (const term of terms) most.set(term.name, Math.max(most.get(term.name) || 0, term.bytes));
  const found = new Map();
  for (const [name] of [...most].sort((a, b) => b[1] - a[1])) {
    const hue = HUES[name] ?? SMALL;
    const free = ![...found.values()].includes(hue) && found.size < MOST_NAMED;
    found.set(name, free ? hue : SMALL);
  }
  return found;
}

function legend(phases, colours, words, limit) {
  const titles = new Map(phases.flatMap(({ terms }) => terms.map((term) => [term.name, term.title])));
  const rows = [...colours].filter(([, colour]) => colour !== SMALL).map(([name, colour]) => [titles.get(name), colour]);
  if ([...colours.values()].includes(SMALL)) rows.push([words.small, SMALL]);
  rows.push([words.unused, UNUSED]);
  const item = (kind, title) => make("li", {}, make("span", { class: `kb-swatch ${kind}` }), title);
  return make("ul", { class: "kb-legend" }, ...rows.map(([title, colour]) => item(`kb-term--${colour}`, title)),
    item("kb-swatch--band", words.band), ...(limit ? [item("kb-swatch--limit", words.limit)] : []));
}
