// The map of states: a canvas with zoom and pan, labels where there is room, and marks that views put on it.

class StateMap {
  constructor(chain, { open, announce }) {
    Object.assign(this, { chain, open, announce, colourBy: "region", marks: {}, transform: d3.zoomIdentity });
    this.canvas = h("canvas", {
      tabindex: "0", role: "application", "aria-roledescription": "map",
      "aria-label": `Map of ${whole(chain.numStates)} ${chain.of}s. Arrow keys go from ${chain.of} to ${chain.of}, plus and minus zoom, Enter opens. The table view holds the same.`,
    });
    this.tip = h("div", { class: "tip", hidden: true });
    this.legend = h("div", { class: "legend" });
    this.element = h("div", { class: "map" }, this.canvas, this.tip, this.controls(), this.legend,
      h("p", { class: "trust", title: "How far the neighbours on this map are neighbours in what states emit and where they lead; 1 is perfect." },
        `trustworthiness ${chain.meta.trust.toFixed(3)} (k = ${chain.meta.near}, ${chain.meta.checked < chain.numStates ? `${whole(chain.meta.checked)} random` : `all ${whole(chain.numStates)}`} ${chain.of}s)`));
    this.tree = d3.quadtree(Uint32Array.from(chain.x.keys()), (i) => chain.x[i] / 65535, (i) => chain.y[i] / 65535);
    const top = chain.share[chain.byShare[0]];
    this.radius = Float32Array.from(chain.share, (share) => 0.7 + 6.5 * Math.sqrt(share / top));
    const low = Math.log(1 / chain.token.length / 4), high = Math.log(top);
    const spread = extent(chain.entropy);
    this.values = {
      use: Float32Array.from(chain.share, (x) => (x > 0 ? Math.max(0, (Math.log(x) - low) / (high - low)) : 0)),
      entropy: Float32Array.from(chain.entropy, (x) => (x - spread[0]) / (spread[1] - spread[0] || 1)),
    };
    this.zoom = d3.zoom().scaleExtent([0.7, 60]).on("zoom", ({ transform }) => { this.transform = transform; this.draw(); })
      .on("end", () => this.moved?.());
    d3.select(this.canvas).call(this.zoom).on("dblclick.zoom", null);
    this.canvas.addEventListener("pointermove", (event) => this.hover(this.find(event)));
    this.canvas.addEventListener("pointerleave", () => this.hover(null));
    this.canvas.addEventListener("click", (event) => { const found = this.find(event); if (found !== null) this.open(found); });
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.resize()).observe(this.element);
    this.showLegend();
  }

  controls() {
    const button = (value, text) => h("button", {
      type: "button", "data-colour": value, "aria-pressed": String(value === this.colourBy), onclick: () => this.colour(value, true),
    }, text);
    return h("div", { class: "map-controls", role: "toolbar", "aria-label": "Map" },
      h("span", { class: "quiet" }, "colour"), button("region", "region"), button("use", "use"), button("entropy", "entropy"),
      h("button", { type: "button", "aria-label": "Zoom in", onclick: () => this.by(1.6) }, "+"),
      h("button", { type: "button", "aria-label": "Zoom out", onclick: () => this.by(1 / 1.6) }, "\u2212"),
      h("button", { type: "button", "aria-label": "Whole map", onclick: () => this.whole() }, "\u25a1"));
  }

  colour(value, told = false) {
    if (!["region", "use", "entropy"].includes(value)) return;
    this.colourBy = value;
    for (const one of this.element.querySelectorAll("[data-colour]")) one.setAttribute("aria-pressed", String(one.dataset.colour === value));
    this.showLegend();
    this.draw();
    if (told) this.moved?.();
  }

  showLegend() {
    const ends = { use: ["rare", "frequent"], entropy: ["one word", "many words"] }[this.colourBy];
    if (!ends) this.legend.replaceChildren(h("span", {}, "hue: region of the map \u00b7 size: use"));
    else {
      const stops = d3.quantize(theme.ramp, 8).join(", ");
      this.legend.replaceChildren(h("span", {}, ends[0]), h("span", { class: "ramp", style: { background: `linear-gradient(90deg, ${stops})` } }), h("span", {}, ends[1]));
    }
  }

  resize() {
    const box = this.element.getBoundingClientRect();
    if (!box.width || !box.height) return;
    this.pixels = Math.min(devicePixelRatio || 1, 2);
    const changed = this.width !== box.width || this.height !== box.height;
    [this.width, this.height] = [box.width, box.height];
    this.canvas.width = box.width * this.pixels;
    this.canvas.height = box.height * this.pixels;
    this.side = Math.min(box.width, box.height) * 0.94;
    this.left = (box.width - this.side) / 2;
    this.top = (box.height - this.side) / 2;
    this.zoom.extent([[0, 0], [box.width, box.height]]).translateExtent([[-box.width * 0.4, -box.height * 0.4], [box.width * 1.4, box.height * 1.4]]);
    if (changed) this.draw();
  }

  sx(i) { return this.transform.applyX(this.left + (this.chain.x[i] / 65535) * this.side); }
  sy(i) { return this.transform.applyY(this.top + (this.chain.y[i] / 65535) * this.side); }

  find(event) {
    const box = this.canvas.getBoundingClientRect();
    const at = (this.transform.invertX(event.clientX - box.left) - this.left) / this.side;
    const up = (this.transform.invertY(event.clientY - box.top) - this.top) / this.side;
    return this.tree.find(at, up, 14 / (this.side * this.transform.k)) ?? null;
  }

  by(factor) { d3.select(this.canvas).transition().duration(motion(250)).call(this.zoom.scaleBy, factor); }
  whole() { d3.select(this.canvas).transition().duration(motion(450)).call(this.zoom.transform, d3.zoomIdentity); }

  // Bring states into view.
  show(states, most = 9) {
    if (!this.width || !states.length) return;
    const xs = states.map((i) => this.left + (this.chain.x[i] / 65535) * this.side), ys = states.map((i) => this.top + (this.chain.y[i] / 65535) * this.side);
    const [x0, x1] = extent(xs), [y0, y1] = extent(ys);
    const k = Math.max(1, Math.min(most, 0.6 * Math.min(this.width / (x1 - x0 + 1), this.height / (y1 - y0 + 1))));
    const to = d3.zoomIdentity.translate(this.width / 2, this.height / 2).scale(k).translate(-(x0 + x1) / 2, -(y0 + y1) / 2);
    d3.select(this.canvas).transition().duration(motion(650)).call(this.zoom.transform, to);
  }

  // Marks: {selected, next: [{id, p}], some: Map(state -> weight), path: [{id, word}]}; without any, all states alike.
  mark(marks) { this.marks = marks ?? {}; this.draw(); }

  hover(state) {
    if (state === this.hovered) return;
    this.hovered = state;
    this.canvas.style.cursor = state === null ? "grab" : "pointer";
    if (state === null) this.tip.hidden = true;
    else {
      const { chain } = this, x = this.sx(state), y = this.sy(state);
      this.tip.replaceChildren(h("strong", {}, `${chain.of} ${state}`), h("span", { class: "quiet" }, ` ${percent(chain.share[state])} of tokens`),
        h("ul", {}, chain.ranked("word", state).slice(0, 5).map((one) => h("li", {}, bdi(chain.words[one.id]), h("span", { class: "quiet" }, ` ${percent(one.p)}`)))));
      this.tip.hidden = false;
      this.tip.style.left = `${Math.max(8, Math.min(x + 14, this.width - 190))}px`;
      this.tip.style.top = `${Math.max(8, Math.min(y + 14, this.height - 150))}px`;
    }
    this.draw();
  }

  key(event) {
    const from = this.marks.selected ?? this.hovered ?? this.chain.byShare[0];
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (step) {
      event.preventDefault();
      const start = this.hovered ?? from, to = this.towards(start, step);
      this.hover(to);
      this.announce(`${this.chain.of} ${to}: ${this.chain.topWords(to, 5).join(", ")}`);
    } else if (event.key === "+" || event.key === "=") this.by(1.6);
    else if (event.key === "-") this.by(1 / 1.6);
    else if (event.key === "0") this.whole();
    else if (event.key === "Enter" && this.hovered !== null && this.hovered !== undefined) this.open(this.hovered);
  }

  // The nearest state in a direction, within 45 degrees of it.
  towards(from, [dx, dy]) {
    const { x, y } = this.chain;
    let best = from, least = Infinity;
    for (let i = 0; i < x.length; i++) {
      const ax = x[i] - x[from], ay = y[i] - y[from], along = ax * dx + ay * dy, across = Math.abs(ax * dy) + Math.abs(ay * dx);
      if (along > 0 && across <= along && along + 2 * across < least) { least = along + 2 * across; best = i; }
    }
    return best;
  }

  colourOf(i) {
    return this.colourBy === "region" ? theme.kind(this.chain.kind[i]) : this.buckets[Math.min(31, Math.floor(this.values[this.colourBy][i] * 32))];
  }

  draw() {
    if (this.queued || !this.width) return;
    this.queued = true;
    requestAnimationFrame(() => { this.queued = false; this.paint(); });
  }

  paint() {
    const { chain, marks } = this, context = this.canvas.getContext("2d"), k = this.transform.k;
    this.buckets = d3.quantize((t) => theme.ramp(t), 32);
    this.ink = theme.css("--ink");
    this.ground = theme.css("--map");
    context.setTransform(this.pixels, 0, 0, this.pixels, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    const some = marks.some, grow = Math.pow(k, 0.55), groups = new Map();
    for (let j = chain.numStates - 1; j >= 0; j--) {
      const i = chain.byShare[j];
      if (some && some.has(i)) continue;
      const x = this.sx(i), y = this.sy(i);
      if (x < -20 || y < -20 || x > this.width + 20 || y > this.height + 20) continue;
      const colour = this.colourOf(i);
      if (!groups.has(colour)) groups.set(colour, new Path2D());
      const r = Math.max(0.8, this.radius[i] * grow * 0.75), path = groups.get(colour);
      path.moveTo(x + r, y);
      path.arc(x, y, r, 0, 7);
    }
    context.globalAlpha = some || marks.path ? 0.16 : 0.78;
    for (const [colour, path] of groups) { context.fillStyle = colour; context.fill(path); }
    context.globalAlpha = 1;
    if (some) this.paintSome(context, some);
    if (marks.next) this.paintNext(context);
    if (marks.path) this.paintPath(context);
    for (const i of [marks.selected, this.hovered]) if (i !== undefined && i !== null) this.ring(context, i, grow);
    if (!marks.path) this.paintLabels(context, some);
  }

  someRadius(weight) { return Math.max(2, (2 + 8 * Math.sqrt(weight)) * Math.min(Math.pow(this.transform.k, 0.55), 2.2)); }

  paintSome(context, some) {
    for (const [i, weight] of some) {
      context.fillStyle = this.colourOf(i);
      context.beginPath();
      context.arc(this.sx(i), this.sy(i), this.someRadius(weight), 0, 7);
      context.fill();
      context.strokeStyle = this.ground;
      context.lineWidth = 1;
      context.stroke();
    }
  }

  ring(context, i, grow) {
    context.strokeStyle = this.ink;
    context.lineWidth = 2;
    context.beginPath();
    context.arc(this.sx(i), this.sy(i), this.radius[i] * grow * 0.75 + 5, 0, 7);
    context.stroke();
  }

  paintNext(context) {
    const { selected, next } = this.marks, x = this.sx(selected), y = this.sy(selected);
    for (const { id, p } of next) {
      const to = [this.sx(id), this.sy(id)];
      context.strokeStyle = this.colourOf(id);
      context.globalAlpha = 0.35 + 0.6 * Math.sqrt(p);
      context.lineWidth = 1 + 7 * p;
      context.beginPath();
      context.moveTo(x, y);
      const bend = 0.18;
      context.quadraticCurveTo((x + to[0]) / 2 - bend * (to[1] - y), (y + to[1]) / 2 + bend * (to[0] - x), ...to);
      context.stroke();
    }
    context.globalAlpha = 1;
  }

  paintPath(context) {
    const path = this.marks.path;
    context.lineJoin = "round";
    for (let t = 1; t < path.length; t++) {
      const [x, y, a, b] = [this.sx(path[t - 1].id), this.sy(path[t - 1].id), this.sx(path[t].id), this.sy(path[t].id)];
      context.strokeStyle = this.ink;
      context.globalAlpha = 0.15 + 0.35 * (t / path.length);
      context.lineWidth = 1.4;
      context.beginPath();
      context.moveTo(x, y);
      context.quadraticCurveTo((x + a) / 2 - 0.12 * (b - y), (y + b) / 2 + 0.12 * (a - x), a, b);
      context.stroke();
    }
    context.globalAlpha = 1;
    const placed = [];
    path.forEach(({ id, word, strong }, t) => {
      const x = this.sx(id), y = this.sy(id);
      context.fillStyle = this.colourOf(id);
      context.beginPath();
      context.arc(x, y, strong ? 7 : 5, 0, 7);
      context.fill();
      if (strong) { context.strokeStyle = this.ink; context.lineWidth = 2; context.stroke(); }
      context.font = `${strong ? 700 : 500} 12px ${theme.css("--sans")}`;
      this.label(context, word, x + 9, y + 4, placed, true);
    });
  }

  // A word next to a place, unless another is there.
  label(context, text, x, y, placed, must = false) {
    const wide = context.measureText(text).width + 8, box = [x - 4, y - 13, x + wide, y + 5];
    if (placed.some((one) => box[0] < one[2] && box[2] > one[0] && box[1] < one[3] && box[3] > one[1])) {
      if (!must || placed.filter((one) => Math.abs(one[0] - box[0]) < 60 && Math.abs(one[1] - box[1]) < 60).length > 3) return false;
      return this.label(context, text, x, y + 15, placed, placed.length < 60 && y < this.height - 20);
    }
    placed.push(box);
    context.lineWidth = 3.5;
    context.lineJoin = "round";
    context.strokeStyle = this.ground;
    context.strokeText(text, x, y);
    context.fillStyle = this.ink;
    context.fillText(text, x, y);
    return true;
  }

  paintLabels(context, some) {
    const { chain } = this, placed = [], said = new Map(), most = this.width < 600 ? 40 : 110;
    const order = some ? [...some].sort((a, b) => b[1] - a[1]).map(([i]) => i) : chain.byShare;
    let tried = 0;
    for (const i of order) {
      if (placed.length >= most || tried > 5000) break;
      const x = this.sx(i), y = this.sy(i);
      if (x < 0 || y < 14 || x > this.width - 20 || y > this.height - 6) continue;
      tried++;
      const first = chain.ranked("word", i)[0];
      if (!first) continue;
      const word = chain.words[first.id], used = said.get(word) ?? 0;
      if (used >= (some ? 3 : Math.ceil(this.transform.k / 3))) continue;
      const big = this.radius[i] > 3.2;
      context.font = `${big ? 650 : 450} ${big ? 13 : 11.5}px ${theme.css("--sans")}`;
      const beside = some ? this.someRadius(some.get(i)) : this.radius[i] * 0.8;
      if (this.label(context, word, x + beside + 3, y + 4, placed)) said.set(word, used + 1);
    }
  }
}

function extent(values) {
  let low = Infinity, high = -Infinity;
  for (const x of values) { if (x < low) low = x; if (x > high) high = x; }
  return [low, high];
}

const motion = (milliseconds) => (matchMedia("(prefers-reduced-motion: reduce)").matches ? 0 : milliseconds);
