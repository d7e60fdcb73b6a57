// Views of states: an overview, one state, one word, and the table that says what the map shows.

const stateLink = (state) => `#/state/${state}`;

function chip(app, state, p, words = 3) {
  const { chain } = app;
  return h("a", {
    class: "chip", href: stateLink(state), title: `${chain.of} ${state}: ${chain.topWords(state, 8).join(", ")}`,
    style: { "--hue": theme.kind(chain.kind[state]) },
    onpointerenter: () => app.map.hover(state), onpointerleave: () => app.map.hover(null),
  }, h("i", { "aria-hidden": "true" }), bdi(chain.name(state, words) || "(no words)"), h("span", { class: "quiet" }, p === undefined ? `${state}` : percent(p)));
}

const chips = (app, list) => h("ul", { class: "chips" }, list.map(({ id, p }) => h("li", {}, chip(app, id, p ?? undefined))));

// A line of the corpus with some words marked: [from, to) within the sentence; `reach` words on either side.
function concordance(app, sentence, from, to, { reach = 8, colour, note } = {}) {
  const { chain } = app, start = chain.start[sentence], end = chain.start[sentence + 1] - 1;
  const slice = (a, b) => { const words = []; for (let i = Math.max(start, a); i < Math.min(end, b); i++) words.push(chain.word(i)); return words; };
  const before = slice(start + from - reach, start + from), own = slice(start + from, start + to), after = slice(start + to, start + to + reach);
  if (start + to > end) own.push("\u23ce");
  const cut = (words) => words.flatMap((word) => [bdi(word), " "]);
  return h("a", { class: "line", dir: "auto", href: `#/sentence/${sentence}/${from}-${to}`, style: colour ? { "--hue": colour } : {} },
    h("span", { class: "before" }, h("span", {}, from > reach ? "\u2026 " : "", cut(before))),
    h("mark", {}, own.flatMap((word, i) => (i ? [" ", bdi(word)] : [bdi(word)]))),
    h("span", { class: "after" }, " ", cut(after), start + to + reach < end ? "\u2026" : ""),
    note && h("span", { class: "note" }, note));
}

function overview(app) {
  const { chain } = app, { meta } = chain;
  const used = chain.share.reduce((n, x) => n + (x > 1 / (10 * chain.numStates)), 0);
  let entropy = 0;
  for (const x of chain.share) if (x > 0) entropy -= x * Math.log(x);
  app.map.mark(null);
  const surprising = pickSentences(chain, 5), width = chain.shapes.word_id[1];
  const silent = (state) => [meta.eos, meta.unk].includes(chain.word_id[state * width]);  // tells little: after all others
  const telling = [...chain.byShare].sort((a, b) => silent(a) - silent(b));
  return [
    h("h1", {}, `What ${whole(chain.numStates)} hidden ${chain.of}s learned`),
    h("p", { class: "lead" }, `Every dot on the map is a hidden ${chain.of} of the model. Near ones say like words and lead to like words. Click a dot, search a word, or follow a sentence through it.`),
    h("div", { class: "facts" }, fact(whole(chain.numStates), `${chain.of}s`), fact(whole(used), "in regular use"), fact(whole(Math.exp(entropy)), "effective"),
      fact(whole(meta.vocabulary), "words"), fact(whole(chain.numSentences), meta.generated ? "sentences drawn from the model" : "sentences")),
    section("Follow a sentence", h("ul", { class: "plain" }, surprising.map((number) => h("li", {}, sentenceLine(app, number))))),
    section(`The most used ${chain.of}s`, h("ol", { class: "cards" }, telling.slice(0, 24).map((state) => h("li", {}, stateCard(app, state))))),
  ];
}

function stateCard(app, state) {
  const { chain } = app;
  return h("a", { class: "card", href: stateLink(state), style: { "--hue": theme.kind(chain.kind[state]) }, onpointerenter: () => app.map.hover(state), onpointerleave: () => app.map.hover(null) },
    h("strong", {}, bdi(chain.name(state, 3))), h("span", { class: "quiet" }, `${percent(chain.share[state])} \u00b7 ${chain.of} ${state}`));
}

