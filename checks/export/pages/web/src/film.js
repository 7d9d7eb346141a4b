const KEPT_CHUNKS = 8; // unpacked at a time: what is shown, and what was shown around it

/** The frames of a document, unpacked when they are asked for. */
class Frames {
  /** @param {Film} film */
  constructor(film) {
    this.film = film;
    this.count = film.overview.count;
    /** @type {Map<number, Frame[] | Promise<Frame[]>>} */
    this.unpacked = new Map();
  }

  /**
   * A frame, or its promise where it is not unpacked yet.
   *
   * @param {number} index
   * @returns {Frame | Promise<Frame>}
   */
  at(index) {
    const { frames, packed } = this.film;
    if (frames) return frames[index];
    if (!packed) return [];
    const chunk = Math.floor(index / packed.size);
    const found = this.chunk(chunk);
    const place = index - chunk * packed.size;
    return found instanceof Promise ? found.then((all) => all[place]) : found[place];
  }

  /**
   * @param {number} number
   * @returns {Frame[] | Promise<Frame[]>}
   */
  chunk(number) {
    const { chunks } = /** @type {{ chunks: string[] }} */ (this.film.packed);
    const known = this.unpacked.get(number);
    if (known !== undefined) return known;
    const promise = inflated(chunks[number]).then((frames) => {
      this.unpacked.set(number, frames);
      return frames;
    });
    this.unpacked.set(number, promise);
    const [oldest] = this.unpacked.keys();
    if (this.unpacked.size > KEPT_CHUNKS) this.unpacked.delete(oldest);
    return promise;
  }
}

/**
 * What stands in base64 of gzip of JSON.
 *
 * @param {string} text
 * @returns {Promise<any>}
 */
async function inflated(text) {
  return JSON.parse(await new Response(gunzipped(bytesOf(text))).text());
}

/** @param {string} text in base64 */
function bytesOf(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

/** @param {Uint8Array<ArrayBuffer>} bytes */
function gunzipped(bytes) {
  return new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
}

/** @param {Film} film @param {number} index where a frame is among all */
function placeOf(film, index) {
  const { count, labels } = film.overview;
  return labels ? `${index + 1} of ${count}` : `step ${index} of ${count - 1}`;
}

/** @param {Film} film @param {number} index what a frame is called */
function labelOf(film, index) {
  return film.overview.labels?.[index] ?? `step ${index}`;
}
