// Views of a grammar: trees with the posteriors of their brackets, what symbols yield, and gold trees next to them.

class Treebank {
  constructor({ meta, arrays, words }) {
    Object.assign(this, arrays, { meta, words, num: meta.sentences });
  }

  sentence(n) {
    const [from, to] = [this.start[n], this.start[n + 1]], [a, b] = [this.span_start[n], this.span_start[n + 1]];
    const one = { n, words: [], tags: [], spans: [], gold: null };
    for (let i = from; i < to; i++) { one.words.push(this.words[this.token[i]]); one.tags.push(this.tag[i]); }
    for (let i = a; i < b; i++) one.spans.push({ i: this.span[2 * i], j: this.span[2 * i + 1], label: this.label[i], p: this.p[i] / 255, labelP: this.label_p[i] / 255 });
    if (this.gold) {
      one.gold = [];
      for (let i = this.gold_start[n]; i < this.gold_start[n + 1]; i++) one.gold.push({ i: this.gold[3 * i], j: this.gold[3 * i + 1], label: this.meta.labels[this.gold[3 * i + 2]] });
      compare(one);
    }
    return one;
  }

  // What every symbol covers in the trees of this page: {name: {count, total, yields: Map(text -> count), places}}.
  symbols() {
    if (this.table) return this.table;
    const table = new Map();
    const add = (name, text, n, i, j) => {
      if (!table.has(name)) table.set(name, { name, count: 0, words: 0, yields: new Map(), places: [] });
      const one = table.get(name);
      one.count++;
      one.words += j - i;
      one.yields.set(text, (one.yields.get(text) ?? 0) + 1);
      if (one.places.length < 200) one.places.push({ n, i, j });
    };
    for (let n = 0; n < this.num; n++) {
      const { words, tags, spans } = this.sentence(n);
      for (const { i, j, label } of spans) add(`NT-${label}`, words.slice(i, j).join(" "), n, i, j);
      tags.forEach((tag, i) => { if (spans.length) add(`T-${tag}`, words[i], n, i, i + 1); });
    }
    return (this.table = table);
  }
}

// Brackets of two words and more, the whole sentence left out, against the gold ones.
function compare(one) {
  const key = ({ i, j }) => `${i}-${j}`, inner = ({ i, j }) => j - i < one.words.length;
  const found = new Set(one.spans.filter(inner).map(key)), gold = new Set(one.gold.filter(inner).map(key));
  for (const span of one.spans) span.wrong = inner(span) && !gold.has(key(span));
  for (const span of one.gold) span.missed = inner(span) && !found.has(key(span));
  const both = [...found].filter((x) => gold.has(x)).length;
  one.f1 = gold.size ? (found.size + gold.size ? (2 * both) / (found.size + gold.size) : 1) : 1;
}

const symbolHue = (name) => theme.kind([...name].reduce((sum, c) => (sum * 31 + c.codePointAt(0)) % 997, 7));

/* A tree over its words: a constituent stands over the middle of its words, as high as it is deep; the line to it is as
   strong as its bracket is probable. Gold constituents hang below. */
