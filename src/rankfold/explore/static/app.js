// The page itself: views by the part of the address after #, search, light and dark, and the server if there is one.

class App {
  constructor(content) {
    this.meta = content.meta;
    this.chain = content.meta.kind === "chain" ? new Chain(content) : null;
    this.trees = content.meta.kind === "grammar" ? new Treebank(content) : null;
    this.frames = content.meta.kind === "frames" ? new Recordings(content) : null;
    this.token = document.body.dataset.token;
    this.answers = Boolean(this.token) && !this.frames;
    Object.assign(this, { pinned: new Set(), last: {}, similar: false, released: null });
    this.live = h("div", { class: "unseen", role: "status", "aria-live": "polite" });
    this.panel = h("main", { class: "panel", id: "panel", tabindex: "-1" });
    if (this.chain) this.map = new StateMap(this.chain, { open: (state) => this.go(stateLink(state)), announce: (text) => this.announce(text) });
    addEventListener("pointerup", () => this.released?.());
    // The frame of a notebook has no address of its own: views change without it.
    this.framed = parent !== window;
    addEventListener("hashchange", () => { this.hash = location.hash; this.route(); });
    this.hash = this.framed ? "" : location.hash;
    if (this.framed) document.addEventListener("click", (event) => {
      const link = event.target.closest("a[href^='#/']");
      if (link) { event.preventDefault(); this.go(link.getAttribute("href")); }
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.route());
  }

  announce(text) { this.live.textContent = text; }
  onRelease(act) { this.released = act; }
  go(hash) {
    if (!this.framed) location.hash = hash;
    else { this.hash = hash; this.route(); }
  }
  replace(hash) {
    this.hash = hash + this.settings();
    if (!this.framed) history.replaceState(null, "", this.hash);
  }
  settings() { return this.map && this.map.colourBy !== "region" ? `?colour=${this.map.colourBy}` : ""; }

  patterns() { return (this.index ??= new PatternIndex(this.chain)); }

  async ask(text) {
    if (this.token === "notebook") return this.askNotebook(text);
    let reply;
    try {
      reply = await fetch("api/sentence", { method: "POST", headers: { "Content-Type": "application/json", "X-Rankfold-Token": this.token }, body: JSON.stringify({ text }) });
    } catch {
      throw new Error("The server does not answer. Start it again: rankfold explore RUN --serve");
    }
    const content = await reply.json().catch(() => ({ error: `the server answered with status ${reply.status}` }));
    if (!reply.ok) throw new Error(content.error);
    return content;
  }

  askNotebook(text) {
    const id = (this.asked = (this.asked ?? 0) + 1);
    return new Promise((resolve, reject) => {
      const late = setTimeout(() => { removeEventListener("message", hear); reject(new Error("The kernel does not answer. Run the cell again.")); }, 120000);
      const hear = (event) => {
        const reply = event.data?.rankfold;
        if (event.source !== parent || reply?.id !== id) return;
        clearTimeout(late);
        removeEventListener("message", hear);
        if (reply.error) reject(new Error(reply.error)); else resolve(reply.found);
      };
      addEventListener("message", hear);
      parent.postMessage({ rankfold: { id, text } }, "*");
    });
  }

  views() {
    if (this.trees) return treeViews;
    if (this.frames) return stripViews;
    return { "": overview, state: stateView, word: wordView, sentences: sentencesView, sentence: sentenceView, typed: typedView, graph: graphView, table: tableView };
  }

  tabs() {
    if (this.trees) return [["", "Overview"], ["sentences", "Trees"], ["symbols", "Symbols"], ...(this.meta.gold ? [["differences", "Against gold"]] : [])];
    if (this.frames) return [["", "Recordings"], ["states", "States"]];
    return [["", "Overview"], ["state", "States"], ["sentences", "Sentences"], ["graph", "Transitions"], ["table", "Table"]];
  }

  async route() {
    const [path, query] = this.hash.replace(/^#\/?/, "").split("?"), [name, ...rest] = path.split("/");
    const wanted = (this.turn = (this.turn ?? 0) + 1), views = this.views();
    if (this.map) this.map.colour(new URLSearchParams(query).get("colour") ?? this.map.colourBy);
    this.released = null;
    let argument = rest;
    if (name === "state" && !rest.length && this.chain) argument = [String(this.last.state ?? this.chain.byShare[0])];
    let content;
    try {
      content = views[name] ? await views[name](this, ...argument.map(decodeURIComponent)) : missing("There is no such view in this page.");
    } catch (error) {
      if (!(error instanceof URIError)) throw error;
      content = missing("This address is damaged.");
    }
    if (wanted !== this.turn) return;
    this.panel.replaceChildren(...[content].flat(Infinity).filter((one) => one));
    this.panel.scrollTop = 0;
    const tab = { word: "state", typed: "sentences", sentence: "sentences", tree: "sentences", symbol: "symbols", recording: "" }[name] ?? name;
    for (const link of this.nav.children) link.toggleAttribute("data-here", link.dataset.tab === tab);
    for (const link of this.nav.children) if (link.dataset.tab === tab) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
    const heading = this.panel.querySelector("h1");
    document.title = `${heading ? `${heading.textContent} \u00b7 ` : ""}${this.meta.title} \u00b7 rankfold`;
    if (this.turn > 1 && heading) this.announce(heading.textContent);
  }

  // Search: words, and numbers of states; arrow keys and Enter choose.
  search() {
    const { chain } = this, list = h("ul", { class: "suggestions", role: "listbox", id: "suggestions", hidden: true });
    const input = h("input", { type: "search", role: "combobox", "aria-expanded": "false", "aria-controls": "suggestions", "aria-autocomplete": "list", "aria-label": `Find a word or a ${chain.of} by its number`, placeholder: "Find a word  /", autocomplete: "off", spellcheck: "false", dir: "auto" });
    let found = [], at = -1;
    const close = () => { list.hidden = true; input.setAttribute("aria-expanded", "false"); at = -1; };
    const take = (one) => { if (one) { close(); input.blur(); this.go(one.href); } };
    const paint = () => [...list.children].forEach((item, i) => item.setAttribute("aria-selected", String(i === at)));
    input.addEventListener("input", () => {
      found = suggest(chain, input.value.trim());
      list.replaceChildren(...found.map((one, i) => h("li", { role: "option", id: `suggestion-${i}`, "aria-selected": "false", onpointerdown: (event) => { event.preventDefault(); take(one); } }, bdi(one.text), h("span", { class: "quiet" }, one.note))));
      list.hidden = !found.length;
      input.setAttribute("aria-expanded", String(found.length > 0));
      at = -1;
    });
    input.addEventListener("keydown", (event) => {
      if (event.key === "ArrowDown" || event.key === "ArrowUp") {
        event.preventDefault();
        at = Math.max(0, Math.min(found.length - 1, at + (event.key === "ArrowDown" ? 1 : -1)));
        input.setAttribute("aria-activedescendant", `suggestion-${at}`);
        paint();
      } else if (event.key === "Enter") {
        event.preventDefault();
        take(found[Math.max(0, at)] ?? (input.value.trim() ? { href: `#/word/${encodeURIComponent(input.value.trim())}` } : null));
      } else if (event.key === "Escape") close();
    });
    input.addEventListener("blur", close);
    addEventListener("keydown", (event) => {
      if (event.key === "/" && !event.target.closest("input, textarea")) { event.preventDefault(); input.focus(); input.select(); }
    });
    return h("div", { class: "search", role: "search" }, input, list);
  }

  themeSwitch() {
    const read = () => { try { return localStorage.getItem("rankfold-theme"); } catch { return null; } };
    const set = (name) => { document.documentElement.dataset.theme = name; try { localStorage.setItem("rankfold-theme", name); } catch { /* a page in a frame may keep nothing */ } };
    if (["light", "dark"].includes(read())) document.documentElement.dataset.theme = read();
    return h("button", { type: "button", class: "theme", "aria-label": "Light or dark", title: "Light or dark", onclick: () => { set(theme.name === "dark" ? "light" : "dark"); if (this.map) { this.map.showLegend(); this.map.draw(); } this.route(); } }, "\u25d0");
  }

  start(root) {
    const { meta } = this;
    this.nav = h("nav", { "aria-label": "Views" }, this.tabs().map(([name, text]) => h("a", { href: `#/${name}`, "data-tab": name }, text)));
    const head = h("header", { class: "top" },
      h("a", { class: "brand", href: "#/" }, h("strong", {}, "rankfold"), h("span", {}, meta.title)),
      this.nav, this.chain && this.search(), this.themeSwitch());
    root.replaceChildren(h("a", { class: "skip", href: "#panel", onclick: (event) => { event.preventDefault(); this.panel.focus(); } }, "To the content"), head,
      h("div", { class: this.map ? "split" : "single" }, this.map?.element, this.panel), this.live);
    if (this.map) this.map.moved = () => this.replace((this.hash || "#/").split("?")[0]);
    this.route();
    if (this.chain) (window.requestIdleCallback ?? setTimeout)(() => this.patterns());
    document.body.dataset.ready = "true";
  }
}

// Words that begin with the text, the most frequent first (words are in that order), and a state of that number.
function suggest(chain, text) {
  if (!text) return [];
  const found = [], lower = text.toLowerCase();
  if (/^\d+$/.test(text) && Number(text) < chain.numStates) found.push({ text: `${chain.of} ${text}`, note: chain.name(Number(text)), href: stateLink(Number(text)) });
  const exact = chain.byWord.get(text);
  const add = (word) => found.push({ text: word, note: `${whole(chain.occurrences(chain.byWord.get(word)).length)}\u00d7`, href: `#/word/${encodeURIComponent(word)}` });
  if (exact !== undefined) add(text);
  for (let i = 0; i < chain.words.length && found.length < 9; i++) {
    const word = chain.words[i];
    if (word !== text && word.toLowerCase().startsWith(lower)) add(word);
  }
  return found;
}

async function main() {
  const root = document.getElementById("app");
  try {
    if (typeof DecompressionStream === "undefined") throw new Error("this browser cannot unpack deflated data; one from 2023 or later can");
    const element = document.getElementById("data"), content = await unpack(element.textContent);
    element.remove();
    window.rankfold = new App(content);
    window.rankfold.start(root);
  } catch (error) {
    root.replaceChildren(h("p", { class: "missing", role: "alert" }, `The data of this page cannot be shown: ${error.message}. Write the page again: rankfold explore RUN -o page.html`));
    document.body.dataset.ready = "failed";
    console.warn(error);
  }
}

main();
