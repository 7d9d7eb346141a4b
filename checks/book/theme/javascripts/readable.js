// What the theme makes once a page is open, as readers with a keyboard or without a screen need it.
new MutationObserver(() => {
  // The buttons of each block of code would be a landmark, and all of the same name.
  for (const buttons of document.querySelectorAll("nav.md-code__nav:not([role])"))
    buttons.setAttribute("role", "group");
  // A table that is wider than the screen is scrolled, by keys too.
  for (const wide of document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])"))
    wide.tabIndex = 0;
}).observe(document.documentElement, { childList: true, subtree: true });
