// A chapter's tables for what its reader chose on the first page: from the address, else from this tab's memory.
import { Engine } from "./kb-engine.mjs";
import { filled, keepState, language, make } from "./kb-dom.mjs";
import { remembered } from "./kb-state.mjs";

const NUMBERS = ["source_length", "target_length", "effective_batch"];
const places = [...document.querySelectorAll(".kb-own")];
const chosen = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
const state = chosen.model && chosen.gpu ? chosen : remembered();
if (places.length && state) start();

async function start() {
  const own = Object.fromEntries(NUMBERS.filter((name) => /^[1-9][0-9]{0,6}$/.test(state[name] ?? "")).map((name) => [name, Number(state[name])]));
  const what = [state.model, state.gpu, ...Object.values(own)].join(" · ");
  const { words } = JSON.parse(places[0].dataset.given);
  const notice = make("p", { class: "kb-notice kb-own-notice", role: "status" }, filled(words.loading, { what }));
  const kept = places.map((place) => ({ place, title: place.querySelector("span"), body: tableOf(place).querySelector("tbody") }))
    .map((one) => ({ ...one, said: one.title.textContent, example: one.body.cloneNode(true) }));
  document.querySelector("article h1").after(notice);
  keepState();
  const engine = new Engine();
  try {
    await engine.start();
    const faults = [];
    for (const one of kept) faults.push(await compute(engine, one, own));
    if (faults.every(Boolean)) throw new Error(faults[0]);
  } catch (error) {
    notice.textContent = `${filled(words.failed, { what })} ${error.message}`;
    back(kept);
    return;
  }
  const button = make("button", { type: "button", class: "md-button kb-fix", onclick: () => { back(kept); notice.remove(); } }, words.back);
  notice.replaceChildren(filled(words.for, { what }), " ", button);
  window.kbOwn = what;
}

function tableOf(place) {
  return place.closest(".kb-held").nextElementSibling.querySelector("table");
}

function back(kept) {
  for (const { place, title, body, said, example } of kept) {
    place.querySelector(".kb-own-fault")?.remove();
    title.textContent = said;
    body.replaceChildren(...example.cloneNode(true).children);
  }
}

/** Fills a table; says why beside its caption, and returns it, where the example stays. */
async function compute(engine, { place, title, body, example }, own) {
  const { words, ...asked } = JSON.parse(place.dataset.given);
  const answer = await engine.call("own_tables.own_table", JSON.stringify({ ...asked, ...own, model: state.model, gpu: state.gpu }), language);
  if (answer.fault) {
    place.append(make("small", { class: "kb-own-fault" }, answer.fault));
    return answer.fault;
  }
  title.textContent = filled(words.title, { ...answer.values, way: title.textContent.split(", ").pop() });
  const firsts = asked.table === "ways" ? [...example.children].map((row) => row.cells[0]) : [];
  body.replaceChildren(...answer.rows.map((row, at) => {
    const [first, ...rest] = firsts.length ? [null, ...row] : row;
    const head = first ? make("th", { scope: "row" }, ...first.map(part)) : firsts[at].cloneNode(true);
    return make("tr", {}, head, ...rest.map((cell) => make("td", {}, ...cell.map(part))));
  }));
  return "";
}

function part([text, mark]) {
  if (mark === "b" || mark === "small") return make(mark, {}, text);
  return mark ? make("span", { class: `kb-verdict kb-verdict--${mark}` }, text) : text;
}
