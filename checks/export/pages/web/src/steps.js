const FAR = 10; // steps of the keys PageUp and PageDown

/** A run, step by step: a scrubber over its frames and the picture of one. */
class LockstepSteps extends HTMLElement {
  constructor() {
    super();
    this.index = 0;
    /** @type {Set<string>} groups of rules that the reader has opened */
    this.opened = new Set();
    /** @type {Film | null} */
    this.shownFilm = null;
    /** @type {HTMLElement} of what stands between scrubber and picture */
    this.extra = el("div.extra");
    this.attachShadow({ mode: "open" });
  }

  connectedCallback() {
    if (this.shownFilm) return;
    const inline = this.querySelector('script[type="application/json"]');
    const source = this.getAttribute("src");
    if (inline?.textContent) this.film = JSON.parse(inline.textContent);
    else if (source) this.load(source);
  }

  /** @param {string} source a script that carries a document, see `as_script` */
  load(source) {
    const script = /** @type {HTMLScriptElement & { lockstep?: Film }} */ (el("script"));
    script.addEventListener("load", () => {
      if (script.lockstep) this.film = script.lockstep;
    });
    script.addEventListener("error", () => this.fail(`${source} cannot be loaded`));
    script.src = source;
    this.append(script);
  }

  /** @param {string} what went wrong */
  fail(what) {
    this.root.replaceChildren(el("style", {}, STYLE), el("p.alert", { role: "alert" }, what));
  }

  get root() {
    return /** @type {ShadowRoot} */ (this.shadowRoot);
  }

  get film() {
    return /** @type {Film} */ (this.shownFilm);
  }

  /** What is shown; a new one takes the place of the old one. */
  set film(film) {
    const isFirst = this.shownFilm === null;
    this.shownFilm = film;
    this.frames = new Frames(film);
    this.rules = new RuleNames(film, this.getAttribute("rule-link"));
    this.build();
    if (isFirst) this.begin();
  }

  /** Show the first frame, and listen. */
  begin() {
    const keys = this.getAttribute("keys") === "page" ? window : this;
    keys.addEventListener("keydown", (event) => this.key(/** @type {KeyboardEvent} */ (event)));
    const at = Number(this.getAttribute("at") ?? 0);
    const isAlone = this.hasAttribute("still") || this.hasAttribute("quiet");
    this.go(isAlone ? at : Number(inFragment(this.name) ?? at), false);
    if (!isAlone) {
      window.addEventListener("hashchange", () => {
        const now = inFragment(this.name);
        if (now !== null && now !== "" && !Number.isNaN(Number(now))) this.go(Number(now), false);
      });
    }
  }

  get name() {
    return this.getAttribute("name") ?? "step";
  }

  /** @param {string} part */
  has(part) {
    const parts = this.getAttribute("parts");
    return parts === null || parts.split(/\s+/).includes(part);
  }

  build() {
    const film = this.film;
    this.body = el("div.body");
    this.headline = el("p.headline", { "aria-live": "polite" });
    this.says = el("div.says");
    const parts = [el("style", {}, STYLE)];
    if (!this.hasAttribute("still")) parts.push(...this.introduction(), this.controls());
    parts.push(this.extra, this.headline, this.says);
    if (film.divergence && this.has("picture")) parts.push(this.differing(film.divergence));
    parts.push(this.body);
    if (this.has("requests")) parts.push(settingOf(film));
    this.root.replaceChildren(el("div.lockstep", {}, ...parts));
  }