// Sentences of middle length, spread over the text.
function pickSentences(chain, num) {
  const found = [], step = Math.max(1, Math.floor(chain.numSentences / (num * 7)));
  for (let n = Math.floor(step / 2); n < chain.numSentences && found.length < num; n += step) {
    const length = chain.start[n + 1] - chain.start[n];
    if (length >= 9 && length <= 18) found.push(n);
  }
  return found.length ? found : [0];
}

function sentenceLine(app, number, note) {
  const { words } = app.chain.sentence(number);
  return h("a", { class: "sentence-link", href: `#/sentence/${number}` }, words.slice(0, -1).flatMap((word) => [bdi(word), " "]), note && h("span", { class: "quiet" }, note));
}

function stateView(app, argument) {
  const { chain } = app, state = Number(argument);
  if (!Number.isInteger(state) || state < 0 || state >= chain.numStates) return missing(`There is no ${chain.of} ${argument}: this model has 0 to ${chain.numStates - 1}.`);
  app.last.state = state;
  const words = chain.ranked("word", state), next = chain.ranked("next", state), previous = chain.ranked("previous", state);
  const hue = theme.kind(chain.kind[state]), places = chain.positions(state);
  app.map.mark({ selected: state, next: next.slice(0, 8) });
  app.map.show([state, ...next.slice(0, 3).map((one) => one.id)], 5);
  const pinned = app.pinned.has(state);
  return [
    h("header", { class: "state-head", style: { "--hue": hue } },
      h("p", { class: "quiet" }, `${chain.of} ${state}`), h("h1", {}, bdi(chain.name(state, 3) || "(no words)")),
      h("div", { class: "facts" }, fact(percent(chain.share[state]), "of all tokens"), fact(whole(places.length), "places in this text"),
        fact(Math.exp(chain.entropy[state]).toFixed(1), "effective words"), fact(whole(Math.exp(chain.next_entropy[state])), `effective next ${chain.of}s`)),
      h("p", {}, h("button", { type: "button", "aria-pressed": String(pinned), onclick: (event) => {
        if (app.pinned.has(state)) app.pinned.delete(state); else app.pinned.add(state);
        event.currentTarget.setAttribute("aria-pressed", String(app.pinned.has(state)));
        event.currentTarget.textContent = app.pinned.has(state) ? "In the graph" : "Add to the graph";
      } }, pinned ? "In the graph" : "Add to the graph"), " ",
      h("a", { class: "button", href: `#/graph/${[...new Set([state, ...next.slice(0, 4).map((x) => x.id), ...previous.slice(0, 4).map((x) => x.id)])].join(",")}` }, "Graph around it"))),
    section("Words it says", bars(words.map((one) => ({ label: bdi(chain.words[one.id]), p: one.p, href: `#/word/${encodeURIComponent(chain.words[one.id])}`, colour: hue })), { label: "Words and their probabilities" })),
    h("div", { class: "two" },
      section("Comes after", chips(app, previous)),
      section("Leads to", chips(app, next))),
    section("Nearest on the map", chips(app, chain.ranked("near", state))),
    section("In the text", places.length ? contexts(app, state, places, hue) : h("p", { class: "quiet" }, `No position of this text has it as its most probable ${chain.of}.`)),
  ];
}

function contexts(app, state, places, hue) {
  const { chain } = app, counts = new Map();
  for (const place of places) counts.set(chain.word(place), (counts.get(chain.word(place)) ?? 0) + 1);
  const common = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 10);
  const lines = h("div", { class: "concordance" });
  const fillLines = (only) => lines.replaceChildren(...[...places].filter((place) => only === null || chain.word(place) === only).slice(0, 30).map((place) => {
    const sentence = chain.sentenceOf[place], from = place - chain.start[sentence];
    return concordance(app, sentence, from, from + 1, { colour: hue, note: percent(chain.p[place * chain.perPosition] / 255) });
  }));
  fillLines(null);
  const pick = (word, text) => h("button", { type: "button", class: "small", onclick: (event) => {
    for (const one of event.currentTarget.parentElement.children) one.setAttribute("aria-pressed", "false");
    event.currentTarget.setAttribute("aria-pressed", "true");
    fillLines(word);
  }, "aria-pressed": String(word === null) }, text);
  return [h("div", { class: "filters", role: "group", "aria-label": "Only with the word" }, pick(null, `all ${whole(places.length)}`), common.map(([word, count]) => pick(word, [bdi(word), ` ${whole(count)}`]))), lines];
}

