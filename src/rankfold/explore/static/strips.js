// Views of recordings: strips of states against the truth, how long segments last, and what states look like.

class Recordings {
  constructor({ meta, arrays, shapes }) {
    Object.assign(this, arrays, { meta, shapes, num: meta.recordings.length });
  }

  // Stretches of equal values of a recording: [{value, from, to}].
  stretches(name, n) {
    const values = this[name], found = [];
    for (let i = this.start[n]; i < this.start[n + 1]; i++) {
      const last = found[found.length - 1];
      if (last && last.value === values[i]) last.to = i + 1 - this.start[n];
      else found.push({ value: values[i], from: i - this.start[n], to: i + 1 - this.start[n] });
    }
    return found;
  }

  length(n) { return this.start[n + 1] - this.start[n]; }
  time(frames) { return this.meta.fps ? `${(frames / this.meta.fps).toFixed(1)} s` : `${whole(frames)} frames`; }
  // A state has the hue of the label it is matched with, so that strips can be compared by eye.
  stateHue(state) { const label = this.meta.matched[state] ?? -1; return label >= 0 ? theme.kind(label) : this.meta.labels.length ? "var(--soft)" : theme.kind(state); }
  stateName(state) { const label = this.meta.matched[state] ?? -1; return label >= 0 ? `state ${state} \u2192 ${this.meta.labels[label]}` : `state ${state}`; }

  // The share of frames with a label whose state is matched with it.
  agreement(n) {
    let all = 0, right = 0;
    for (let i = this.start[n]; i < this.start[n + 1]; i++) if (this.truth[i] >= 0) { all++; right += this.meta.matched[this.state[i]] === this.truth[i]; }
    return all ? right / all : 0;
  }
}

function strip(frames, n, name, title, width = 1000) {
  const scale = width / frames.length(n), truth = name === "truth";
  const label = (value) => (truth ? (value < 0 ? "not known" : frames.meta.labels[value]) : frames.stateName(value));
  return h("div", { class: "strip" }, h("span", { class: "quiet strip-name" }, title),
    s("svg", { viewBox: `0 0 ${width} 30`, preserveAspectRatio: "none", role: "img", "aria-label": `${title}: ${frames.stretches(name, n).slice(0, 60).map((one) => `${label(one.value)} ${frames.time(one.to - one.from)}`).join(", ")}` },
      frames.stretches(name, n).map(({ value, from, to }) => s("rect", { x: from * scale, y: 0, width: Math.max(0.6, (to - from) * scale), height: 30, fill: truth ? (value < 0 ? "var(--line)" : theme.kind(value)) : frames.stateHue(value) }, s("title", {}, `${label(value)}, ${frames.time(from)} to ${frames.time(to)}`)))));
}

// How sure the model is of its states along a recording.
function certainty(frames, n, width = 1000) {
  const length = frames.length(n), step = Math.max(1, Math.floor(length / width)), points = [];
  for (let t = 0; t < length; t += step) points.push(`${((t / length) * width).toFixed(1)},${(28 - 26 * (frames.p[frames.start[n] + t] / 255)).toFixed(1)}`);
  return h("div", { class: "strip" }, h("span", { class: "quiet strip-name" }, "certainty"), s("svg", { viewBox: `0 0 ${width} 30`, preserveAspectRatio: "none", role: "img", "aria-label": "Posterior of the state of each frame" }, s("polyline", { points: points.join(" "), class: "certainty" })));
}

function legendOf(frames) {
  const { labels, states, matched } = frames.meta;
  const items = labels.length ? labels.map((label, i) => [label, theme.kind(i)]) : Array.from({ length: states }, (_, z) => [`state ${z}`, theme.kind(z)]);
  return h("ul", { class: "chips" }, items.map(([text, hue]) => h("li", { class: "chip", style: { "--hue": hue } }, h("i", {}), text)), labels.length && matched.includes(-1) ? h("li", { class: "chip", style: { "--hue": "var(--soft)" } }, h("i", {}), "a state without a label") : null);
}

function histogram(frames, lengths, hue) {
  const top = Math.max(...lengths, 1), bins = Math.min(30, top), counts = new Array(bins).fill(0);
  for (const x of lengths) counts[Math.min(bins - 1, Math.floor(((x - 1) / top) * bins))]++;
  const most = Math.max(...counts, 1);
  return s("svg", { class: "histogram", viewBox: "0 0 300 60", preserveAspectRatio: "none", role: "img", "aria-label": `Durations of ${lengths.length} segments, up to ${frames.time(top)}` },
    counts.map((count, i) => s("rect", { x: (i * 300) / bins, y: 58 - (56 * count) / most, width: 300 / bins - 1, height: (56 * count) / most + 1, fill: hue }, s("title", {}, `${whole(count)} segments of about ${frames.time(((i + 0.5) * top) / bins)}`))));
}