  /** Title, and what is wrong with the run, with the way there. */
  introduction() {
    const { title, about, violation, divergence, rules } = this.film;
    const made = [];
    if (this.hasAttribute("heading")) made.push(el("h1", {}, title));
    if (about) made.push(el("p.about", {}, about));
    if (violation) {
      const to = () => this.go(violation.frame);
      const now = this.film.overview.broken[violation.frame]?.includes(violation.rule);
      const named = violation.rule in rules ? this.rules?.named(violation.rule) : null;
      const where = labelOf(this.film, violation.frame);
      const found = now ? null : el("p.found", {}, "Found: ", shown(violation.found));
      made.push(
        el(
          "div.alert",
          {},
          el("p", {}, named, named ? " is broken: " : null, violation.says),
          found,
          el("p", {}, button(`Go to ${where}`, `show ${where}, where it shows`, to)),
        ),
      );
    }
    if (divergence) {
      const to = () => this.go(divergence.frame);
      const where = labelOf(this.film, divergence.frame);
      made.push(
        el(
          "p",
          {},
          button(`Go to ${where}`, `show ${where}, which differs`, to),
          " the first step that differs",
        ),
      );
    }
    return made;
  }

  /** The chart, the scrubber and its buttons. */
  controls() {
    const { overview } = this.film;
    const range = /** @type {HTMLInputElement} */ (
      el("input", {
        type: "range",
        min: 0,
        max: overview.count - 1,
        value: 0,
        "aria-label": "step",
      })
    );
    range.addEventListener("input", () => this.go(Number(range.value)));
    this.range = range;
    this.label = el("output.label", { "aria-hidden": "true" });
    const buttons = el(
      "div.buttons",
      { role: "group", "aria-label": "steps" },
      button("⇤", "first step (Home)", () => this.go(0)),
      button("←", "step back (left arrow)", () => this.go(this.index - 1)),
      this.label,
      button("→", "step on (right arrow)", () => this.go(this.index + 1)),
      button("⇥", "last step (End)", () => this.go(overview.count - 1)),
      button("‹ event", "event before (p)", () => this.event(-1)),
      button("event ›", "next event (n)", () => this.event(1)),
    );
    const root = el("div.controls", { style: `--steps: ${overview.count}` });
    const measures = overview.measures.filter((one) => one.values.some(Boolean));
    if (this.has("chart") && measures.length && overview.count > 1)
      root.append(this.charts(measures));
    root.append(range, buttons);
    return root;
  }

  /** @param {Measure[]} measures the first is drawn, or the one that is chosen */
  charts(measures) {
    const place = el("div.chartplace");
    const legend = el("span");
    const draw = () => {
      const measure = measures[Number(select.value)];
      this.chart = chart(this.film, measure, (index) => this.go(index));
      const limit = measure.limit === null ? "" : `, limit ${measure.limit.toLocaleString("en")}`;
      legend.textContent = ` in ${measure.unit}, by step${limit}`;
      place.replaceChildren(this.chart.root);
      this.chart.mark(this.index);
    };
    const options = measures.map((one, place) => el("option", { value: place }, one.name));
    const select = /** @type {HTMLSelectElement} */ (
      el("select", { "aria-label": "what is drawn by step" }, ...options)
    );
    select.addEventListener("change", draw);
    draw();
    return el("div.charts", {}, el("p.legend", {}, select, legend), place);
  }

  /** @param {NonNullable<Film["divergence"]>} divergence */
  differing(divergence) {
    const table = divergenceOf(divergence, this.film.sides);
    this.fields = el("section.differs", {}, el("p.caption", {}, "Fields that differ"), table);
    return this.fields;
  }

  /** @param {number} by 1: to the next event, -1: to the one before */
  event(by) {
    const { events } = this.film.overview;
    const found =
      by > 0 ? events.find((one) => one > this.index) : events.findLast((one) => one < this.index);
    if (found !== undefined) this.go(found);
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const target = /** @type {HTMLElement} */ (event.composedPath()[0]);
    const typed = target.matches?.("input:not([type=range]), textarea, select");
    if (typed || event.ctrlKey || event.metaKey || event.altKey) return;
    const last = this.film.overview.count - 1;
    /** @type {Record<string, () => void>} */
    const does = {
      ArrowLeft: () => this.go(this.index - 1),
      ArrowRight: () => this.go(this.index + 1),
      PageUp: () => this.go(this.index - FAR),
      PageDown: () => this.go(this.index + FAR),
      Home: () => this.go(0),
      End: () => this.go(last),
      n: () => this.event(1),
      p: () => this.event(-1),
    };
    if (!(event.key in does)) return;
    event.preventDefault();
    does[event.key]();
  }

