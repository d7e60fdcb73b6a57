// Transitions among chosen states: a graph laid out by forces, and the same as a table.

const MOST_NODES = 40;

function graphView(app, argument) {
  const { chain } = app;
  const given = (argument ?? "").split(",").filter(Boolean).map(Number), wrong = given.find((x) => !Number.isInteger(x) || x < 0 || x >= chain.numStates);
  if (wrong !== undefined) return missing(`There is no such ${chain.of}: this model has 0 to ${chain.numStates - 1}.`);
  const states = [...new Set(given.length ? given : app.pinned.size ? app.pinned : chain.byShare.slice(0, 14))].slice(0, MOST_NODES);
  app.pinned = new Set(states);
  const chosen = new Set(states), edges = [];
  for (const from of states) for (const { id, p } of chain.ranked("next", from)) if (chosen.has(id)) edges.push({ from, to: id, p });
  app.map.mark({ some: new Map(states.map((id) => [id, 0.4])) });
  app.map.show(states, 4);
  const set = (list) => app.go(`#/graph/${list.join(",")}`);
  const add = h("form", { class: "typing", onsubmit: (event) => {
    event.preventDefault();
    const text = event.currentTarget.querySelector("input").value.trim(), id = chain.byWord.get(text);
    if (/^\d+$/.test(text) && Number(text) < chain.numStates) set([...states, Number(text)]);
    else if (id !== undefined) set([...states, ...chain.statesOfWord(id).slice(0, 2).map((one) => one.state)]);
    else app.announce(`No ${chain.of} says ${text}`);
  } }, h("input", { type: "text", "aria-label": `A word or the number of a ${chain.of}`, placeholder: `Add a word or the number of a ${chain.of}`, dir: "auto" }), h("button", { type: "submit" }, "Add"));
  return [
    h("h1", {}, "Where states lead"),
    h("p", { class: "quiet" }, `Arrows are transitions among the ${states.length} chosen ${chain.of}s, where the target is among the ${chain.shapes.next_id[1]} likeliest next ones; width is probability.`),
    add, drawGraph(app, states, edges),
    h("ul", { class: "chips" }, states.map((id) => h("li", {}, chip(app, id, undefined, 2), h("button", { type: "button", class: "small", "aria-label": `Remove ${chain.of} ${id}`, onclick: () => set(states.filter((one) => one !== id)) }, "\u00d7")))),
    h("details", {}, h("summary", {}, "As a table"), table(["from", "to", "probability"], edges.sort((a, b) => b.p - a.p).map((one) => [bdi(`${one.from}: ${chain.name(one.from, 2)}`), bdi(`${one.to}: ${chain.name(one.to, 2)}`), percent(one.p)]), "Transitions")),
  ];
}

function drawGraph(app, states, edges) {
  const { chain } = app, width = 720, height = 460;
  const nodes = states.map((id) => ({ id, r: 5 + 26 * Math.sqrt(chain.share[id] / chain.share[chain.byShare[0]]) })), at = new Map(nodes.map((node) => [node.id, node]));
  const links = edges.filter((edge) => edge.from !== edge.to).map((edge) => ({ source: at.get(edge.from), target: at.get(edge.to), p: edge.p }));
  const simulation = d3.forceSimulation(nodes).force("link", d3.forceLink(links).distance((link) => 150 - 80 * link.p).strength((link) => 0.1 + 0.5 * link.p))
    .force("charge", d3.forceManyBody().strength(-620)).force("x", d3.forceX(width / 2).strength(0.06)).force("y", d3.forceY(height / 2).strength(0.11)).force("collide", d3.forceCollide((node) => node.r + 30)).stop();
  for (let i = 0; i < 300; i++) simulation.tick();
  for (const node of nodes) { node.x = Math.max(40, Math.min(width - 130, node.x)); node.y = Math.max(24, Math.min(height - 24, node.y)); }
  const arrow = ({ source, target, p }) => {
    const dx = target.x - source.x, dy = target.y - source.y, length = Math.hypot(dx, dy) || 1, bend = 0.16;
    const mx = (source.x + target.x) / 2 - bend * dy, my = (source.y + target.y) / 2 + bend * dx;
    const back = Math.hypot(target.x - mx, target.y - my) || 1, stop = target.r + 6;
    const ex = target.x - ((target.x - mx) / back) * stop, ey = target.y - ((target.y - my) / back) * stop;
    return s("path", { d: `M${source.x},${source.y}Q${mx},${my} ${ex},${ey}`, class: "edge", "stroke-width": 1 + 7 * p, opacity: 0.3 + 0.7 * p, "marker-end": "url(#tip)" }, s("title", {}, `${percent(p)} from ${chain.name(source.id, 2)} to ${chain.name(target.id, 2)}`));
  };
  const loops = edges.filter((edge) => edge.from === edge.to).map((edge) => { const node = at.get(edge.from); return s("circle", { class: "loop", cx: node.x, cy: node.y - node.r - 5, r: 7, "stroke-width": 1 + 6 * edge.p }, s("title", {}, `${percent(edge.p)} stays`)); });
  return s("svg", { class: "graph", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Transitions among ${states.length} ${chain.of}s; the table below holds the same` },
    s("defs", {}, s("marker", { id: "tip", viewBox: "0 0 8 8", refX: 6, refY: 4, markerWidth: 9, markerHeight: 9, markerUnits: "userSpaceOnUse", orient: "auto" }, s("path", { d: "M0,0L8,4L0,8z", class: "tip-shape" }))),
    links.map(arrow), loops,
    nodes.map((node) => s("a", { href: stateLink(node.id), class: "node", "aria-label": `${chain.of} ${node.id}: ${chain.topWords(node.id, 4).join(", ")}` },
      s("circle", { cx: node.x, cy: node.y, r: node.r, fill: theme.kind(chain.kind[node.id]) }), s("text", { x: node.x + node.r + 5, y: node.y + 4 }, chain.name(node.id, 2)))));
}
