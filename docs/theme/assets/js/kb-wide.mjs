// A table that is wider than a phone is shown row by row, each cell beside its column's name. What is wider than its
// place otherwise says so: a line at its top tells how much lies beyond the edge, and the edge fades.
const FRAMES = ".md-typeset__scrollwrap, .kb-wide, .kb-figure";
const PHONE = matchMedia("(max-width: 30em)");
const MOST_ROWS = 32; // of a table that is shown row by row: a longer one has a filter, and is compared down its columns
const words = document.getElementById("kb-more")?.dataset;
const seen = new ResizeObserver((rows) => rows.forEach(({ target }) => tell(target)));

if (words) {
  watch();
  // the theme puts tables into frames once the page stands, and panels bring others
  new MutationObserver(watch).observe(document.querySelector("article"), { childList: true, subtree: true });
}

function watch() {
  for (const frame of document.querySelectorAll(`article :is(${FRAMES})`)) {
    if (frame.dataset.kbWatched) continue;
    frame.dataset.kbWatched = "true";
    seen.observe(frame);
    frame.addEventListener("scroll", () => fade(frame), { passive: true });
  }
}

function tell(frame) {
  stack(frame);
  const beyond = frame.scrollWidth > frame.clientWidth + 1;
  if (beyond) frame.dataset.kbMore = sentence(frame); // kb.css shows it
  else delete frame.dataset.kbMore;
  reach(frame, beyond);
  fade(frame);
}

/** On a phone a table that does not fit is rows of names and values; on a wider screen it is a table again. */
function stack(frame) {
  const table = frame.querySelector("table");
  if (!table?.tHead || frame.querySelectorAll("table").length > 1) return;
  if (!PHONE.matches) {
    table.classList.remove("kb-stack");
    if (!table.classList.length) table.removeAttribute("class"); // the theme's tables have none
    return;
  }
  if (table.classList.contains("kb-stack") || frame.scrollWidth <= frame.clientWidth + 1) return;
  const rows = [...table.tBodies].flatMap((body) => [...body.rows]).filter((row) => row.cells.length > 1);
  if (rows.length > MOST_ROWS) return;
  const heads = [...table.tHead.rows[0].cells].map((cell) => cell.innerText.replace(/\s+/g, " ").trim());
  // what is no longer laid out as a table is still read out as one
  table.setAttribute("role", "table");
  table.caption?.setAttribute("role", "caption");
  for (const part of [table.tHead, ...table.tBodies]) part.setAttribute("role", "rowgroup");
  for (const row of table.rows) row.setAttribute("role", "row");
  for (const cell of table.tHead.rows[0].cells) cell.setAttribute("role", "columnheader");
  for (const row of rows)
    [...row.cells].forEach((cell, at) => {
      cell.dataset.kbLabel = (heads[at] ?? "").split(" ╲ ")[0]; // of a corner that names both sides, this one
      if (!at && /^[\d.,]+$/.test(cell.innerText.trim())) cell.dataset.kbNumber = ""; // a number alone says too little
      cell.setAttribute("role", at ? "cell" : "rowheader");
    });
  table.classList.add("kb-stack");
}

/** How many columns no reader sees without moving it; of a drawing only that there is more. */
function sentence(frame) {
  const edge = frame.getBoundingClientRect().right + 1;
  const heads = [...(frame.querySelector("thead tr")?.cells ?? [])];
  const hidden = heads.filter((cell) => cell.getBoundingClientRect().right > edge + frame.scrollLeft).length;
  return hidden ? words.columns.replace("{n}", hidden) : words.more;
}

/** What is moved sideways is moved by keyboard too; a frame of the page's own has its name already. */
function reach(frame, beyond) {
  if (!frame.matches(".md-typeset__scrollwrap")) return;
  const given = { tabindex: "0", role: "region", "aria-label": frame.querySelector("thead")?.innerText.replace(/\s+/g, " ").trim() || words.more };
  for (const [name, value] of Object.entries(given)) beyond ? frame.setAttribute(name, value) : frame.removeAttribute(name);
}

function fade(frame) {
  frame.classList.toggle("kb-beyond-edge", frame.scrollLeft + frame.clientWidth < frame.scrollWidth - 1);
}
