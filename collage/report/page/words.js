"use strict";

/** Figures and elements for people. Texts of a module reach the document as text only. */
const Words = (() => {
  /** Microseconds in a suitable unit, or "" if there is no figure. */
  function us(value) {
    if (value === null || value === undefined) return "";
    if (value < 1000) return `${value.toFixed(value < 10 ? 2 : 1)} us`;
    return value < 1e6 ? `${(value / 1e3).toFixed(2)} ms` : `${(value / 1e6).toFixed(2)} s`;
  }

  const times = (value) => (value === null ? "" : `${value.toFixed(2)}×`);
  const percent = (value) => (value === null ? "" : `${(value * 100).toFixed(value < 0.1 ? 1 : 0)} %`);

  /** The shape of a value's type: "1×64×56×56" of "x float32[1x64x56x56]". */
  function shape(text) {
    const found = /\[([^\]]*)\]$/.exec(text || "");
    return found ? found[1].replaceAll("x", "×") : "";
  }

  /** An element with attributes and children: `make("td", { class: "n" }, "text")`. */
  function make(tag, attributes = {}, ...children) {
    const found = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) found.addEventListener(name.slice(2), value);
      else if (name === "style") Object.assign(found.style, value);
      else if (value !== null && value !== false) found.setAttribute(name, value);
    }
    found.append(...children.filter((each) => each !== null && each !== undefined));
    return found;
  }

  /** The same in SVG. */
  function draw(tag, attributes, ...children) {
    const found = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) found.addEventListener(name.slice(2), value);
      else found.setAttribute(name, value);
    }
    found.append(...children);
    return found;
  }

  /** A table that scrolls within itself. Columns with a name that begins with ">" are figures. */
  function table(caption, titles, rows) {
    const figures = titles.map((title) => title.startsWith(">"));
    const head = titles.map((title, at) =>
      make("th", { scope: "col", class: figures[at] ? "n" : null }, title.replace(/^>/, "")),
    );
    const body = rows.map(({ cells, ...attributes }) =>
      make(
        "tr",
        attributes,
        ...cells.map((cell, at) =>
          make("td", { class: figures[at] ? "n" : String(cell).length > 40 ? "long" : null }, cell),
        ),
      ),
    );
    const found = make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body));
    return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, found);
  }

  return { us, times, percent, shape, make, draw, table };
})();
