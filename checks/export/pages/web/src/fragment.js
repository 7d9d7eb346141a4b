/** What the fragment of the page's address says under a name, or null. @param {string} name */
function inFragment(name) {
  return new URLSearchParams(location.hash.slice(1)).get(name);
}

/**
 * A text for an address: deflated, in the alphabet of addresses.
 *
 * @param {string} text
 */
async function packed(text) {
  const deflated = new Blob([text]).stream().pipeThrough(new CompressionStream("deflate-raw"));
  const bytes = new Uint8Array(await new Response(deflated).arrayBuffer());
  const binary = Array.from(bytes, (byte) => String.fromCharCode(byte)).join("");
  return btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/**
 * The text that `packed` made this of.
 *
 * @param {string} value
 */
async function unpacked(value) {
  const binary = atob(value.replaceAll("-", "+").replaceAll("_", "/"));
  const bytes = Uint8Array.from(binary, (letter) => letter.charCodeAt(0));
  const inflated = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Response(inflated).text();
}

/**
 * Says something under a name in the fragment, without a new entry in the history.
 *
 * @param {string} name
 * @param {string} value
 */
function noteInFragment(name, value) {
  const said = new URLSearchParams(location.hash.slice(1));
  for (const [key, empty] of [...said]) if (!empty) said.delete(key); // the name of a heading
  said.set(name, value);
  history.replaceState(history.state, "", `#${said}`);
}
