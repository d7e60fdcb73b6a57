// Elements, made without markup: text stays text, so no word of a corpus is ever read as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, own] of Object.entries(value)) element.style.setProperty(key, own);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const h = (tag, properties, ...children) => fill(document.createElement(tag), properties, children);
const s = (tag, properties, ...children) => fill(document.createElementNS(SVG, tag), properties, children);

// A word keeps its own direction, whatever stands around it.
const bdi = (word, name) => h("bdi", name ? { class: name } : {}, word);

const whole = (number) => Math.round(number).toLocaleString("en");
function percent(p) {
  const x = 100 * p;
  return x >= 99.95 ? "100%" : x >= 10 ? `${x.toFixed(0)}%` : x >= 1 ? `${x.toFixed(1)}%` : x >= 0.01 ? `${x.toFixed(2)}%` : x > 0 ? "<0.01%" : "0%";
}

const KINDS = {
  dark: ["#6ea8fe", "#f6a55c", "#7bd389", "#f07178", "#b79cf7", "#4fd1c5", "#f48fb1", "#dcc65a", "#8fb3c9", "#e0906e", "#a3d65c", "#cf8df0"],
  light: ["#2f6fde", "#d9730d", "#2b9348", "#cf3f4b", "#7552d6", "#0d9488", "#c94f86", "#94800f", "#4a7590", "#a9552f", "#5a8f12", "#9541c4"],
};
const RAMPS = {
  dark: ["#2b3350", "#3b5b8c", "#3c8ea3", "#58c08a", "#c8dc5c", "#fff3a8"],
  light: ["#d5dbe6", "#93b9cf", "#4b95b5", "#2f6f9f", "#3a4a8f", "#2a1f5c"],
};

const theme = {
  get name() {
    const chosen = document.documentElement.dataset.theme;
    return chosen || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  },
  kind: (k) => KINDS[theme.name][k % 12],
  ramp: (t) => d3.interpolateRgbBasis(RAMPS[theme.name])(t),
  css: (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim(),
};

// A row of bars: [{label, p, href}], as long as their probability.
function bars(rows, { scale, label } = {}) {
  const top = scale ?? Math.max(...rows.map((row) => row.p), 1e-6);
  return h("ol", { class: "bars", "aria-label": label },
    rows.map((row) => h("li", {},
      row.href ? h("a", { href: row.href, class: "bar-label" }, row.label) : h("span", { class: "bar-label" }, row.label),
      h("span", { class: "bar-track", "aria-hidden": "true" },
        h("span", { class: "bar", style: { width: `${(100 * row.p) / top}%`, background: row.colour ?? "var(--accent)" } })),
      h("span", { class: "bar-value" }, row.value ?? percent(row.p)))));
}

function table(head, rows, caption) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {}, caption && h("caption", { class: "unseen" }, caption),
      h("thead", {}, h("tr", {}, head.map((cell) => h("th", { scope: "col" }, cell)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell) => h("td", {}, cell)))))));
}

const fact = (value, label) => h("div", { class: "fact" }, h("strong", {}, value), h("span", {}, label));
const section = (title, ...content) => h("section", {}, h("h2", {}, title), ...content);
