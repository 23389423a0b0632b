// A run over time: what is alive at the moment under the pointer or the slider. The figure is whole without it.

import { parsed } from "./kb-dom.mjs";

/** A figure that kb's engine made (report/timeline.py), every text in it escaped there. */
export function parsedTimeline(html) {
  const figure = parsed(html);
  enliven(figure);
  return figure;
}

function enliven(figure) {
  const { moments, rows } = JSON.parse(figure.dataset.given);
  const [plot, mark, slider, caption, body] = [".kb-timeline-plot", ".kb-timeline-mark", "input", "caption", "tbody"].map((part) => figure.querySelector(part));
  const cell = (name, ...children) => { const made = document.createElement(name); made.append(...children); return made; };

  const row = ([colour, size, term, where]) => {
    const swatch = document.createElement("span");
    swatch.className = `kb-swatch kb-term--${colour}`;
    return cell("tr", cell("td", size), cell("td", swatch, term, cell("br"), cell("code", ...where.split(/(?<=\.)/).flatMap((part) => [part, document.createElement("wbr")]))));
  };

  const show = (number) => {
    const [at, said, shown] = moments[number];
    mark.style.left = `${at}%`;
    caption.textContent = said;
    slider.setAttribute("aria-valuetext", said);
    body.replaceChildren(...shown.map((one) => row(rows[one])));
  };

  const pointed = ({ clientX }) => {
    const { left, width } = plot.getBoundingClientRect();
    const at = (100 * (clientX - left)) / width;
    const near = moments.reduce((best, [place], number) => (Math.abs(place - at) < Math.abs(moments[best][0] - at) ? number : best), 0);
    if (Number(slider.value) === near) return;
    slider.value = near;
    show(near);
  };
  plot.addEventListener("pointermove", pointed);
  plot.addEventListener("pointerdown", pointed);
  slider.addEventListener("input", () => show(Number(slider.value)));
  slider.hidden = false;
  mark.hidden = false;
  show(Number(slider.value));
}

for (const figure of document.querySelectorAll(".kb-timeline")) enliven(figure);
