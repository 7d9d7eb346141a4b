/**
 * What can be changed of a live situation: its requests and the keys of its configuration.
 *
 * @param {LiveSituation} situation
 * @param {Key[]} keys of the policy
 * @param {(requests: Record<string, unknown>[], config: Record<string, unknown>) => void} change
 *   called with all of it when something has been changed
 */
function formOf(situation, keys, change) {
  const requests = situation.requests.map((one) => ({ ...one }));
  const config = { ...situation.config };
  const changed = () => change(requests, config);
  const body = el("tbody", {}, ...requests.map((one, place) => requestRow(one, place)));
  const names = ["request", "arrival", "prompt", "max_tokens", "output_len", "abort_at", ""];
  const head = el("tr", {}, ...names.map((name) => (name ? el("th", {}, name) : el("td"))));
  const add = button("Add a request", "add a request", () => {
    const taken = new Set(requests.map((one) => one.id));
    let id = requests.length;
    while (taken.has(String(id))) id++;
    const last = requests.at(-1) ?? { prompt_len: 4, max_tokens: 4 };
    requests.push({ ...last, id: String(id) });
    changed();
  });
  const set = keys.filter((key) => !key.name.endsWith("_time"));
  return el(
    "div.form",
    {},
    el(
      "div.scroll",
      { tabindex: 0, role: "region", "aria-label": "requests" },
      el("table", {}, el("thead", {}, head), body),
    ),
    el(
      "p",
      {},
      add,
      el(
        "small",
        {},
        " A prompt is a number of tokens, or streams as in “system:128 user:40”: equal names are equal tokens.",
      ),
    ),
    el("div.keys", {}, ...set.map(keyField)),
  );

  /** @param {Record<string, unknown>} one @param {number} place */
  function requestRow(one, place) {
    const id = String(one.id);
    return el(
      "tr",
      {},
      el(
        "td",
        {},
        field(`name of request ${id}`, id, "text", (text) => {
          one.id = text;
        }),
      ),
      ...["arrival", "prompt", "max_tokens", "output_len", "abort_at"].map((name) =>
        el(
          "td",
          {},
          name === "prompt"
            ? promptField(one, id)
            : field(`${name} of request ${id}`, String(one[name] ?? ""), "number", (text) => {
                if (text === "") delete one[name];
                else one[name] = Number(text);
              }),
        ),
      ),
      el(
        "td",
        {},
        button("✕", `remove request ${id}`, () => {
          requests.splice(place, 1);
          changed();
        }),
      ),
    );
  }

  /** @param {Record<string, unknown>} one @param {string} id */
  function promptField(one, id) {
    return field(`prompt of request ${id}`, promptText(one, requests), "text", (text) => {
      for (const name of ["prompt_len", "prompt", "prompt_parts"]) delete one[name];
      Object.assign(one, promptOf(text));
    });
  }

  /** @param {string} label @param {string} value @param {string} type @param {(text: string) => void} note */
  function field(label, value, type, note) {
    const input = /** @type {HTMLInputElement} */ (
      el("input", { type, value, "aria-label": label, min: type === "number" ? 0 : null })
    );
    input.addEventListener("change", () => {
      note(input.value.trim());
      changed();
    });
    return input;
  }

  /** @param {Key} key */
  function keyField(key) {
    const value = key.name in config ? config[key.name] : key.default;
    /** @type {HTMLInputElement | HTMLSelectElement} */
    let input;
    if (key.type === "switch") {
      input = /** @type {HTMLInputElement} */ (el("input", { type: "checkbox" }));
      input.checked = Boolean(value);
    } else if (key.type === "choice") {
      input = /** @type {HTMLSelectElement} */ (
        el(
          "select",
          {},
          ...key.choices.map((one) => el("option", { selected: one === value }, one)),
        )
      );
    } else {
      input = /** @type {HTMLInputElement} */ (
        el("input", { type: "number", value: /** @type {Value} */ (value), min: 0 })
      );
    }
    input.addEventListener("change", () => {
      const now =
        key.type === "switch"
          ? /** @type {HTMLInputElement} */ (input).checked
          : key.type === "choice"
            ? input.value
            : input.value === ""
              ? null
              : Number(input.value);
      if (now === key.default || now === null) delete config[key.name];
      else config[key.name] = now;
      changed();
    });
    const own = key.name in config ? ".own" : "";
    return el(`label${own}`, {}, el("span", {}, key.name), input);
  }
}

/**
 * The prompt of a request as it is typed: a number if no other request begins with its tokens.
 *
 * @param {Record<string, unknown>} request
 * @param {Record<string, unknown>[]} requests all of them
 */
function promptText(request, requests) {
  if (request.prompt_parts) {
    const parts = partsOfPrompt(request);
    const others = requests.filter((other) => other !== request).flatMap(partsOfPrompt);
    const shared = others.some(([name]) => name === parts[0][0]);
    if (parts.length === 1 && !shared) return String(parts[0][1]);
    return parts.map(([name, count]) => `${name}:${count}`).join(" ");
  }
  return request.prompt ? JSON.stringify(request.prompt) : String(request.prompt_len ?? "");
}

/** @param {Record<string, unknown>} request @returns {[string, number][]} its named streams */
function partsOfPrompt(request) {
  return /** @type {[string, number][]} */ (request.prompt_parts ?? []);
}

/** @param {string} text @returns {Record<string, unknown>} the key of a request that it stands for */
function promptOf(text) {
  if (/^\[.*\]$/.test(text)) return { prompt: JSON.parse(text) };
  if (!text.includes(":")) return { prompt_len: Number(text) };
  const parts = text.split(/\s+(?=\S+:\d+)/).map((part) => {
    const at = part.lastIndexOf(":");
    return [part.slice(0, at), Number(part.slice(at + 1))];
  });
  return { prompt_parts: parts };
}
