// What is wider than its place says so: a line at its top tells how much lies beyond the edge, and the edge fades.
const FRAMES = ".md-typeset__scrollwrap, .kb-wide, .kb-figure";
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
  const beyond = frame.scrollWidth > frame.clientWidth + 1;
  if (beyond) frame.dataset.kbMore = sentence(frame); // kb.css shows it
  else delete frame.dataset.kbMore;
  reach(frame, beyond);
  fade(frame);
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
