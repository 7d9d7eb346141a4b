/**
 * An element with attributes, children and texts.
 *
 * @param {string} tag with classes behind dots, as in "p.note"
 * @param {Record<string, string | number | boolean | null | undefined>} attributes those that are
 *   null, undefined or false are left out
 * @param {...(Node | string | null | undefined)} children
 * @returns {HTMLElement}
 */
function el(tag, attributes = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const made = document.createElement(name);
  if (classes.length) made.className = classes.join(" ");
  set(made, attributes);
  made.append(...children.filter((one) => one !== null && one !== undefined).map(safe));
  return made;
}

/**
 * The same in SVG.
 *
 * @param {string} tag
 * @param {Record<string, string | number | boolean | null | undefined>} attributes
 * @param {...(Node | string)} children
 * @returns {SVGElement}
 */
function svg(tag, attributes = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  if (classes.length) made.setAttribute("class", classes.join(" "));
  set(made, attributes);
  made.append(...children.map(safe));
  return /** @type {SVGElement} */ (made);
}

/** @param {Node | string} child */
function safe(child) {
  return typeof child === "string" ? printable(child) : child;
}

/**
 * Text from files and drivers with control characters and the like as escapes, as commands print it.
 *
 * @param {string} text
 */
function printable(text) {
  return text.replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (one) => {
    if (one === "\n" || one === "\t") return one;
    const digits = /** @type {number} */ (one.codePointAt(0)).toString(16);
    if (digits.length <= 2) return `\\x${digits.padStart(2, "0")}`;
    return digits.length <= 4 ? `\\u${digits.padStart(4, "0")}` : `\\U${digits.padStart(8, "0")}`;
  });
}

/**
 * @param {Element} element
 * @param {Record<string, string | number | boolean | null | undefined>} attributes
 */
function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(name, value === true ? "" : printable(String(value)));
    }
  }
}

/**
 * A button that does something.
 *
 * @param {string} text
 * @param {string} label what it does, in words
 * @param {() => void} does
 */
function button(text, label, does) {
  const spoken = /[a-z]/i.test(text) ? null : label; // a text is its own name
  const made = el("button", { type: "button", title: label, "aria-label": spoken }, text);
  made.addEventListener("click", does);
  return /** @type {HTMLButtonElement} */ (made);
}

/**
 * Numbers written as "3,7-9", in their order.
 *
 * @param {string} text
 * @returns {number[]}
 */
function numbersIn(text) {
  if (!text) return [];
  return text.split(",").flatMap((run) => {
    const [first, last = first] = run.split("-").map(Number);
    return Array.from({ length: last - first + 1 }, (_, place) => first + place);
  });
}

/** @param {number} count @param {string} what its name where there is one */
function counted(count, what) {
  return `${count.toLocaleString("en")} ${what}${count === 1 ? "" : "s"}`;
}

/** @param {unknown} value any JSON value @returns {string} as a text to read */
function shown(value) {
  if (value === null || value === undefined) return "nothing";
  if (Array.isArray(value)) return value.length ? value.map(shown).join(", ") : "none";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/** @param {string} name as Python writes it */
function spaced(name) {
  return name.replaceAll("_", " ");
}
