// Draws the formulas that pymdownx.arithmatex marked, with KaTeX.
for (const formula of document.querySelectorAll(".arithmatex")) {
  const source = formula.textContent.trim();
  const shown = source.startsWith("\\[");
  katex.render(source.slice(2, -2), formula, { displayMode: shown, throwOnError: false, output: "htmlAndMathml" });
}