const stripViews = {
  ""({ frames }) {
    const { meta } = frames, facts = [fact(whole(frames.num), "recordings"), fact(whole(meta.frames), "frames"), fact(whole(meta.states), "states"), fact(whole(meta.num_features), "features")];
    if (frames.truth) { let all = 0, right = 0; for (let n = 0; n < frames.num; n++) { all += frames.length(n); right += frames.agreement(n) * frames.length(n); } facts.push(fact(percent(right / all), "frames agree with the truth")); }
    return [h("h1", {}, "Recordings as the model cuts them"), h("div", { class: "facts" }, facts), legendOf(frames),
      Array.from({ length: Math.min(frames.num, 60) }, (_, n) => h("section", { class: "recording" }, h("h3", {}, h("a", { href: `#/recording/${n}` }, meta.recordings[n]), h("span", { class: "quiet" }, ` ${frames.time(frames.length(n))}${frames.truth ? `, ${percent(frames.agreement(n))} agree` : ""}`)),
        frames.truth && strip(frames, n, "truth", "truth"), strip(frames, n, "state", "found")))];
  },
  recording({ frames }, argument) {
    const n = Number(argument);
    if (!Number.isInteger(n) || n < 0 || n >= frames.num) return missing(`There is no recording ${argument}: this page has 0 to ${frames.num - 1}.`);
    return [h("h1", {}, frames.meta.recordings[n]), legendOf(frames), frames.truth && strip(frames, n, "truth", "truth"), strip(frames, n, "state", "found"), certainty(frames, n),
      h("details", { open: true }, h("summary", {}, "Segments as a table"), table(["state", "from", "to", "lasts"], frames.stretches("state", n).slice(0, 400).map((one) => [h("a", { href: `#/states/${one.value}` }, frames.stateName(one.value)), frames.time(one.from), frames.time(one.to), frames.time(one.to - one.from)]), "Segments"))];
  },
  states({ frames }, only) {
    const { meta } = frames, lengths = Array.from({ length: meta.states }, () => []), count = new Array(meta.states).fill(0), width = frames.shapes.mean[1];
    for (let n = 0; n < frames.num; n++) for (const { value, from, to } of frames.stretches("state", n)) { lengths[value].push(to - from); count[value] += to - from; }
    const chosen = only === undefined ? [...lengths.keys()].sort((a, b) => count[b] - count[a]) : [Number(only)];
    if (!chosen.every((z) => lengths[z])) return missing(`There is no state ${only}.`);
    return [h("h1", {}, only === undefined ? "States: durations and means" : frames.stateName(Number(only))), h("p", { class: "quiet" }, "Means are over the frames of a state, in standard deviations from the mean of all frames."),
      h("div", { class: "state-grid" }, chosen.map((z) => { const hue = frames.stateHue(z); return h("article", { class: "card tall", style: { "--hue": hue } }, h("h3", {}, frames.stateName(z)), h("p", { class: "quiet" }, `${percent(count[z] / meta.frames)} of frames, ${whole(lengths[z].length)} segments`),
        lengths[z].length ? [histogram(frames, lengths[z], hue), means(frames, z, width)] : h("p", { class: "quiet" }, "No frame has it.")); }))];
  },
};

// Bars to the left and right of 0: how far a state's means are from the mean of all frames.
function means(frames, z, width) {
  const rows = Array.from({ length: width }, (_, f) => ({ name: frames.meta.features[f], x: (frames.mean[z * width + f] - frames.center[f]) / frames.spread[f] })), top = Math.max(1, ...rows.map((row) => Math.abs(row.x)));
  return h("ul", { class: "means" }, rows.map(({ name, x }) => h("li", {}, h("span", { class: "bar-label" }, name), h("span", { class: "mean-track", "aria-hidden": "true" }, h("span", { class: "bar", style: { width: `${(50 * Math.abs(x)) / top}%`, "margin-inline-start": x < 0 ? `${50 - (50 * -x) / top}%` : "50%", background: frames.stateHue(z) } })), h("span", { class: "bar-value" }, x.toFixed(2)))));
}
