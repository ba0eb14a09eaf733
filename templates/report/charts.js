"use strict";
// Reads the charts to who points at them, hides series, enlarges, and sorts tables. Without it the page is whole.
(() => {
  const NEAR_PX = 30, FEW_ROWS = 6;

  function said(value, exact) {
    if (Math.abs(value) >= 100) return value.toLocaleString("en-GB", {maximumFractionDigits: 0});
    const least = exact || value === 0 ? 1 : 3;
    return value.toLocaleString("en-GB", {minimumSignificantDigits: least, maximumSignificantDigits: exact ? 6 : 3});
  }

  function place([from, to, start, end, logarithmic], value) {
    const f = logarithmic ? Math.log : x => x;
    return start + (f(value) - f(from)) / (f(to) - f(from)) * (end - start);
  }

  // An element from text: tags and classes of ours, never a name from the data.
  function made(tag, properties = {}) {
    return Object.assign(document.createElement(tag), properties);
  }

  function chart(figure) {
    const pan = figure.querySelector(".pan"), panels = pan.querySelector(".panels"), drawings = [...panels.querySelectorAll("svg")];
    const names = new Map(), off = new Set();
    const tip = made("div", {className: "tip", hidden: true});
    tip.setAttribute("role", "status");
    const spot = document.createElementNS("http://www.w3.org/2000/svg", "circle");
    spot.setAttribute("class", "spot");
    spot.setAttribute("r", 6);
    pan.setAttribute("role", "group");
    pan.setAttribute("aria-label", "Chart: arrow keys read its points, + enlarges it");
    const caption = figure.querySelector("figcaption");
    caption.id ||= figure.id + "-caption";
    panels.setAttribute("aria-labelledby", caption.id);
    let known, current = null;

    function points() {
      known ??= JSON.parse(figure.querySelector("script").textContent).flatMap((panel, drawn) =>
        panel.series.flatMap(series => series.x.map((x, i) => ({panel, drawn, series, i, x, y: series.y[i]}))
          .filter(point => point.x !== null && point.y !== null)
          .map(point => ({...point, left: place(panel.x, point.x), top: place(panel.y, point.y)}))));
      return known.filter(point => !off.has("s" + point.series.s));
    }

    function words({panel, series, i, x, y}) {
      const what = panel.title, lines = [];
      const head = names.get("s" + series.s);
      if (head) lines.push(head + (series.run ? ", one run" : ""));
      else if (series.run) lines.push("one run");
      if (series.of) lines.push(`${series.of[i]}: ${said(series.worth[i])} (${panel.xName || what})`);
      else lines.push(`${panel.xName || "x"}: ${said(x, true)}`, `${what}: ${said(y)}`);
      if (series.low && series.low[i] !== series.high[i])
        lines.push(`95% interval: ${said(series.low[i])} to ${said(series.high[i])}`);
      return lines;
    }

    function show(point) {
      current = point;
      tip.hidden = !point;
      if (!point) return spot.remove();
      tip.replaceChildren(...words(point).map(line => made("div", {textContent: line})));
      spot.setAttribute("cx", point.left);
      spot.setAttribute("cy", point.top);
      drawings[point.drawn].append(spot);
      const at = spot.getBoundingClientRect(), frame = figure.getBoundingClientRect();
      const left = Math.min(Math.max(at.left - frame.left, 4), frame.width - tip.offsetWidth - 4);
      const above = at.top - frame.top - tip.offsetHeight - 8;
      tip.style.left = `${Math.max(left, 0)}px`;
      tip.style.top = `${above > 0 ? above : at.bottom - frame.top + 8}px`;
    }

    function nearest(event) {
      const drawn = drawings.findIndex(one => one.contains(event.target));
      if (drawn < 0) return null;
      const unit = drawings[drawn].viewBox.baseVal.width / drawings[drawn].getBoundingClientRect().width;
      const {x, y} = new DOMPoint(event.clientX, event.clientY).matrixTransform(drawings[drawn].getScreenCTM().inverse());
      let best = null, distance = NEAR_PX * unit;
      for (const point of points().filter(one => one.drawn === drawn)) {
        const away = Math.hypot(point.left - x, point.top - y) + (point.series.run ? 4 * unit : 0); // The mean first.
        if (away < distance) [best, distance] = [point, away];
      }
      return best;
    }

    function enlarge(large) {
      figure.classList.toggle("large", large);
      larger.textContent = large ? "Smaller" : "Enlarge";
      larger.setAttribute("aria-pressed", String(large));
      if (current) show(current);
    }

    function step(by, ofSeries) {
      const all = points(), at = all.indexOf(all.find(one => one.left === current?.left && one.top === current?.top
        && one.series === current.series));
      let next = at + by;
      if (ofSeries) while (all[next] && at >= 0 && all[next].series === all[at].series) next += by;
      if (all.length) show(all[(next + all.length) % all.length]);
    }

    for (const item of figure.querySelectorAll(".keys > li")) {
      const series = item.dataset.series, button = made("button", {type: "button"});
      names.set(series, item.textContent);
      button.append(...item.childNodes);
      button.setAttribute("aria-pressed", "true");
      button.addEventListener("click", () => {
        const hidden = !off.delete(series) && off.add(series).has(series);
        button.setAttribute("aria-pressed", String(!hidden));
        for (const part of panels.querySelectorAll("." + series)) part.classList.toggle("off", hidden);
        show(null);
      });
      item.append(button);
    }
    const larger = made("button", {type: "button", className: "tool"});
    larger.addEventListener("click", () => enlarge(!figure.classList.contains("large")));
    caption.append(larger);
    enlarge(false);
    figure.append(tip);

    pan.addEventListener("pointerdown", event => show(nearest(event)));
    pan.addEventListener("pointermove", event => show(nearest(event)));
    pan.addEventListener("pointerleave", () => show(null));
    pan.addEventListener("blur", () => show(null));
    pan.addEventListener("focus", () => { if (pan.matches(":focus-visible")) step(1); });
    const keys = {
      ArrowRight: () => step(1), ArrowLeft: () => step(-1), ArrowDown: () => step(1, true), ArrowUp: () => step(-1, true),
      "+": () => enlarge(true), "-": () => enlarge(false), Escape: () => show(null),
    };
    pan.addEventListener("keydown", event => {
      if (!(event.key in keys) || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      keys[event.key]();
    });
  }

  function worth(cell) {
    const text = cell.dataset.value ?? cell.textContent.trim(), number = parseFloat(text.replace(/,/g, ""));
    return Number.isNaN(number) || !/^[-<]?\d/.test(text) ? text : number;
  }

  function sortable(table) {
    const headers = [...table.tHead.rows[0].cells], body = table.tBodies[0];
    headers.forEach((header, column) => {
      const button = made("button", {type: "button"});
      button.append(...header.childNodes);
      header.append(button);
      button.addEventListener("click", () => {
        const falling = header.getAttribute("aria-sort") === "ascending";
        for (const other of headers) other.removeAttribute("aria-sort");
        header.setAttribute("aria-sort", falling ? "descending" : "ascending");
        const rows = [...body.rows].map(row => [row, worth(row.cells[column])]);
        const missing = value => value === "–" || value === "";
        rows.sort(([, a], [, b]) => missing(a) - missing(b) || (falling ? -1 : 1) * (
          typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", {numeric: true})));
        body.append(...rows.map(([row]) => row));
      });
    });
  }

  // On a narrow screen, where each row stands by itself, a long table begins with a few of them.
  function shorten(table) {
    const rows = table.tBodies[0].rows.length;
    if (rows <= FEW_ROWS) return;
    const all = made("button", {type: "button", textContent: `Show all ${rows} rows`, className: "tool all"});
    table.classList.add("short");
    all.addEventListener("click", () => { table.classList.remove("short"); all.remove(); });
    table.after(all);
  }

  document.querySelectorAll("figure.chart").forEach(chart);
  document.querySelectorAll(".stack").forEach(shorten);
  for (const table of document.querySelectorAll("table:not(.decision)"))
    if (table.tHead && table.tBodies[0]?.rows.length > 1) sortable(table);

  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const details of opened) details.open = true;
  });
  addEventListener("afterprint", () => { for (const details of opened) details.open = false; });
})();
