/** @typedef {{ keys: Key[]; instances: (LiveSituation & { about: string })[] }} Offer */

/** The reference in a worker of its own, one for all live examples of a page. */
class Runtime {
  /** @param {string} folder where `runtime.js` is */
  constructor(folder) {
    /** @type {Map<number, (answer: string) => void>} */
    this.waiting = new Map();
    this.asked = 0;
    /** @type {Promise<string[]>} names */
    this.policies = this.start(folder);
    /** @type {Map<string, Promise<Offer>>} */
    this.offers = new Map();
    /** What is being done until the reference answers. */
    this.stage = "reading the interpreter";
  }

  /** @param {string} folder */
  async start(folder) {
    const parts = await partsOf(`${folder}runtime.js`);
    const source = URL.createObjectURL(new Blob([parts.worker], { type: "text/javascript" }));
    const worker = new Worker(source);
    this.worker = worker;
    return new Promise((resolve, reject) => {
      worker.addEventListener("message", ({ data }) => {
        if (data.kind === "ready") resolve(JSON.parse(data.policies));
        else if (data.kind === "stage") this.stage = data.what;
        else if (data.kind === "failed") reject(new Error(data.what));
        else {
          this.waiting.get(data.id)?.(data.answer);
          this.waiting.delete(data.id);
        }
      });
      worker.addEventListener("error", (event) => reject(new Error(event.message)));
      worker.postMessage({ kind: "start", parts });
    });
  }

  /**
   * @param {"open" | "offer"} kind what is asked for
   * @param {string} text
   * @returns {Promise<any>}
   */
  async ask(kind, text) {
    await this.policies;
    const id = ++this.asked;
    return new Promise((resolve) => {
      this.waiting.set(id, (answer) => resolve(JSON.parse(answer)));
      this.worker?.postMessage({ kind, id, text });
    });
  }

  /**
   * @param {LiveSituation} situation
   * @returns {Promise<LiveAnswer>}
   */
  open(situation) {
    return this.ask("open", JSON.stringify(situation));
  }

  /**
   * @param {string} policy
   * @returns {Promise<Offer>}
   */
  offer(policy) {
    const known = this.offers.get(policy) ?? this.ask("offer", policy);
    this.offers.set(policy, known);
    return known;
  }
}

/**
 * What the script of a runtime carries.
 *
 * @param {string} source
 * @returns {Promise<Record<string, string>>}
 */
function partsOf(source) {
  return new Promise((resolve, reject) => {
    const script = /** @type {HTMLScriptElement & { lockstep?: Record<string, string> }} */ (
      el("script")
    );
    script.addEventListener("load", () => resolve(script.lockstep ?? {}));
    script.addEventListener("error", () => reject(new Error(`${source} cannot be loaded`)));
    script.src = source;
    document.head.append(script);
  });
}

const TOLD_MS = 250; // between two lines of progress

/** @type {Map<string, Runtime>} */
const RUNTIMES = new Map();

/** A reference that the reader steps by hand. */
class LockstepLive extends HTMLElement {
  constructor() {
    super();
    this.attachShadow({ mode: "open" });
    this.steps = /** @type {LockstepSteps} */ (el("lockstep-steps", { quiet: true }));
    this.status = el("p.status", { role: "status" });
    this.problem = el("p.alert", { role: "alert", hidden: true });
    this.next = el("div.next", { role: "group", "aria-label": "what happens next" });
    this.choose = el("div.choose");
    this.editor = el("div");
    /** @type {LiveSituation | null} */
    this.situation = null;
    /** @type {string[]} */
    this.choices = [];
    /** @type {string | null} */
    this.due = null;
    /** @type {string[]} */
    this.policies = [];
  }