function drawTree(one) {
  const wide = one.words.map((word) => Math.max(46, 9 * [...word].length + 18)), at = [0];
  wide.forEach((w) => at.push(at[at.length - 1] + w));
  const width = Math.max(300, at[at.length - 1] + 20), step = 44, mid = (i, j) => 10 + (at[i] + at[j]) / 2;
  const up = place(one.spans, one.words.length), top = 16 + step * Math.max(1, ...up.map((node) => node.level)), parts = [];
  const down = one.gold ? place(one.gold, one.words.length) : [], base = top + 44;
  const height = base + 26 + (down.length ? 30 + step * 0.7 * Math.max(...down.map((node) => node.level)) : 0);
  const y = (level) => top - level * step + 14;
  const yDown = (level) => base + 30 + level * step * 0.7;
  const leaf = (i, upwards) => ({ x: mid(i, i + 1), y: upwards ? top + 12 : base + 10 });
  for (const node of up) for (const child of node.children) {
    const to = child.level ? { x: mid(child.i, child.j), y: y(child.level) } : leaf(child.i, true), p = child.p ?? 1;
    parts.push(s("line", { x1: mid(node.i, node.j), y1: y(node.level), x2: to.x, y2: to.y, class: "branch", "stroke-width": 1 + 2.2 * p, opacity: 0.25 + 0.7 * p }));
  }
  for (const node of down) for (const child of node.children) {
    const to = child.level ? { x: mid(child.i, child.j), y: yDown(child.level) } : leaf(child.i, false);
    parts.push(s("line", { x1: mid(node.i, node.j), y1: yDown(node.level), x2: to.x, y2: to.y, class: "branch gold" }));
  }
  const pill = (node, py, text, name, title) => {
    const w = 7.4 * text.length + 14;
    return s("a", { href: name ? `#/symbol/${name}` : null, class: `pill${node.wrong ? " wrong" : ""}${node.missed ? " missed" : ""}${name ? "" : " plain"}` }, s("title", {}, title),
      s("rect", { x: mid(node.i, node.j) - w / 2, y: py - 10, width: w, height: 20, rx: 10, fill: name ? symbolHue(name) : "var(--raised)" }), s("text", { x: mid(node.i, node.j), y: py + 4, "text-anchor": "middle" }, text));
  };
  for (const node of up) parts.push(pill(node, y(node.level), `${node.label} \u00b7 ${Math.round(100 * node.p)}%`, `NT-${node.label}`, `NT-${node.label} over \u201c${one.words.slice(node.i, node.j).join(" ")}\u201d: bracket ${percent(node.p)}, with this label ${percent(node.labelP)}${node.wrong ? "; not in the gold tree" : ""}`));
  for (const node of down) parts.push(pill(node, yDown(node.level), node.label, null, `gold ${node.label}${node.missed ? ", which the grammar's tree lacks" : ""}`));
  one.words.forEach((word, i) => parts.push(s("text", { x: mid(i, i + 1), y: base, "text-anchor": "middle", class: "tree-word" }, word), s("text", { x: mid(i, i + 1), y: base - 18, "text-anchor": "middle", class: "tree-tag" }, `T-${one.tags[i]}`)));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Tree" }, s("svg", { class: "tree", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Tree: ${bracketText(one)}` }, parts));
}

// Children and height of every bracket; words are children without a level.
function place(spans, length) {
  const nodes = [...spans].sort((a, b) => a.j - a.i - (b.j - b.i)).map((span) => ({ ...span, children: [], level: 1 }));
  nodes.forEach((node, k) => {
    const inside = nodes.slice(0, k).filter((other) => !other.parent && other.i >= node.i && other.j <= node.j);
    let i = node.i;
    for (const child of inside.sort((a, b) => a.i - b.i)) {
      for (; i < child.i; i++) node.children.push({ i, level: 0 });
      child.parent = node;
      node.children.push(child);
      i = child.j;
    }
    for (; i < node.j; i++) node.children.push({ i, level: 0 });
    node.level = 1 + Math.max(0, ...node.children.map((child) => child.level));
  });
  return nodes;
}

function bracketText(one) {
  const opens = one.words.map(() => ""), closes = one.words.map(() => "");
  for (const { i, j, label } of [...one.spans].sort((a, b) => b.j - b.i - (a.j - a.i))) { opens[i] += `(NT-${label} `; closes[j - 1] += ")"; }
  return one.words.map((word, i) => `${opens[i]}${word}${closes[i]}`).join(" ");
}

const treeLink = (trees, n, note) => h("a", { class: "sentence-link", href: `#/tree/${n}` }, trees.sentence(n).words.flatMap((word) => [bdi(word), " "]), note && h("span", { class: "quiet" }, note));

function pickTrees(trees, num) {
  const found = [], step = Math.max(1, Math.floor(trees.num / (num * 4)));
  for (let n = 0; n < trees.num && found.length < num; n += step) { const length = trees.start[n + 1] - trees.start[n]; if (length >= 5 && length <= 16) found.push(n); }
  return found.length ? found : [0];
}

