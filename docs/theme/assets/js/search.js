// Splits what a Korean types as the index was split (see guide/search_words.py): the search runs in a worker that
// Material starts, so the query is split on its way there.
(() => {
  const given = document.querySelector('meta[name="kb-search"]');
  if (!given || !document.documentElement.lang.startsWith("ko")) return;
  const { stems, particles } = JSON.parse(given.content);
  const hangul = "가-힣";
  // the longest stem counts: 작업자 at a word's end is not 작업 and 자
  const stem = new RegExp(stems.join("|"), "g");
  const more = new RegExp(`^[${hangul}]`);
  const part = (found, at, word) => (more.test(word.slice(at + found.length)) ? `${found} ` : found);
  const particle = new RegExp(`^([${hangul}A-Za-z0-9]{2,}?)(?:${particles.join("|")})$`);
  const split = (query) =>
    query.split(/\s+/).map((word) => word.replace(particle, "$1").replace(stem, part)).join(" ");
  const QUERY = 2; // Material's message type of a search query
  const send = Worker.prototype.postMessage;
  Worker.prototype.postMessage = function (message, ...rest) {
    const asked = message && message.type === QUERY && typeof message.data === "string";
    return send.call(this, asked ? { ...message, data: split(message.data) } : message, ...rest);
  };
})();
