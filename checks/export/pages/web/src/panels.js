/**
 * What happened in a step, each with the rule that allowed it.
 *
 * @param {Situation} now
 * @param {RuleNames} rules
 */
function eventsOf(now, rules) {
  const list = el("ol.events");
  for (const one of now.events) {
    const change =
      one.before === undefined && one.after === undefined
        ? null
        : el("span.change", {}, `${shown(one.before)} → ${shown(one.after)}`);
    list.append(
      el(
        "li",
        {},
        el("b", {}, spaced(one.transition)),
        one.id ? ` ${one.id} ` : " ",
        change,
        " ",
        rules.named(one.rule),
      ),
    );
  }
  return list;
}

/** Names of rules: with their sentences, and as links where the page has one for each. */
class RuleNames {
  /** @param {Film} film @param {string | null} link with {id} in it */
  constructor(film, link) {
    this.rules = film.rules;
    this.link = link;
  }

  /** @param {string} id */
  named(id) {
    const says = this.says(id) || null;
    if (!this.link || !this.rules[id]) return el("code.rule", { title: says }, id);
    const href = this.link.replace("{id}", id);
    return el("a.rule", { href, title: says }, id);
  }

  /** @param {string} id */
  says(id) {
    return this.rules[id]?.says ?? "";
  }
}

/**
 * Every rule at this step: those that are broken, those that it is an example of, and the others.
 *
 * @param {Situation} now
 * @param {Film} film
 * @param {RuleNames} rules
 * @param {Set<string>} opened the groups that are open
 */
function verdictsOf(now, film, rules, opened) {
  const broken = new Set(now.broken.map(([id]) => id));
  const unjudged = new Set(now.unjudged);
  const speaks = now.speaks.filter((id) => !broken.has(id) && film.rules[id]);
  const known = Object.entries(film.rules);
  const ofKind = (/** @type {string[]} */ ...kinds) =>
    known.filter(([, rule]) => kinds.includes(rule.kind)).map(([id]) => id);
  const runs = ofKind("eventually");
  const steps = now.kind === "between" ? ofKind("step", "guard") : [];
  const apart = new Set([...broken, ...unjudged, ...speaks, ...runs, ...steps]);
  const holds = known.map(([id]) => id).filter((id) => !apart.has(id));
  const judged = holds.length + speaks.length + broken.size;
  const root = el("div.verdicts");
  root.append(
    el(
      "p.sum",
      {},
      `${counted(judged, "rule")} judged: ${judged - broken.size} hold, `,
      broken.size ? el("strong.broken", {}, `${broken.size} broken`) : "none broken",
    ),
    group("seen at work in this step", speaks),
    group("hold", holds),
    group("about steps, of which this is none", steps),
    group("about whole runs, not judged in a step", runs),
    group("not judged: the release does not report what they ask for", [...unjudged]),
  );
  return root;

  /** @param {string} name @param {string[]} ids */
  function group(name, ids) {
    if (!ids.length) return "";
    const items = ids.map((id) => el("li", {}, rules.named(id), " ", rules.says(id)));
    const summary = el("summary", {}, `${ids.length} ${name}`);
    const made = el("details", { open: opened.has(name) }, summary, el("ul", {}, ...items));
    made.addEventListener("toggle", () => {
      if (/** @type {HTMLDetailsElement} */ (made).open) opened.add(name);
      else opened.delete(name);
    });
    return made;
  }
}

/**
 * The rules that a step breaks, with what was found.
 *
 * @param {Situation} now
 * @param {RuleNames} rules
 */
function brokenOf(now, rules) {
  if (!now.broken.length) return null;
  const items = now.broken.map(([id, found]) =>
    el(
      "div.broke",
      {},
      el("p", {}, rules.named(id), " is broken: ", rules.says(id)),
      el("p.found", {}, `Found: ${found}`),
    ),
  );
  return el("div.alert", {}, ...items);
}

/**
 * The rule that kept a request waiting.
 *
 * @param {Situation} now
 * @param {RuleNames} rules
 */
function refusalOf(now, rules) {
  if (!now.refused) return null;
  const { id, rule } = now.refused;
  const who = id === null ? "A request is kept waiting by " : `Request ${id} is kept waiting by `;
  return el("p.refusal", {}, who, rules.named(rule), `: ${rules.says(rule)}`);
}

/** @param {NonNullable<Film["divergence"]>} divergence @param {string[]} sides */
function divergenceOf(divergence, sides) {
  const [ours, theirs = "the file"] = sides;
  const rows = divergence.fields.map((one) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, `${one.field} ${one.place}`.trim()),
      el("td", {}, shown(one.expected)),
      el("td", {}, shown(one.found)),
    ),
  );
  const head = el("tr", {}, el("th", {}, "field"), el("th", {}, ours), el("th", {}, theirs));
  return el(
    "div.scroll",
    { tabindex: 0, role: "region", "aria-label": "fields that differ" },
    el("table.fields", {}, el("thead", {}, head), el("tbody", {}, ...rows)),
  );
}

/** @param {Film} film its configuration and requests */
function settingOf(film) {
  const keys = Object.entries(film.config).map(([name, value]) =>
    el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, shown(value))),
  );
  const most = film.requests.slice(0, 200).map((one) => {
    const { id, prompt_len, max_tokens, ...others } = one;
    const more = Object.entries(others).filter(([name, value]) => name !== "prompt_parts" && value);
    return el(
      "tr",
      {},
      el("th", { scope: "row" }, id),
      el("td", {}, String(prompt_len)),
      el("td", {}, String(max_tokens)),
      el("td", {}, more.map(([name, value]) => `${spaced(name)} ${shown(value)}`).join(", ")),
    );
  });
  const names = ["request", "prompt", "at most", ""].map((name) => el("th", {}, name));
  const left = film.requests.length - most.length;
  return el(
    "details.setting",
    {},
    el(
      "summary",
      {},
      `${counted(film.requests.length, "request")} and the configuration of ${film.policy}`,
    ),
    el(
      "div.tables",
      {},
      el(
        "table",
        {},
        el("caption", {}, "requests, in tokens"),
        el("thead", {}, el("tr", {}, ...names)),
        el("tbody", {}, ...most),
      ),
      left > 0 ? el("p", {}, `and ${left} more`) : null,
      el("table", {}, el("caption", {}, "configuration"), el("tbody", {}, ...keys)),
    ),
  );
}
