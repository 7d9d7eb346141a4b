/** What the fragment of the page's address says under a name, or null. @param {string} name */
function inFragment(name) {
  return new URLSearchParams(location.hash.slice(1)).get(name);
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
