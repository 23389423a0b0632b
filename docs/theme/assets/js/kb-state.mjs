// What a reader chose on the first page, kept in this tab for the chapters; a browser that keeps nothing has no chosen.
const KEY = "kb-chosen";

/** Keeps [name, value] pairs; none where the choice is the page's own. */
export function remember(pairs) {
  try {
    if (pairs.length) sessionStorage.setItem(KEY, String(new URLSearchParams(pairs)));
    else sessionStorage.removeItem(KEY);
  } catch { /* storage is off */ }
}

/** The choice as an object, or null. */
export function remembered() {
  try {
    const kept = sessionStorage.getItem(KEY);
    return kept && Object.fromEntries(new URLSearchParams(kept));
  } catch {
    return null;
  }
}
