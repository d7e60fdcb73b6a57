// Views of sentences: the posterior of every position, the best path on the map, and patterns that recur.

function sentencesView(app) {
  const { chain } = app;
  app.map.mark(null);
  return [h("h1", {}, "Sentences"), typing(app, ""), section("Some to start with", h("ul", { class: "plain" }, pickSentences(chain, 12).map((number) => h("li", {}, sentenceLine(app, number)))))];
}

// The line to type into: sentences of the page are found in it, others are answered by the model where it is served.
function typing(app, text) {
  const { chain } = app;
  const input = h("input", { type: "text", value: text, dir: "auto", maxlength: "2000", "aria-label": "A sentence", placeholder: app.answers ? "Type any sentence" : "Type words of a sentence", id: "typed" });
  const form = h("form", { class: "typing", onsubmit: (event) => { event.preventDefault(); if (input.value.trim()) app.go(`#/typed/${encodeURIComponent(input.value.trim())}`); } },
    input, h("button", { type: "submit" }, app.answers ? "Ask the model" : "Find"));
  return [form, h("p", { class: "quiet" }, app.answers ? "The model itself answers." : `This page knows its ${whole(chain.numSentences)} sentences.`)];
}

async function typedView(app, text) {
  const { chain } = app, words = text.split(/\s+/).filter(Boolean), head = [h("h1", {}, "Sentences"), typing(app, text)];
  if (app.answers) {
    try {
      const answer = await app.ask(text);
      const one = { number: null, words: answer.words, known: answer.known, states: answer.states.map((row, t) => row.map((id, i) => ({ id, p: answer.p[t][i] })).filter((x) => x.id >= 0 && x.p > 0)) };
      const unknown = answer.words.filter((_, t) => !answer.known[t]);
      return [...head, h("p", {}, `Log-probability ${answer.nats.toFixed(2)} nats with <eos>, perplexity ${answer.perplexity.toFixed(1)}.`,
        unknown.length ? [" Not in the vocabulary, read as <unk>: ", bdi(unknown.join(", ")), "."] : ""), ...sentenceBody(app, one, null)];
    } catch (error) {
      return [...head, h("p", { class: "missing", role: "alert" }, error.message)];
    }
  }
  const found = chain.phrase(words);
  app.map.mark(null);
  if (found.length === 1 && found[0].to - found[0].from === chain.start[found[0].sentence + 1] - chain.start[found[0].sentence] - 1) return sentenceView(app, String(found[0].sentence));
  const serve = h("p", { class: "quiet" }, "Other sentences are answered by the model itself: ", h("code", {}, "rankfold explore RUN --serve"));
  if (!found.length) {
    const strange = words.filter((word) => !chain.byWord.has(word));
    return [...head, h("p", { class: "missing", role: "alert" }, strange.length ? ["Not among the words of this page: ", bdi(strange.join(", ")), "."] : `None of the ${whole(chain.numSentences)} sentences of this page holds these words in this order.`), serve];
  }
  return [...head, h("p", {}, found.length >= 200 ? "The first 200 sentences that hold these words:" : `${whole(found.length)} ${found.length === 1 ? "sentence holds" : "sentences hold"} these words:`),
    h("div", { class: "concordance" }, found.slice(0, 60).map((one) => concordance(app, one.sentence, one.from, one.to))), serve];
}

function sentenceView(app, argument, range) {
  const { chain } = app, number = Number(argument);
  if (!Number.isInteger(number) || number < 0 || number >= chain.numSentences) return missing(`There is no sentence ${argument}: this page has 0 to ${chain.numSentences - 1}.`);
  app.last.sentence = number;
  const one = chain.sentence(number), span = /^(\d+)-(\d+)$/.exec(range ?? "");
  const chosen = span && Number(span[1]) < Number(span[2]) && Number(span[2]) <= one.words.length ? [Number(span[1]), Number(span[2])] : null;
  const step = (to, text, name) => (to >= 0 && to < chain.numSentences ? h("a", { class: "button", href: `#/sentence/${to}`, "aria-label": name }, text) : "");
  return [h("p", { class: "quiet sentence-nav" }, `sentence ${whole(number)} of ${whole(chain.numSentences)} `, step(number - 1, "\u2190", "Sentence before"), " ", step(number + 1, "\u2192", "Next sentence"), " ",
    h("button", { type: "button", onclick: () => app.go(`#/sentence/${Math.floor(Math.random() * chain.numSentences)}`) }, "another")), ...sentenceBody(app, one, chosen)];
}