function wordView(app, word) {
  const { chain } = app, id = chain.byWord.get(word);
  if (id === undefined) return missing(`\u201c${word}\u201d is not among the ${whole(chain.words.length)} words of this page.`);
  const states = chain.statesOfWord(id), places = chain.occurrences(id), shown = states.slice(0, 12);
  const top = Math.max(...states.map((one) => one.count), 1), likely = Math.max(...states.map((one) => one.p), 1e-9);
  app.map.mark({ some: new Map(states.map((one) => [one.state, Math.max(one.count / top, one.p / likely / 4)])) });
  app.map.whole();
  return [
    h("p", { class: "quiet" }, "word"), h("h1", {}, bdi(word)),
    h("p", { class: "lead" }, `${whole(places.length)} times in this text, said by ${whole(states.filter((one) => one.count).length)} ${chain.of}s: each its own use of the word.`),
    h("div", { class: "uses" }, shown.map(({ state, p, count }) => {
      const own = [...places].filter((place) => chain.state[place * chain.perPosition] === state).slice(0, 3), hue = theme.kind(chain.kind[state]);
      return h("article", { class: "use" }, h("h3", {}, chip(app, state), h("span", { class: "quiet" }, ` ${whole(count)} times${p ? `, p(word | ${chain.of}) = ${percent(p)}` : ""}`)),
        h("div", { class: "concordance" }, own.map((place) => { const sentence = chain.sentenceOf[place], from = place - chain.start[sentence]; return concordance(app, sentence, from, from + 1, { reach: 6, colour: hue }); })));
    })),
  ];
}

const PER_PAGE = 50;

function tableView(app, key = "use", number = "1") {
  const { chain } = app, order = { use: [...chain.byShare], entropy: [...chain.byShare].sort((a, b) => chain.entropy[b] - chain.entropy[a]), number: [...chain.byShare].sort((a, b) => a - b) }[key];
  const pages = Math.ceil(chain.numStates / PER_PAGE), current = Number(number);
  if (!order || !(current >= 1 && current <= pages)) return missing("There is no such page of the table.");
  app.map.mark(null);
  const rows = order.slice((current - 1) * PER_PAGE, current * PER_PAGE).map((state) => [
    h("a", { href: stateLink(state) }, state), bdi(chain.topWords(state, 6).join(", ")), percent(chain.share[state]), chain.entropy[state].toFixed(2), bdi(chain.ranked("next", state).slice(0, 3).map((one) => chain.topWords(one.id, 1)[0]).join(", "))]);
  const go = (to, text) => (to >= 1 && to <= pages ? h("a", { class: "button", href: `#/table/${key}/${to}` }, text) : h("span", { class: "button off" }, text));
  return [
    h("h1", {}, `All ${chain.of}s, as a table`),
    h("p", {}, "Order by ", ["use", "entropy", "number"].map((one) => [h("a", { class: "button", href: `#/table/${one}/1`, "aria-current": one === key ? "true" : null }, one), " "])),
    table([chain.of, "words", "use", "entropy (nats)", "leads to"], rows, `${chain.of}s ${(current - 1) * PER_PAGE + 1} to ${Math.min(chain.numStates, current * PER_PAGE)} by ${key}`),
    h("p", { class: "pages" }, go(current - 1, "\u2190 before"), ` page ${whole(current)} of ${whole(pages)} `, go(current + 1, "next \u2192")),
  ];
}

const missing = (text) => [h("p", { class: "missing", role: "alert" }, text)];
