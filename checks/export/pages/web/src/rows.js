/** @type {Record<string, string>} */
const CELLS = {
  own: "held by this request alone",
  shared: "shared with another request",
  cached: "found in the cache, not computed again",
  padding: "padding: the dummy block is read",
  dummy: "computed again; the write goes to the dummy block",
  pending: "not handed out yet",
  reserved: "promised, not handed out yet",
  freed: "held during this step, free after it",
  cpu: "on the CPU",
};
const MOST_NUMBERED = 28; // columns in which a block's number has room

/** @param {Cells} cells */
function lengthOf(cells) {
  return cells.blocks ? numbersIn(cells.blocks).length : (cells.count ?? 0);
}

/**
 * The requests that hold blocks, each with a bar of its blocks and its numbers.
 *
 * @param {Row[]} rows
 * @param {Film} film
 */
function rowsOf(rows, film) {
  const size = Number(film.config.block_size);
  const names = numberNames(rows);
  const columns = Math.max(1, ...rows.map((row) => total(row)));
  const list = el("ul.rows", { style: `--columns: ${columns}; --numbers: ${names.length}` });
  const head = names.map((name) => el("span.number", {}, spaced(name)));
  if (names.length) {
    list.append(el("li.head", { "aria-hidden": "true" }, el("span"), el("span"), ...head));
  }
  for (const row of rows) {
    list.append(
      el(
        "li",
        {},
        el("span.who", {}, requestName(row.id, film), el("span.place", {}, row.place), noteOf(row)),
        barOf(row, size, columns),
        ...names.map((name) => numberOf(name, row.numbers[name])),
      ),
    );
  }
  return list;
}

/** @param {Row} row */
function total(row) {
  return row.cells.reduce((sum, one) => sum + lengthOf(one), 0);
}

/** @param {Row} row */
function noteOf(row) {
  return row.note ? el("span.note", {}, row.note) : null;
}

/**
 * The numbers that say something of one row at least.
 *
 * @param {Row[]} rows
 */
function numberNames(rows) {
  const names = new Set(rows.flatMap((row) => Object.keys(row.numbers)));
  return [...names].filter((name) =>
    rows.some((row) => Array.isArray(row.numbers[name]) || Boolean(row.numbers[name])),
  );
}

/**
 * @param {string} name
 * @param {Value | [Value, Value] | undefined} value with what it was, if that is another
 */
function numberOf(name, value) {
  if (value === undefined) return el("span.number");
  const label = el("span.label", {}, `${spaced(name)} `);
  if (!Array.isArray(value)) return el("span.number", {}, label, String(value));
  const [was, is] = value;
  const mark = el("mark", { title: `was ${was}` }, el("s", {}, String(was)), " ", String(is));
  return el("span.number", {}, label, mark);
}

/**
 * The blocks of a row, as wide as those of the others.
 *
 * @param {Row} row
 * @param {number} size of a block
 * @param {number} columns of the longest row
 */
function barOf(row, size, columns) {
  const numbered = columns <= MOST_NUMBERED;
  const bar = el("span.bar", { role: "img", "aria-label": describedBar(row) });
  for (const cells of row.cells) {
    const blocks = cells.blocks ? numbersIn(cells.blocks) : Array(cells.count ?? 0).fill(null);
    const tokens = cells.tokens ?? blocks.length * size;
    const single = numbered ? blocks.map((one) => [one]) : [blocks];
    let start = 0;
    for (const group of single) {
      const within = Math.min(Math.max(tokens - start, 0), group.length * size);
      bar.append(cellOf(cells, group, within, size));
      start += group.length * size;
    }
  }
  return bar;
}

/**
 * @param {Cells} cells
 * @param {(number | null)[]} blocks one, or so many that none has room for its number
 * @param {number} tokens in them
 * @param {number} size of a block
 */
function cellOf(cells, blocks, tokens, size) {
  const filled = cells.kind in { padding: 0, pending: 0, reserved: 0 } ? 0 : tokens;
  const part = Math.round((100 * filled) / (blocks.length * size));
  const text = blocks.length === 1 && blocks[0] ? String(blocks[0]) : "";
  const names = blocks.filter((one) => one !== null).join(", ");
  const title = `${names ? `block ${names}: ` : ""}${CELLS[cells.kind] ?? cells.kind}${
    filled ? `, ${filled} of ${blocks.length * size} tokens` : ""
  }${cells.now ? ", in this step" : ""}`;
  return el(
    `span.cell.${cells.kind}${cells.now ? ".now" : ""}`,
    { style: `--length: ${blocks.length}; --filled: ${part}%`, title },
    text,
  );
}

/** @param {Row} row its blocks in words */
function describedBar(row) {
  const parts = row.cells.map((one) => {
    const length = lengthOf(one);
    const where = one.blocks && one.kind !== "padding" ? ` ${one.blocks}` : "";
    return `${counted(length, "block")}${where} ${CELLS[one.kind] ?? one.kind}`;
  });
  return `Request ${row.id}: ${parts.join("; ") || "no blocks"}`;
}

/**
 * What the kinds of blocks are that are drawn.
 *
 * @param {Row[]} rows
 */
function legendOf(rows) {
  const cells = rows.flatMap((row) => row.cells);
  const kinds = Object.keys(CELLS).filter((kind) => cells.some((one) => one.kind === kind));
  const items = kinds.map((kind) => legendItem(kind, CELLS[kind]));
  if (cells.some((one) => one.now)) items.push(legendItem("now", "computed in this step"));
  return el("p.legend", {}, ...items);
}

/** @param {string} kind @param {string} text */
function legendItem(kind, text) {
  return el("span", {}, el(`i.cell.${kind}`, { style: "--filled: 100%" }), text);
}

/** @param {string} id @param {Film} film a request's name, with what it asks for */
function requestName(id, film) {
  const request = film.requests.find((one) => one.id === (film.owners?.[id] ?? id));
  const asks = request && `prompt ${request.prompt_len}, at most ${request.max_tokens} tokens`;
  return el("b.request", { title: asks ?? null }, id);
}
