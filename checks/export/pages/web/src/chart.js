const MOST_BARS = 240;
const CHART_HEIGHT = 64;

/**
 * A measure over all frames, with its limit and the frame that is shown.
 *
 * @param {Film} film
 * @param {Measure} measure
 * @param {(index: number) => void} go
 */
function chart(film, measure, go) {
  const { count, broken, kinds } = film.overview;
  const bars = Math.min(count, MOST_BARS);
  const per = count / bars;
  const top = measure.values.reduce(
    (most, one) => Math.max(most ?? 0, one ?? 0),
    measure.limit ?? 1,
  );
  const scale = (CHART_HEIGHT - 6) / Math.max(top ?? 1, 1);
  const root = svg("svg.chart", {
    viewBox: `0 0 ${bars} ${CHART_HEIGHT}`,
    preserveAspectRatio: "none",
    "aria-hidden": "true",
  });
  const broke = new Set(Object.keys(broken).map((one) => Math.floor(Number(one) / per)));
  for (let bar = 0; bar < bars; bar++) {
    const [from, to] = [Math.floor(bar * per), Math.floor((bar + 1) * per)];
    const values = measure.values.slice(from, Math.max(to, from + 1));
    const value = values.reduce((most, one) => Math.max(most ?? 0, one ?? 0), 0) ?? 0;
    const height = Math.max(value * scale, value ? 1 : 0);
    const over = measure.limit !== null && value > measure.limit;
    root.append(
      svg(`rect.bar.${over ? "over" : KINDS[kinds[from]]}`, {
        x: bar + 0.08,
        y: CHART_HEIGHT - height,
        width: bars > 120 ? 1 : 0.84,
        height,
      }),
    );
    if (broke.has(bar)) root.append(svg("rect.broke", { x: bar, y: 0, width: 1, height: 4 }));
  }
  if (measure.limit !== null) {
    const y = CHART_HEIGHT - measure.limit * scale;
    root.append(svg("line.limit", { x1: 0, x2: bars, y1: y, y2: y }));
  }
  const cursor = svg("rect.cursor", { y: 0, width: 1, height: CHART_HEIGHT });
  root.append(cursor);
  root.addEventListener("click", (event) => {
    const box = root.getBoundingClientRect();
    go(Math.min(Math.floor(((event.clientX - box.left) / box.width) * count), count - 1));
  });
  return {
    root,
    /** @param {number} index */
    mark(index) {
      cursor.setAttribute("x", String(Math.min(index / per, bars - 1)));
    },
  };
}

/** @type {Record<string, string>} */
const KINDS = { p: "prefill", d: "decode", i: "idle", b: "between" };