  connectedCallback() {
    if (this.situation) return;
    const inline = this.querySelector('script[type="application/json"]');
    this.given = /** @type {LiveSituation} */ (JSON.parse(inline?.textContent ?? "null"));
    const settings = el(
      "details.editor",
      { open: this.hasAttribute("editor") },
      el("summary", {}, "Requests and configuration"),
      this.editor,
    );
    this.root.replaceChildren(
      el("style", {}, STYLE),
      el("div.lockstep.live", {}, this.choose, this.status, this.problem, settings, this.steps),
    );
    this.steps.setAttribute("parts", this.getAttribute("parts") ?? "chart picture rules events");
    const link = this.getAttribute("rule-link");
    if (link) this.steps.setAttribute("rule-link", link);
    this.steps.extra.append(this.next);
    this.steps.addEventListener("lockstep-frame", () => this.shown());
    this.steps.addEventListener("lockstep-beyond", () => this.due !== null && this.take(this.due));
    window.addEventListener("hashchange", () => this.fromAddress());
    this.say("The reference is loaded when this comes into sight.");
    new IntersectionObserver((entries, observer) => {
      if (!entries.some((one) => one.isIntersecting)) return;
      observer.disconnect();
      this.start();
    }).observe(this);
  }

  get root() {
    return /** @type {ShadowRoot} */ (this.shadowRoot);
  }

  get name() {
    return this.getAttribute("name") ?? "live";
  }

  /** @param {string} text */
  say(text) {
    this.status.textContent = text;
    this.status.hidden = text === "";
  }

  /** @param {string} text */
  complain(text) {
    this.problem.textContent = printable(text);
    this.problem.hidden = text === "";
  }

  async start() {
    const folder = this.getAttribute("runtime") ?? "runtime/";
    if (!RUNTIMES.has(folder)) RUNTIMES.set(folder, new Runtime(folder));
    this.runtime = /** @type {Runtime} */ (RUNTIMES.get(folder));
    const stop = this.progress(this.runtime);
    try {
      this.policies = await this.runtime.policies;
    } catch (error) {
      stop();
      this.say("");
      this.complain(`The reference cannot be loaded: ${/** @type {Error} */ (error).message}`);
      return;
    }
    this.runtime.stage = "taking the first steps";
    const wanted = (await situationIn(inFragment(this.name))) ?? this.given;
    await this.open(wanted ?? (await this.runtime.offer(this.policies[0])).instances[0], false);
    stop();
    this.say("");
  }

  /**
   * Say what is being done and for how long, from now on.
   *
   * @param {Runtime} runtime
   * @returns {() => void} ends it
   */
  progress(runtime) {
    const begin = performance.now();
    const tell = () => {
      const seconds = Math.floor((performance.now() - begin) / 1000);
      this.say(`Loading the reference: ${runtime.stage}, ${seconds} s`);
    };
    tell();
    const timer = setInterval(tell, TOLD_MS);
    return () => clearInterval(timer);
  }

  async fromAddress() {
    const said = await situationIn(inFragment(this.name));
    if (said && JSON.stringify(said) !== JSON.stringify(this.situation)) this.open(said, false);
  }

  /**
   * Show a situation; what is wrong with it, if it cannot be.
   *
   * @param {LiveSituation} situation
   * @param {boolean} asked by the reader, so that the address says it
   */
  async open(situation, asked) {
    const runtime = /** @type {Runtime} */ (this.runtime);
    const answer = await runtime.open(situation);
    this.complain(answer.error ?? "");
    if (answer.error !== undefined) return;
    const last = answer.actions.length;
    const at = Math.min(situation.at ?? (situation.actions ? last : 0), last);
    this.situation = { ...situation, actions: answer.actions, at };
    this.choices = answer.choices;
    this.due = answer.next;
    const { keys, instances } = await runtime.offer(situation.policy);
    this.choose.replaceChildren(...this.chooser(instances));
    const focused = this.focusedField();
    this.editor.replaceChildren(
      formOf(situation, keys, (requests, config) =>
        this.open({ ...situation, requests, config, actions: undefined, at: undefined }, true),
      ),
    );
    this.focusField(focused);
    this.steps.film = answer.document;
    this.steps.go(at, false);
    if (asked) this.note();
  }

