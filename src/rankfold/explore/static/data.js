// The packed arrays of the page: unpacked once, then looked up.

const TYPES = { uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array, int32: Int32Array, float32: Float32Array };

function fromBase64(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Arrays lie byte plane by byte plane: first the low bytes of all numbers, then the next ones.
function fromPlanes(bytes, type, count) {
  const size = type.BYTES_PER_ELEMENT;
  if (size === 1) return new type(bytes.buffer, bytes.byteOffset, count);
  const mixed = new Uint8Array(count * size);
  for (let plane = 0; plane < size; plane++) {
    const at = plane * count;
    for (let i = 0, to = plane; i < count; i++, to += size) mixed[to] = bytes[at + i];
  }
  return new type(mixed.buffer);
}

async function unpack(text) {
  const content = await inflate(fromBase64(text));
  const end = 4 + new DataView(content.buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(content.subarray(4, end)));
  if (head.version !== 1) throw new Error("data of another version of rankfold");
  const arrays = {}, shapes = {};
  let at = end;
  for (const { name, dtype, shape } of head.arrays) {
    const type = TYPES[dtype], count = shape.reduce((a, b) => a * b, 1), bytes = count * type.BYTES_PER_ELEMENT;
    arrays[name] = fromPlanes(content.subarray(at, at + bytes), type, count);
    shapes[name] = shape;
    at += bytes;
  }
  const words = new TextDecoder().decode(arrays.words ?? new Uint8Array()).split("\n");
  return { meta: head.meta, arrays, shapes, words };
}

// A model of words: states, and sentences as positions [start[s], start[s + 1]) of one long text.
class Chain {
  constructor({ meta, arrays, shapes, words }) {
    Object.assign(this, arrays, { meta, words, shapes });
    this.numStates = meta.states;
    this.numSentences = meta.sentences;
    this.of = meta.of === "ranks" ? "rank" : "state";
    this.byWord = new Map(words.map((word, i) => [word, i]));
    this.byShare = Uint32Array.from(this.share.keys()).sort((a, b) => this.share[b] - this.share[a]);
    this.perPosition = shapes.state[1];
    this.sentenceOf = new Uint32Array(this.token.length);
    for (let s = 0; s < this.numSentences; s++) this.sentenceOf.fill(s, this.start[s], this.start[s + 1]);
  }

  // Entries of a ranked list of a state: [{id, p}], the most probable first.
  ranked(name, state) {
    const width = this.shapes[`${name}_id`][1], ids = this[`${name}_id`], p = this[`${name}_p`], found = [];
    for (let i = state * width; i < (state + 1) * width; i++) {
      if (p === undefined || p[i] > 0) found.push({ id: ids[i], p: p === undefined ? null : p[i] / 65535 });
    }
    return found;
  }

  topWords(state, num = 4) {
    return this.ranked("word", state).slice(0, num).map((one) => this.words[one.id]);
  }

  name(state, num = 3) {
    return this.topWords(state, num).join(" \u00b7 ");
  }

  // The states of a position with their probabilities, the most probable first.
  statesAt(position) {
    const width = this.perPosition, found = [];
    for (let i = position * width; i < (position + 1) * width; i++) {
      if (this.p[i] > 0) found.push({ id: this.state[i], p: this.p[i] / 255 });
    }
    return found;
  }

  // The word of a position as the text has it: unknown words keep their spelling.
  word(position) {
    return this.meta.unknown[position] ?? this.words[this.token[position]];
  }

  sentence(number) {
    const start = this.start[number], end = this.start[number + 1], words = [], states = [], known = [];
    for (let i = start; i < end; i++) {
      words.push(this.word(i));
      known.push(!(i in this.meta.unknown));
      states.push(this.statesAt(i));
    }
    return { number, start, words, states, known };
  }

  // Positions whose most probable state is this one, the surest first.
  positions(state) {
    if (!this.firstIndex) this.firstIndex = groupBy(this.token.length, this.numStates, (i) => this.state[i * this.perPosition]);
    const { offset, items } = this.firstIndex, width = this.perPosition;
    return items.slice(offset[state], offset[state + 1]).sort((a, b) => this.p[b * width] - this.p[a * width] || a - b);
  }

  // Positions of a word.
  occurrences(word) {
    if (!this.wordPlaces) this.wordPlaces = groupBy(this.token.length, this.words.length, (i) => this.token[i]);
    const { offset, items } = this.wordPlaces;
    return items.subarray(offset[word], offset[word + 1]);
  }

  // States that say a word: by p(word | state) where it is among their first words, with their count in the text.
  statesOfWord(word) {
    const width = this.shapes.word_id[1], found = new Map();
    for (let i = 0; i < this.word_id.length; i++) {
      if (this.word_id[i] === word && this.word_p[i] > 0) found.set(Math.floor(i / width), { p: this.word_p[i] / 65535, count: 0 });
    }
    for (const place of this.occurrences(word)) {
      const state = this.state[place * this.perPosition];
      if (!found.has(state)) found.set(state, { p: 0, count: 0 });
      found.get(state).count++;
    }
    return [...found].map(([state, one]) => ({ state, ...one })).sort((a, b) => b.count - a.count || b.p - a.p);
  }

  // Sentences that hold these words one after the other; at most `limit`.
  phrase(words, limit = 200) {
    const ids = words.map((word) => this.byWord.get(word) ?? -1), found = [];
    if (!ids.length || ids.includes(-1)) return found;
    const rarest = ids.reduce((best, id, i) => (this.occurrences(id).length < this.occurrences(ids[best]).length ? i : best), 0);
    let last = -1;
    for (const place of this.occurrences(ids[rarest])) {
      const from = place - rarest, sentence = this.sentenceOf[place];
      if (sentence === last || from < this.start[sentence] || from + ids.length > this.start[sentence + 1]) continue;
      if (ids.every((id, i) => this.token[from + i] === id)) {
        found.push({ sentence, from: from - this.start[sentence], to: from - this.start[sentence] + ids.length });
        last = sentence;
      }
      if (found.length >= limit) break;
    }
    return found;
  }
}

// Numbers 0..count-1 grouped by a key: items of key k lie at offset[k]..offset[k + 1].
function groupBy(count, numKeys, keyOf) {
  const offset = new Uint32Array(numKeys + 1), items = new Uint32Array(count);
  for (let i = 0; i < count; i++) offset[keyOf(i) + 1]++;
  for (let k = 0; k < numKeys; k++) offset[k + 1] += offset[k];
  const next = offset.slice();
  for (let i = 0; i < count; i++) items[next[keyOf(i)]++] = i;
  return { offset, items };
}
