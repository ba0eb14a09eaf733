// What the theme makes after loading: buttons that copy code are no navigation of the page. What scrolls is reached by key,
// a wide table as well as a block of code that nobody has scrolled to yet.
function reach() {
  for (const buttons of document.querySelectorAll(".md-code__nav")) buttons.setAttribute("role", "none");
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap, pre > code")) {
    box.tabIndex = box.scrollWidth > box.clientWidth ? 0 : -1;
  }
}
new MutationObserver(reach).observe(document.body, { childList: true, subtree: true });
addEventListener("resize", reach);
reach();