function sentenceBody(app, one, chosen) {
  const { chain } = app, results = h("div", { class: "results", "aria-live": "polite" });
  const hint = h("p", { class: "quiet" }, "Drag over words (or Shift and arrow keys) to find the same hidden pattern elsewhere.");
  const cells = one.words.map((word, t) => cell(app, one, t));
  const ribbon = h("div", { class: "ribbon", role: "listbox", "aria-multiselectable": "true", "aria-label": "Words of the sentence; select a span", dir: "auto" }, cells);
  let range = null, anchor = null;

  const paint = () => {
    cells.forEach((element, t) => element.setAttribute("aria-selected", String(range !== null && t >= range[0] && t < range[1])));
    app.map.mark({ path: one.states.map((states, t) => ({ id: states[0]?.id ?? 0, word: one.words[t] === chain.words[chain.meta.eos] ? "\u23ce" : one.words[t], strong: range !== null && t >= range[0] && t < range[1] })) });
  };
  const choose = (a, b) => { range = [Math.min(a, b), Math.max(a, b) + 1]; paint(); };
  const search = () => {
    if (range === null) return;
    if (one.number !== null) app.replace(`#/sentence/${one.number}/${range[0]}-${range[1]}`);
    results.replaceChildren(...matches(app, one, range));
  };
  cells.forEach((element, t) => {
    element.addEventListener("pointerdown", (event) => { if (event.target.closest("a")) return; event.preventDefault(); anchor = event.shiftKey && range ? range[0] : t; choose(anchor, t); element.focus(); });
    element.addEventListener("pointerenter", () => { if (anchor !== null) choose(anchor, t); });
    element.addEventListener("keydown", (event) => {
      const to = { ArrowRight: t + 1, ArrowLeft: t - 1, Home: 0, End: cells.length - 1 }[event.key];
      if (to !== undefined && cells[to]) {
        event.preventDefault();
        cells[to].focus();
        if (event.shiftKey) { keyAnchor ??= t; choose(keyAnchor, to); search(); } else keyAnchor = null;
      } else if (event.key === "Enter" || event.key === " ") { event.preventDefault(); keyAnchor = t; choose(t, t); search(); }
    });
  });
  let keyAnchor = null;
  app.onRelease(() => { if (anchor !== null) { anchor = null; search(); } });
  cells[0].tabIndex = 0;
  if (chosen) { range = chosen; results.replaceChildren(...matches(app, one, range)); }
  paint();
  app.map.show(one.states.filter((states) => states.length).map((states) => states[0].id), 3);
  return [ribbon, hint, results, h("details", { class: "readings" }, h("summary", {}, "What the runner-up says, word by word"), readings(app, one))];
}

// A word over its posterior: a bar for each state, as high as its probability, the rest left open.
function cell(app, one, t) {
  const { chain } = app, states = one.states[t], end = one.words[t] === chain.words[chain.meta.eos];
  const said = states.map(({ id, p }) => `${percent(p)} ${chain.of} ${id} (${chain.topWords(id, 3).join(", ")})`).join("; ");
  return h("div", { class: "cell", role: "option", tabindex: "-1", "aria-selected": "false", "aria-label": `${one.words[t]}: ${said}` },
    h("span", { class: one.known[t] ? "word" : "word unknown", title: one.known[t] ? null : "not in the vocabulary: read as <unk>" }, bdi(end ? "\u23ce" : one.words[t])),
    h("span", { class: "stack", "aria-hidden": "true" }, states.map(({ id, p }) => h("a", {
      href: stateLink(id), tabindex: "-1", class: "slice", title: `${chain.of} ${id}, ${percent(p)}: ${chain.topWords(id, 6).join(", ")}`,
      style: { height: `${100 * p}%`, background: theme.kind(chain.kind[id]) }, onpointerenter: () => app.map.hover(id), onpointerleave: () => app.map.hover(null) },
    p > 0.3 ? h("span", {}, bdi(chain.topWords(id, 1)[0] ?? "")) : null))));
}

function readings(app, one) {
  const { chain } = app;
  return table(["word", `best ${chain.of}`, "runner-up", "third"], one.words.map((word, t) => [bdi(word), ...[0, 1, 2].map((k) => (one.states[t][k] ? chip(app, one.states[t][k].id, one.states[t][k].p) : ""))]), "States of every word with their probabilities");
}

function matches(app, one, [from, to]) {
  const { chain } = app, span = one.states.slice(from, to), words = one.words.slice(from, to);
  const similar = app.similar, found = app.patterns().search(span, { similar, words, limit: 400 });
  app.lastSearch = found;
  const seen = new Map();
  for (const { from: at, overlap } of found.matches) {
    const own = words.map((_, t) => chain.word(at + t)).join(" ");
    if (seen.has(own)) seen.get(own).count++;
    else seen.set(own, { at, overlap, count: 1 });
  }
  const shown = [...seen.values()].slice(0, 40);
  const again = () => { const here = document.querySelector(".results"); here.replaceChildren(...matches(app, one, [from, to])); };
  return [
    h("h2", {}, "The same pattern elsewhere"),
    h("p", { class: "quiet" }, h("strong", {}, bdi(words.map((word) => (word === chain.words[chain.meta.eos] ? "\u23ce" : word)).join(" "))), ` \u2192 ${whole(found.total)} other places with other words, found in ${found.milliseconds.toFixed(1)} ms among ${whole(chain.numSentences)} sentences `,
      h("label", {}, h("input", { type: "checkbox", checked: similar || null, onchange: (event) => { app.similar = event.currentTarget.checked; again(); } }), ` also near ${chain.of}s`)),
    shown.length ? h("div", { class: "concordance matches" }, shown.map(({ at, overlap, count }) => {
      const sentence = chain.sentenceOf[at], place = at - chain.start[sentence];
      return concordance(app, sentence, place, place + words.length, { reach: 6, note: `${percent(overlap)}${count > 1 ? ` \u00d7${count}` : ""}` });
    })) : h("p", {}, `No other words of this text take these ${chain.of}s. Try a shorter span, or near ${chain.of}s.`),
  ];
}