function treeBody(one) {
  const facts = [fact(String(one.words.length), "words")];
  if (one.spans.length) facts.push(fact(percent(one.spans.reduce((sum, span) => sum + span.p, 0) / one.spans.length), "mean bracket posterior"));
  if (one.gold) facts.push(fact(percent(one.f1), "F1 against gold"), fact(String(one.spans.filter((span) => span.wrong).length), "brackets not in gold"), fact(String(one.gold.filter((span) => span.missed).length), "gold brackets missed"));
  return [h("div", { class: "facts" }, facts), one.spans.length ? drawTree(one) : h("p", { class: "missing" }, "The sentence is impossible under the grammar: it has no tree."),
    h("p", { class: "quiet" }, "Pills name the symbol and the posterior of its bracket; strong lines are sure ones.", one.gold ? " The gold tree hangs below; outlined pills differ." : ""),
    h("details", {}, h("summary", {}, "As text"), h("p", { dir: "auto" }, h("code", {}, bracketText(one))),
      table(["words", "symbol", "bracket", "with label"], one.spans.map((span) => [bdi(one.words.slice(span.i, span.j).join(" ")), h("a", { href: `#/symbol/NT-${span.label}` }, `NT-${span.label}`), percent(span.p), percent(span.labelP)]), "Brackets"))];
}

