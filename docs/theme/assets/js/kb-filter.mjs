// Filters over long tables: rows that hold every word typed, by the section that they stand in and by columns' values.
import { filled, make } from "./kb-dom.mjs";

const rowsOf = (element) => [...element.querySelectorAll("tbody tr:not(.kb-group)")];
const valuesIn = (row, at) => (row.querySelector(at)?.textContent ?? "").split(",").map((value) => value.trim()).filter(Boolean);
// the theme puts tables into frames of its own once the page stands
const framed = (element) => element.closest(".md-typeset__scrollwrap") ?? element;

for (const place of document.querySelectorAll(".kb-filter")) filterOf(place, JSON.parse(place.dataset.given));
for (const wide of document.querySelectorAll(".kb-wide")) new ResizeObserver(() => settle(wide)).observe(wide);

/** A table that is as narrow as its place needs no scrolling of its own: its head then stays in sight with the page. */
function settle(wide) {
  const table = wide.firstElementChild;
  wide.classList.toggle("kb-wide--whole", table.scrollWidth <= wide.clientWidth + 1);
}

function filterOf(place, { words, sections, columns, alone }) {
  const parts = alone ? [[null, [place.nextElementSibling]]] : sectionsAfter(place);
  const items = parts.flatMap(([heading, elements]) => itemsOf(heading, elements));
  const read = items.map(({ heading, rows, also }) => ({
    text: `${heading?.textContent ?? ""} ${also ?? ""} ${rows.map((row) => row.textContent).join(" ")}`.toLowerCase(), heading, rows,
  }));
  const typed = make("input", { type: "search", placeholder: words.text, "aria-label": words.text, spellcheck: "false", autocomplete: "off", oninput: show });
  const picks = Object.entries(columns).map(([name, at]) => pick(name, valuesOf(items, at), (row) => valuesIn(row, at)));
  const named = (heading) => heading.firstChild.textContent.trim();
  if (sections) {
    const titles = parts.filter(([heading]) => heading).map(([heading]) => named(heading));
    picks.unshift(pick(sections, titles, (row, heading) => [heading && named(heading)]));
  }
  const count = make("span", { role: "status", class: "kb-status" });
  place.append(typed, ...picks.map(({ select }) => select), count);
  show();

  function pick(name, values, of) {
    const select = make("select", { "aria-label": name, onchange: show },
      make("option", { value: "" }, filled(words.any, { name })), ...values.map((value) => make("option", {}, value)));
    return { select, of };
  }

  function show() {
    const wanted = typed.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const { text, heading, rows } of read) {
      const fits = wanted.every((word) => text.includes(word))
        && picks.every(({ select, of }) => !select.value || of(rows[0], heading).includes(select.value));
      for (const row of rows) row.hidden = !fits;
      shown += fits;
    }
    for (const [heading, elements] of parts) hideEmpty(heading, elements);
    count.textContent = shown ? filled(words.count, { n: shown, all: read.length }) : words.none;
  }
}

function valuesOf(items, at) {
  const often = new Map();
  for (const { rows } of items) for (const value of valuesIn(rows[0], at)) often.set(value, (often.get(value) || 0) + 1);
  return [...often].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)).map(([value]) => value);
}

/** What follows, by heading of the first level that occurs; it ends where a heading of a higher level stands. */
function sectionsAfter(place) {
  const found = [[null, []]];
  let level;
  for (let next = place.nextElementSibling; next; next = next.nextElementSibling) {
    const own = /^H([2-6])$/.exec(next.tagName)?.[1];
    if (own && level && own < level) break;
    if (own && own === (level ??= own)) found.push([next, []]);
    else found.at(-1)[1].push(next);
  }
  return found.filter(([heading, elements]) => heading || elements.length);
}

/** Each row of a section's tables; a section without tables is one item by itself. */
function itemsOf(heading, elements) {
  const rows = elements.flatMap(rowsOf);
  if (!rows.length) return heading ? [{ heading, rows: elements }] : [];
  return rows.map((row) => ({ heading, rows: [row], also: row.parentElement.querySelector(".kb-group")?.textContent }));
}

function hideEmpty(heading, elements) {
  const rows = elements.flatMap(rowsOf);
  for (const group of elements.flatMap((element) => [...element.querySelectorAll(".kb-group")]))
    group.hidden = rowsOf(group.closest("table")).filter((row) => row.parentElement === group.parentElement).every((row) => row.hidden);
  if (!heading) return;
  const empty = rows.length ? rows.every((row) => row.hidden) : elements.every((element) => element.hidden);
  for (const element of [heading, ...elements]) framed(element).hidden = empty;
}