  /** The label of the field of the form that has the focus, which is made anew. */
  focusedField() {
    return this.root.activeElement?.getAttribute("aria-label") ?? null;
  }

  /** @param {string | null} label */
  focusField(label) {
    if (label === null) return;
    const field = this.editor.querySelector(`[aria-label="${CSS.escape(label)}"]`);
    /** @type {HTMLElement | null} */ (field)?.focus();
  }

  async note() {
    const situation = this.situation;
    const text = await packed(JSON.stringify(situation));
    if (situation === this.situation) noteInFragment(this.name, text);
  }

  /** A frame is shown: what may happen behind it. */
  shown() {
    if (!this.situation) return;
    const at = this.steps.index;
    const last = this.situation.actions?.length ?? 0;
    if (this.situation.at !== at) {
      this.situation = { ...this.situation, at };
      this.note();
    }
    if (at < last) {
      this.next.replaceChildren(
        button("Go on otherwise from here", "drop what follows and choose what happens", () =>
          this.open(
            {
              .../** @type {LiveSituation} */ (this.situation),
              actions: this.situation?.actions?.slice(0, at),
              at,
            },
            true,
          ),
        ),
      );
      return;
    }
    const [plain, special] = [
      this.choices.filter((one) => !one.startsWith("step, ")),
      this.choices.filter((one) => one.startsWith("step, ")),
    ];
    const buttons = plain.map((one) => {
      const made = button(one, `${one} happens next`, () => this.take(one));
      if (one === this.due) made.classList.add("due");
      return made;
    });
    this.next.replaceChildren(el("span.label", {}, "Next:"), ...buttons);
    if (special.length) this.next.append(this.select(special));
    if (!this.choices.length) this.next.append(el("span.empty", {}, "nothing can happen any more"));
  }

  /** @param {string[]} labels of steps in which more happens */
  select(labels) {
    const options = labels.map((one) => el("option", { value: one }, one));
    const made = /** @type {HTMLSelectElement} */ (
      el(
        "select",
        { "aria-label": "a step in which requests end" },
        el("option", { value: "" }, "step, and …"),
        ...options,
      )
    );
    made.addEventListener("change", () => this.take(made.value));
    return made;
  }

  /** @param {string} action that happens next */
  take(action) {
    if (!this.situation || !action) return;
    const actions = [...(this.situation.actions ?? []), action];
    this.open({ ...this.situation, actions, at: actions.length }, true);
  }

  /** @param {Offer["instances"]} instances of the policy, to begin with */
  chooser(instances) {
    const { policy, title } = /** @type {LiveSituation} */ (this.situation);
    if (this.hasAttribute("fixed")) return [];
    const policies = /** @type {HTMLSelectElement} */ (
      el(
        "select",
        { "aria-label": "policy" },
        ...this.policies.map((one) => el("option", { selected: one === policy }, one)),
      )
    );
    policies.addEventListener("change", async () => {
      const other = await this.runtime?.offer(policies.value);
      if (other) this.open(other.instances[0], true);
    });
    const known = instances.some((one) => one.title === title);
    const begin = /** @type {HTMLSelectElement} */ (
      el(
        "select",
        { "aria-label": "instance" },
        known ? null : el("option", { selected: true }, title || "this example"),
        ...instances.map((one) => el("option", { selected: one.title === title }, one.title)),
      )
    );
    begin.addEventListener("change", () => {
      const found = instances.find((one) => one.title === begin.value);
      if (found) this.open(found, true);
    });
    const about = instances.find((one) => one.title === title)?.about;
    return [el("p", {}, policies, " ", begin), about ? el("p.about", {}, about) : ""];
  }
}

/**
 * The situation that an address says, packed or as JSON.
 *
 * @param {string | null} text
 * @returns {Promise<LiveSituation | null>}
 */
async function situationIn(text) {
  if (!text) return null;
  try {
    return JSON.parse(text.startsWith("{") ? text : await unpacked(text));
  } catch {
    return null;
  }
}

customElements.define("lockstep-live", LockstepLive);