const treeViews = {
  ""({ trees, meta }) {
    const used = [...trees.symbols().values()];
    return [h("h1", {}, "A grammar that nobody wrote"), h("p", { class: "lead" }, `It was induced from sentences alone. Each of the ${whole(trees.num)} sentences here has the tree whose brackets are most probable in sum.`),
      h("div", { class: "facts" }, fact(whole(meta.nonterminals), "nonterminals"), fact(whole(used.filter((one) => one.name.startsWith("NT")).length), "of them in these trees"), fact(whole(meta.preterminals), "preterminals"), fact(whole(meta.vocabulary), "words")),
      drawTree(trees.sentence(pickTrees(trees, 1)[0])), section("More trees", h("ul", { class: "plain" }, pickTrees(trees, 8).map((n) => h("li", {}, treeLink(trees, n)))))];
  },
  sentences(app) {
    const { trees } = app;
    return [h("h1", {}, "Trees"), treeTyping(app, ""), h("ul", { class: "plain" }, pickTrees(trees, 60).map((n) => h("li", {}, treeLink(trees, n))))];
  },
  async typed(app, text) {
    const { trees } = app, head = [h("h1", {}, "Trees"), treeTyping(app, text)];
    if (app.answers) {
      try {
        const got = await app.ask(text);
        return [...head, ...treeBody({ words: got.words, tags: got.tags, gold: null, spans: got.spans.map(([i, j], k) => ({ i, j, label: got.labels[k], p: got.p[k], labelP: got.label_p[k] })) })];
      } catch (error) { return [...head, h("p", { class: "missing", role: "alert" }, error.message)]; }
    }
    const found = [], wanted = ` ${text.trim().split(/\s+/).join(" ")} `;
    for (let n = 0; n < trees.num && found.length < 60; n++) if (` ${trees.sentence(n).words.join(" ")} `.includes(wanted)) found.push(n);
    return [...head, found.length ? h("ul", { class: "plain" }, found.map((n) => h("li", {}, treeLink(trees, n)))) : h("p", { class: "missing", role: "alert" }, "No sentence of this page holds these words in this order."),
      h("p", { class: "quiet" }, "Other sentences are answered by the grammar itself: ", h("code", {}, "rankfold explore RUN --serve"))];
  },
  tree({ trees }, argument) {
    const n = Number(argument);
    if (!Number.isInteger(n) || n < 0 || n >= trees.num) return missing(`There is no sentence ${argument}: this page has 0 to ${trees.num - 1}.`);
    const step = (to, text) => (to >= 0 && to < trees.num ? h("a", { class: "button", href: `#/tree/${to}` }, text) : "");
    const one = trees.sentence(n);
    return [h("p", { class: "quiet sentence-nav" }, `sentence ${whole(n)} of ${whole(trees.num)} `, step(n - 1, "\u2190"), " ", step(n + 1, "\u2192")), h("h1", { class: "sentence-title", dir: "auto" }, one.words.join(" ")), ...treeBody(one)];
  },
  symbols({ trees }) {
    const all = [...trees.symbols().values()].sort((a, b) => b.count - a.count);
    const part = (prefix) => table(["symbol", "count", "words each", "most often over"], all.filter((one) => one.name.startsWith(prefix)).map((one) => [h("a", { class: "chip", href: `#/symbol/${one.name}`, style: { "--hue": symbolHue(one.name) } }, h("i", {}), one.name), whole(one.count), (one.words / one.count).toFixed(1),
      bdi([...one.yields].sort((a, b) => b[1] - a[1]).slice(0, 5).map(([text]) => text).join(" \u00b7 "))]), prefix === "NT" ? "Nonterminals" : "Preterminals");
    return [h("h1", {}, "Symbols and what they yield"), section("Nonterminals, over two words and more", part("NT")), section("Preterminals, over one word", part("T"))];
  },
  symbol({ trees }, name) {
    const one = trees.symbols().get(name);
    if (!one) return missing(`${name} stands nowhere in the trees of this page.`);
    const top = [...one.yields].sort((a, b) => b[1] - a[1]).slice(0, 24), hue = symbolHue(name);
    return [h("header", { class: "state-head", style: { "--hue": hue } }, h("h1", {}, name), h("div", { class: "facts" }, fact(whole(one.count), "times in these trees"), fact((one.words / one.count).toFixed(1), "words each"), fact(whole(one.yields.size), "different yields"))),
      section("What it yields", bars(top.map(([text, count]) => ({ label: bdi(text), p: count / one.count, colour: hue })), { label: "Yields" })),
      section("In sentences", h("ul", { class: "plain" }, one.places.slice(0, 30).map(({ n, i, j }) => { const words = trees.sentence(n).words; return h("li", {}, h("a", { class: "sentence-link", href: `#/tree/${n}`, style: { "--hue": hue } }, bdi(words.slice(0, i).join(" ")), " ", h("mark", {}, bdi(words.slice(i, j).join(" "))), " ", bdi(words.slice(j).join(" ")))); })))];
  },
  differences({ trees }) {
    const rows = Array.from({ length: trees.num }, (_, n) => trees.sentence(n)), labels = new Map();
    for (const one of rows) for (const span of one.gold) if (span.j - span.i < one.words.length) {
      const own = labels.get(span.label) ?? { all: 0, found: 0 };
      own.all++;
      own.found += !span.missed;
      labels.set(span.label, own);
    }
    const mean = rows.reduce((sum, one) => sum + one.f1, 0) / rows.length, worst = [...rows].filter((one) => one.words.length <= 30).sort((a, b) => a.f1 - b.f1 || a.n - b.n);
    return [h("h1", {}, "Against the gold trees"), h("div", { class: "facts" }, fact(percent(mean), "mean F1 of sentences"), fact(whole(rows.filter((one) => one.f1 === 1).length), "sentences fully right"), fact(whole(rows.length), "sentences")),
      h("p", { class: "quiet" }, "Brackets of two words and more; that of the whole sentence is left out on both sides."),
      section("Gold constituents found, by label", bars([...labels].sort((a, b) => b[1].all - a[1].all).slice(0, 14).map(([label, { all, found }]) => ({ label, p: found / all, value: `${percent(found / all)} of ${whole(all)}` })), { scale: 1, label: "Recall by label" })),
      section("Where they differ most", h("ul", { class: "plain" }, worst.slice(0, 40).map((one) => h("li", {}, treeLink(trees, one.n, ` F1 ${percent(one.f1)}`)))))];
  },
};

function treeTyping(app, text) {
  const input = h("input", { type: "text", value: text, dir: "auto", maxlength: "2000", "aria-label": "A sentence", id: "typed", placeholder: app.answers ? "Type any sentence" : "Type words of a sentence" });
  return h("form", { class: "typing", onsubmit: (event) => { event.preventDefault(); if (input.value.trim()) app.go(`#/typed/${encodeURIComponent(input.value.trim())}`); } }, input, h("button", { type: "submit" }, app.answers ? "Ask the grammar" : "Find"));
}
