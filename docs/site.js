// What the theme makes after loading: buttons that copy code are no navigation of the page, and a wide table is reached by key.
new MutationObserver(() => {
  for (const buttons of document.querySelectorAll(".md-code__nav")) buttons.setAttribute("role", "none");
  for (const table of document.querySelectorAll(".md-typeset__scrollwrap")) {
    table.tabIndex = table.scrollWidth > table.clientWidth ? 0 : -1;
  }
}).observe(document.body, { childList: true, subtree: true });