  /**
   * Show a frame.
   *
   * @param {number} index the nearest that there is, if it is none
   * @param {boolean} [asked] by the reader, so that the address says it
   */
  go(index, asked = true) {
    const last = this.film.overview.count - 1;
    if (index > last && asked) this.dispatchEvent(new CustomEvent("lockstep-beyond"));
    const wanted = Math.max(0, Math.min(Number.isNaN(index) ? 0 : Math.round(index), last));
    this.index = wanted;
    if (asked && !this.hasAttribute("quiet")) noteInFragment(this.name, String(wanted));
    const frame = this.frames?.at(wanted);
    if (frame instanceof Promise) {
      frame.then((found) => {
        if (this.index === wanted) this.draw(found);
      });
    } else if (frame) this.draw(frame);
  }

  /** @param {Frame} frame */
  draw(frame) {
    const { film, index, rules } = this;
    const now = frame.find((one) => one !== null);
    if (!now || !rules || !this.headline || !this.says || !this.body) return;
    const label = labelOf(film, index);
    if (this.range) this.range.value = String(index);
    this.range?.setAttribute("aria-valuetext", `${label}: ${printable(now.headline)}`);
    if (this.label) this.label.textContent = placeOf(film, index);
    this.chart?.mark(index);
    this.headline.replaceChildren(
      el("b", {}, label),
      now.kind === "between" ? "" : ` · ${now.kind}`,
      now.headline ? ` · ${printable(now.headline)}` : "",
      ...came(now),
    );
    const said = frame.flatMap((one) => (one ? [brokenOf(one, rules), refusalOf(one, rules)] : []));
    const unique = new Map(said.filter((one) => one !== null).map((one) => [one.textContent, one]));
    this.says.replaceChildren(...unique.values());
    this.body.replaceChildren(
      el(
        `div.sides${film.sides.length > 1 ? ".two" : ""}`,
        {},
        ...frame.map((one, place) => this.side(one, film.sides[place] ?? "")),
      ),
    );
    if (this.fields) this.fields.hidden = index !== film.divergence?.frame;
    this.dispatchEvent(new CustomEvent("lockstep-frame", { detail: index, bubbles: true }));
  }

  /** @param {Situation | null} now @param {string} name */
  side(now, name) {
    const { film, rules } = this;
    const root = el("div.side", { role: "group", "aria-label": name });
    if (film.sides.length > 1) root.append(el("p.sidename", {}, name));
    if (now === null || !rules) {
      root.append(el("p.empty", {}, "no step here"));
      return root;
    }
    if (this.has("picture")) root.append(pictureOf(now, film));
    const details = el("div.details");
    if (this.has("events") && now.events.length) {
      details.append(el("section", {}, el("p.caption", {}, "What happened"), eventsOf(now, rules)));
    }
    if (this.has("rules")) {
      details.append(
        el("section", {}, el("p.caption", {}, "Rules"), verdictsOf(now, film, rules, this.opened)),
      );
    }
    if (details.childElementCount) root.append(details);
    return root;
  }
}

/** @param {Situation} now which requests came and went */
function came(now) {
  const said = [
    ["arrived", now.arrived],
    ["aborted", now.aborted],
    ["finished", now.finished],
  ];
  return said
    .filter(([, ids]) => ids.length)
    .map(([what, ids]) => el("span.came", {}, ` ${what}: ${[...ids].join(", ")}`));
}

customElements.define("lockstep-steps", LockstepSteps);
