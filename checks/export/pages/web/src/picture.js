/**
 * A situation: meters, requests with their blocks, queues, pools.
 *
 * @param {Situation} now
 * @param {Film} film
 */
function pictureOf(now, film) {
  const root = el("div.picture");
  root.append(metersOf(now.meters));
  if (now.rows.length) root.append(rowsOf(now.rows, film), legendOf(now.rows));
  root.append(queuesOf(now, film), ...now.pools.filter((one) => one.size).map(poolOf));
  return root;
}

/** @param {Meter[]} meters */
function metersOf(meters) {
  const list = el("dl.meters");
  for (const meter of meters) {
    const most = Math.max(meter.limit ?? meter.value, meter.value, 1);
    const bar = el("span.track", { "aria-hidden": "true" });
    const parts = meter.parts.length ? meter.parts : [["", meter.value]];
    const sum = parts.reduce((all, [, share]) => all + Number(share), 0);
    for (const [name, share] of parts) {
      const width = (100 * Number(share) * meter.value) / (Math.max(sum, 1) * most);
      const title = name ? `${name}: ${share}` : null;
      const text = width > 3 + 2.5 * String(name).length ? String(name) : "";
      bar.append(el("span.part", { style: `width: ${width}%`, title }, text));
    }
    if (meter.limit !== null) {
      bar.append(el("span.mark", { style: `left: ${(100 * meter.limit) / most}%` }));
    }
    const limit = meter.limit === null ? "" : ` of ${meter.limit.toLocaleString("en")}`;
    const text = `${meter.value.toLocaleString("en")}${limit}`;
    const over = meter.over ? el("strong", {}, " over the limit") : null;
    list.append(
      el(
        `div${meter.over ? ".over" : ""}`,
        {},
        el("dt", {}, meter.name),
        el("dd", {}, bar, el("span.value", {}, text, el("small", {}, ` ${meter.unit}`), over)),
      ),
    );
  }
  return list;
}

/**
 * The queues, front first, with the request that a rule kept waiting.
 *
 * @param {Situation} now
 * @param {Film} film
 */
function queuesOf(now, film) {
  const list = el("dl.queues");
  for (const queue of now.queues) {
    const chips = queue.requests.map((one) => {
      const refused = now.refused?.id === one.id;
      const asks = film.requests.find((request) => request.id === one.id);
      return el(
        `span.chip${refused ? ".refused" : ""}`,
        {},
        requestName(one.id, film),
        asks ? el("small", {}, `${asks.prompt_len} + ${asks.max_tokens}`) : null,
        one.note ? el("small", {}, one.note) : null,
        refused ? el("small", {}, "refused") : null,
      );
    });
    list.append(
      el("dt", {}, spaced(queue.name)),
      el("dd", {}, ...(chips.length ? chips : [el("span.empty", {}, "empty")])),
    );
  }
  return list;
}

/**
 * A pool, block by block where that has room, and its free blocks in their order.
 *
 * @param {Pool} pool
 */
function poolOf(pool) {
  const root = el("div.pool");
  const promised = pool.reserved ? `, ${pool.reserved} promised` : "";
  root.append(el("p.name", {}, `${pool.name}: ${pool.count} of ${pool.size} free${promised}`));
  const free = numbersIn(pool.free);
  if (pool.held !== undefined && pool.size) {
    const held = new Set(numbersIn(pool.held));
    const cached = new Set(numbersIn(pool.cached ?? ""));
    const shared = new Map(pool.shared ?? []);
    const known = [...held, ...free];
    const first = Math.min(1, ...known);
    const grid = el("span.blocks", { role: "img", "aria-label": describedPool(pool) });
    for (let block = first; block < first + pool.size; block++) {
      const kind = shared.has(block) ? "shared" : held.has(block) ? "own" : "free";
      const place = free.indexOf(block);
      const title = `block ${block}: ${
        held.has(block) ? `held by ${shared.get(block) ?? 1}` : "free"
      }${cached.has(block) ? ", with content" : ""}${
        place >= 0 && place < 99 ? `, ${place + 1}. to be handed out` : ""
      }`;
      const style = "--filled: 100%";
      const cell = `span.cell.${kind}${cached.has(block) ? ".kept" : ""}`;
      grid.append(el(cell, { title, style }, String(block)));
    }
    root.append(grid);
  }
  if (free.length) {
    const more = pool.count > free.length ? ", …" : "";
    root.append(el("p.order", {}, "handed out next: ", el("span", {}, listed(pool.free) + more)));
  }
  return root;
}

/** @param {string} text numbers as Python writes them, to be read */
function listed(text) {
  return text.replaceAll(",", ", ").replaceAll("-", "–");
}

/** @param {Pool} pool in words */
function describedPool(pool) {
  const held = pool.held ? `held ${pool.held}` : "none held";
  return `${pool.name}: ${held}; free, in this order: ${pool.free || "none"}`;
}
