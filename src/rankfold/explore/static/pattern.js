// The same hidden pattern elsewhere: windows of the text whose states overlap with those of a span.

class PatternIndex {
  constructor(chain) {
    this.chain = chain;
    const width = chain.perPosition;
    const kept = chain.state.length;
    // Entries of all positions and ranks, grouped by state; an entry of probability 0 stands for none.
    this.groups = groupBy(kept, chain.numStates, (i) => chain.state[i]);
    this.width = width;
    this.score = new Float32Array(chain.token.length);
    this.touched = new Uint32Array(chain.token.length);
    this.root = Float32Array.from({ length: 256 }, (_, p) => Math.sqrt(p / 255));
  }

  // The span: for each position [{id, p}]. With `similar`, states near on the map count by half.
  expand(span, similar) {
    if (!similar) return span;
    return span.map((states) => {
      const weights = new Map(states.map((one) => [one.id, one.p]));
      for (const one of states) {
        for (const near of this.chain.ranked("near", one.id)) {
          weights.set(near.id, Math.max(weights.get(near.id) ?? 0, one.p / 4));
        }
      }
      return [...weights].map(([id, p]) => ({ id, p }));
    });
  }

  /* Windows with the largest overlap  sum_t sum_z sqrt(p_t(z) q_t(z)) / length  (Bhattacharyya's coefficient of the
     posteriors, over the states that the page holds), best first. `words`: leave out windows of these very words. */
  search(span, { similar = false, words = null, limit = 200, least = 0.25 } = {}) {
    const began = performance.now();
    const { chain, score, touched, root, width } = this, { offset, items } = this.groups, { p: posterior } = chain;
    let count = 0;
    const query = this.expand(span, similar);
    query.forEach((states, t) => {
      for (const { id, p } of states) {
        const weight = Math.sqrt(p), end = offset[id + 1];
        for (let i = offset[id]; i < end; i++) {
          const entry = items[i], own = posterior[entry], from = ((entry / width) | 0) - t;
          if (own === 0 || from < 0) continue;
          if (score[from] === 0) touched[count++] = from;
          score[from] += weight * root[own];
        }
      }
    });
    const length = span.length, found = [];
    for (let k = 0; k < count; k++) {
      const from = touched[k];
      const overlap = Math.min(1, score[from] / length);
      score[from] = 0;
      if (overlap < least || from + length > chain.token.length) continue;
      if (chain.sentenceOf[from] !== chain.sentenceOf[from + length - 1]) continue;
      if (words && words.every((word, t) => chain.word(from + t) === word)) continue;
      found.push({ from, overlap });
    }
    found.sort((a, b) => b.overlap - a.overlap || a.from - b.from);
    return { matches: found.slice(0, limit), total: found.length, milliseconds: performance.now() - began };
  }
}
