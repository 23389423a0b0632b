// The search of the theme, with these things added on the way to its worker (see guide/search_words.py):
// the index is fetched when the search box is first used; a reader's word is joined by the pages' own word for it; and
// a word that no page has is read as the nearest one that differs by one edit, and left out where there is none. Words
// around what is looked for (how, help) are left out too, and a page must have the setting or the card that is named.
(() => {
  const [SETUP, QUERY] = [0, 2]; // the theme's message types
  const PASSED_OVER = /^(.|able|about|across|after|all|almost|also|am|among|an|and|any|are|as|at|be|because|been|but|by|can|cannot|could|dear|did|do|does|either|else|ever|every|for|from|get|got|had|has|have|he|her|hers|him|his|how|however|if|in|into|is|it|its|just|least|let|like|likely|may|me|might|most|must|my|neither|no|nor|not|of|off|often|on|only|or|other|our|own|rather|said|say|says|she|should|since|so|some|than|that|the|their|them|then|there|these|they|this|tis|to|too|twas|us|wants|was|we|were|what|when|where|which|while|who|whom|why|will|with|would|yet|you|your)$/; // not in the index
  const RAN_OUT = /\boom\b|out ?of ?memory|메모리 ?부족|터[지져짐]/i; // then the error is what the query is about, whatever is named
  const NUMBERED = /^(llama|라마|gemma|젬마|qwen|phi|gpt|zero|제로|stage)$/i;
  const LONG = 4; // shorter words are near to too many others
  let first;
  const used = new Promise((done) => (first = done));
  for (const event of ["focusin", "click", "keydown"])
    addEventListener(event, ({ target, key }) => {
      const at = target instanceof Element && target.closest(".md-search, [for=__search], #__search");
      if (at || ["/", "f", "s"].includes(key)) first();
    }, true);
  if (/[?&][qh]=/.test(location.search)) first();

  const open = XMLHttpRequest.prototype.open;
  const send = XMLHttpRequest.prototype.send;
  XMLHttpRequest.prototype.open = function (method, address, ...rest) {
    this.kbWaits = String(address).endsWith("search_index.json");
    return open.call(this, method, address, ...rest);
  };
  XMLHttpRequest.prototype.send = function (...given) {
    this.kbWaits ? used.then(() => send.apply(this, given)) : send.apply(this, given);
  };

  let index;
  let words; // every word of the index, with how often pages are called by it
  const known = () => {
    if (words) return words;
    words = new Map();
    const separator = new RegExp(index.config.separator);
    const plain = (text) => text.replace(/<[^>]+>/g, " ").toLowerCase().split(separator);
    const count = (text, weight) => {
      for (const word of plain(text)) if (word) words.set(word, (words.get(word) || 0) + weight);
    };
    for (const { title, also, text } of index.docs) {
      count(title, 100);
      if (also) count(also, 100);
      count(text, 1);
    }
    return words;
  };

  // whether one letter more, less, other, or two in each other's place makes a of b
  const near = (a, b) => {
    if (Math.abs(a.length - b.length) > 1) return false;
    let at = 0;
    while (at < a.length && a[at] === b[at]) at += 1;
    const rest = (word, from) => word.slice(at + from);
    if (a.length !== b.length) return a.length > b.length ? rest(a, 1) === rest(b, 0) : rest(a, 0) === rest(b, 1);
    return rest(a, 1) === rest(b, 1) || (a[at] === b[at + 1] && a[at + 1] === b[at] && rest(a, 2) === rest(b, 2));
  };
  const mended = (word) => {
    const typed = word.toLowerCase();
    const short = /[^\x00-\x7f]/.test(typed) ? LONG - 1 : LONG;
    if (typed.length < short || /[0-9]/.test(typed)) return word;
    let best, most = 0;
    for (const [one, often] of known()) {
      if (one.startsWith(typed)) return word;
      if (often > most && near(typed, one)) [best, most] = [one, often];
    }
    return best ?? word;
  };
  const inIndex = (word) => {
    const typed = word.toLowerCase();
    for (const one of known().keys()) if (one.startsWith(typed)) return true;
    return false;
  };
  const apart = (word) => {
    const parts = /^([0-9]{3,})([a-z]{2,})$/i.exec(word);
    return parts && !inIndex(word) ? [parts[1], parts[2]] : [word];
  };
  // a setting's name, a card's and a program's are what the query is about: a page must have all of such a word (the
  // theme's quotes); where memory ran out, the program's alone
  let cards;
  const isCard = (word) => {
    cards ??= new Set(index.docs.filter(({ location }) => /^gpus\/[^#]+$/.test(location))
      .flatMap(({ title }) => title.toLowerCase().split(/[\s-]+/)).filter((part) => /\d/.test(part) && !/^\d+gb$/.test(part)));
    return cards.has(word);
  };
  // the longest name of several words that a page has and that is half of the query at least, or long, as words
  let names;
  const nameIn = (words, separator) => {
    const apart = (text) => ` ${text.toLowerCase().split(separator).filter((part) => part && !PASSED_OVER.test(part)).join(" ")} `;
    names ??= index.config.names.map(apart).sort((a, b) => b.length - a.length);
    const typed = apart(words.join(" "));
    const most = typed.trim().split(" ").length;
    const parts = (name) => name.trim().split(" ");
    const found = names.find((name) => typed.includes(name) && parts(name).length > 1 && (parts(name).length > 3 || parts(name).length * 2 >= most));
    return found ? parts(found) : [];
  };
  const demanded = (words, more) => {
    const ranOut = RAN_OUT.test(words.join(" "));
    const separator = new RegExp(index.config.separator);
    const called = words.length > 1 ? words.join(" ").toLowerCase() : ""; // what a page is called by is looked for whole
    const calls = called && index.docs.some(({ also }) => also?.toLowerCase().includes(called)) ? called.split(separator).filter(Boolean) : [];
    const wanted = [...words, ...more].flatMap((word) => {
      const parts = word.toLowerCase().split(separator).filter(Boolean); // 4090에서 is 4090
      const programs = parts.filter((part) => index.config.programs.includes(part));
      if (ranOut || programs.length) return [programs];
      const name = /[a-z0-9]+(_[a-z0-9]+)+/.exec(word)?.[0] ?? parts.find(isCard) ?? /^zero(?=-?[1-3]$)/i.exec(word)?.[0] ?? "";
      return name ? [name.toLowerCase().split("_")] : [];
    });
    const whole = ({ title, also, text }) => `${title} ${also ?? ""} ${text}`.toLowerCase();
    const there = (all) => all.length && all.every((part) => known().has(part)) && index.docs.some((one) => all.every((part) => whole(one).includes(part)));
    const held = calls.length || ranOut || wanted.flat().length ? calls : nameIn(words, separator);
    const all = [...wanted.flat(), ...held].filter((part) => !PASSED_OVER.test(part));
    return there(all) ? [`"${all.join(" ")}"`, ...words] : words;
  };
  const asked = (query) => {
    if (!index || !query.trim()) return query;
    const typed = query.toLowerCase();
    const joined = (text) => text.replace(/\s+/g, ""); // Korean compounds are typed with and without a space
    const inside = (name) =>
      /^[\x00-\x7f]+$/.test(name) ? ` ${typed.replace(/[^a-z0-9]+/g, " ")} `.includes(` ${name} `) : joined(typed).includes(joined(name));
    const more = Object.entries(index.config.synonyms).filter(([name]) => inside(name)).map(([, own]) => own);
    const separator = new RegExp(index.config.separator);
    // of an option the dashes would leave out what has it; 80기가 and 80 GB are written 80GB
    const typedWords = query.replace(/\[Errno \d+\]/gi, " ").replace(/(\d)\s+(?=gi?b\b)/gi, "$1").split(/\s+/).map((word) => word.replace(/^[-+~]+/, "").replace(/^(\d+)기가(?:바이트)?$/, "$1GB"));
    const read = typedWords.map((word) => {
      const parts = word.split(separator).filter(Boolean);
      // of can't the t says nothing; 4070ti is called 4070 Ti
      const better = parts.filter((part) => parts.length < 2 || !/^[a-z]$/i.test(part)).flatMap((part) => apart(mended(part)));
      return better.join(" ") === parts.join(" ") ? word : better.join(" ");
    }).filter(Boolean);
    const held = read.filter((word) => word.split(separator).some((part) => part && inIndex(part)));
    // a short number tells nothing but of what is numbered, and lunr fails where it begins too many words
    const counts = (word, at) => /^\d{1,2}$/.test(word) && !NUMBERED.test(held[at - 1] ?? "");
    const telling = held.filter((word, at) => !index.config.empty.includes(word.toLowerCase()) && !counts(word, at) && !/^[a-z]$/i.test(word));
    const kept = telling.length ? telling : held.length || more.length ? held : read;
    return [...demanded(kept, more), ...more].join(" ");
  };
  const post = Worker.prototype.postMessage;
  Worker.prototype.postMessage = function (message, ...rest) {
    if (message && message.type === SETUP && message.data && message.data.docs) index = message.data;
    const query = message && message.type === QUERY && typeof message.data === "string";
    return post.call(this, query ? { ...message, data: asked(message.data) } : message, ...rest);
  };
})();
