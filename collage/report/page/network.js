"use strict";

/** The network of one module on a canvas: zoom, pan, search, hover, select, fold and unfold. */
const Network = (() => {
  const FONT = 14;
  const SMALL = 12.5;
  const LEGIBLE = 12 / FONT;
  const MANY_READERS = 4;
  const FAR = 2; // boxes between the two ends of an edge
  const SIZES = {
    region: { width: 168, height: 44 },
    engine: { width: 150, height: 44 },
    block: { width: 180, height: 60 },
    conversion: { width: 140, height: 26 },
    view: { width: 140, height: 26 },
    input: { width: 150, height: 44 },
    output: { width: 150, height: 44 },
  };
  const measuring = document.createElement("canvas").getContext("2d");

  /** The text, cut so that it is no wider than that many units of the canvas. */
  function cut(text, width, size = FONT) {
    measuring.font = `${size}px "Liberation Sans", Arial, sans-serif`;
    if (measuring.measureText(text).width <= width) return text;
    let end = text.length;
    while (end > 1 && measuring.measureText(`${text.slice(0, end)}…`).width > width) end--;
    return `${text.slice(0, end)}…`;
  }

  /** What Cytoscape draws an edge through points by: its ends relative to the boxes, and parts of segments between. */
  function segments(points, source, target) {
    const [from, to] = [points[0], points[points.length - 1]];
    const [dx, dy] = [to.x - from.x, to.y - from.y];
    const length = Math.hypot(dx, dy) || 1;
    const inner = points.slice(1, -1).map((point) => [point.x - from.x, point.y - from.y]);
    return {
      from: `${from.x - source.x}px ${from.y - source.y}px`,
      to: `${to.x - target.x}px ${to.y - target.y}px`,
      weights: inner.map(([x, y]) => (x * dx + y * dy) / (length * length)).join(" "),
      distances: inner.map(([x, y]) => (y * dx - x * dy) / length).join(" "),
    };
  }

  class View {
    /**
     * `page` has `select(view, name, focus)`, `colour(backend)`, `theme()`, `tip(text, event)` and `say(text)`;
     * `marked` are the numbers of regions that are marked as different.
     */
    constructor(container, module, page, marked = new Set()) {
      this.module = module;
      this.page = page;
      this.marked = marked;
      this.selected = null; // the name of a box or block
      this.found = new Set();
      this.mixed = module.boxes.some((box) => box.region !== null && box.kind !== "engine");
      this.folded = new Set(module.blocks.flatMap((block, at) => (block.folded ? [at] : [])));
      this.blocksOf = module.boxes.map(() => []);
      module.blocks.forEach((block, at) => {
        for (let box = block.first; box < block.end; box++) this.blocksOf[box].push(at);
      });
      this.container = container;
      this.cy = cytoscape({
        container,
        autoungrabify: true,
        autounselectify: true,
        boxSelectionEnabled: false,
        minZoom: 0.02,
        maxZoom: 3,
        hideEdgesOnViewport: module.boxes.length > 2000,
        style: this.style(),
      });
      this.listen();
      this.draw();
      this.home();
    }

    style() {
      const theme = this.page.theme();
      return [
        {
          selector: "node",
          style: {
            shape: "round-rectangle",
            width: "data(width)",
            height: "data(height)",
            label: "data(label)",
            "text-wrap": "wrap",
            "text-valign": "center",
            "font-size": FONT,
            "min-zoomed-font-size": 4,
            "font-family": '"Liberation Sans", Arial, sans-serif',
            "line-height": 1.25,
            color: theme.text,
            "background-color": "data(fill)",
            "border-color": "data(colour)",
            "border-width": 2,
          },
        },
        {
          selector: "node.small",
          style: { "font-size": SMALL, "border-style": "dashed", "border-width": 1.5, shape: "round-rectangle" },
        },
        { selector: "node.end", style: { "corner-radius": 22, "border-width": 1.5 } },
        {
          selector: "node.block",
          style: {
            "background-fill": "linear-gradient",
            "background-gradient-direction": "to-right",
            "background-gradient-stop-colors": "data(stops)",
            "background-gradient-stop-positions": "data(positions)",
            "border-width": 5,
            "border-style": "double",
            "font-weight": "bold",
          },
        },
        {
          selector: "node.outline",
          style: {
            "background-opacity": 0.5,
            "background-color": theme.raised,
            "border-style": "dotted",
            "border-color": theme.faint,
            "border-width": 1.5,
            "text-valign": "top",
            "text-halign": "center",
            "text-margin-x": "data(shift)", // to the left end, where few edges are
            "text-margin-y": 20,
            "font-weight": "bold",
            color: theme.accent,
            "z-index": 0,
            "z-compound-depth": "bottom",
          },
        },
        {
          selector: "edge",
          style: {
            width: 1.5,
            "line-color": theme.edge,
            "target-arrow-color": theme.edge,
            "target-arrow-shape": "triangle",
            "arrow-scale": 0.8,
            "curve-style": "straight",
            "source-endpoint": (edge) => edge.data("from"),
            "target-endpoint": (edge) => edge.data("to"),
          },
        },
        {
          selector: "edge.bent",
          style: {
            "curve-style": "round-segments",
            "segment-weights": (edge) => edge.data("weights"),
            "segment-distances": (edge) => edge.data("distances"),
            "segment-radii": 12,
            "edge-distances": "endpoints",
          },
        },
        { selector: "node.marked", style: { "border-color": theme.mark, "border-width": 4 } },
        { selector: "node.faded", style: { opacity: 0.25 } },
        {
          selector: "node.selected",
          style: { "border-color": theme.accent, "border-width": 5, "border-style": "solid" },
        },
        {
          selector: "edge.far",
          style: {
            display: "none",
            "line-style": "dashed",
            "curve-style": "straight",
            "source-endpoint": "outside-to-node",
            "target-endpoint": "outside-to-node",
          },
        },
        { selector: "edge.far.near", style: { display: "element" } },
        {
          selector: "edge.near",
          style: { "line-color": theme.accent, "target-arrow-color": theme.accent, width: 3, "z-index": 9 },
        },
      ];
    }

    listen() {
      const { cy } = this;
      cy.on("tap", "node", (event) => this.tapped(event.target.id()));
      cy.on("tap", (event) => {
        if (event.target === cy) this.select(null);
      });
      cy.on("mouseover mousemove", "node, edge", (event) => {
        this.page.tip(this.hint(event.target), event.originalEvent);
        this.container.style.cursor = event.target.isNode() ? "pointer" : "default";
      });
      cy.on("mouseout viewport", () => {
        this.page.tip("", null);
        this.container.style.cursor = "default";
      });
      this.container.addEventListener("keydown", (event) => this.key(event));
    }

    tapped(id) {
      this.page.tip("", null);
      if (id[0] === "o") this.fold(Number(id.slice(1).split("-")[0]));
      else if (id[0] === "g") this.unfold(Number(id.slice(1)));
      else this.select(id);
    }

    /** The name of what shows a box: the box itself, or the outermost folded block that it is in. */
    shown(box) {
      const block = this.blocksOf[box].find((each) => this.folded.has(each));
      return block === undefined ? `b${box}` : `g${block}`;
    }

    /** Lay out what is shown, and draw it. */
    draw() {
      const { module, cy } = this;
      const sizes = new Map();
      const nodes = new Map();
      module.boxes.forEach((box, at) => {
        const name = this.shown(at);
        if (nodes.has(name)) return;
        const made = name[0] === "g" ? this.block(Number(name.slice(1))) : this.box(at);
        sizes.set(name, made.data);
        nodes.set(name, made);
      });
      const values = new Map();
      for (const edge of module.edges) {
        const start = this.shown(edge.start);
        const end = this.shown(edge.end);
        if (start === end) continue;
        const key = `${start}>${end}`;
        if (!values.has(key)) values.set(key, { start, end, texts: new Set() });
        values.get(key).texts.add(edge.text);
      }
      const [near, far] = this.split([...values.values()], [...nodes.keys()]);
      const { clientWidth, clientHeight } = this.container;
      const room = {
        width: Math.max(clientWidth - 24, 100),
        height: Math.max(clientHeight - 24, 100),
        legible: LEGIBLE,
      };
      const placed = Layout.layout(
        sizes,
        near.map(({ start, end }) => [start, end]),
        room,
        this.parents(nodes),
      );
      const elements = [...this.outlines(placed.boxes)];
      for (const [name, made] of nodes) {
        const { x, y } = placed.boxes.get(name);
        elements.push({ group: "nodes", ...made, data: { id: name, ...made.data }, position: { x, y } });
      }
      placed.lines.forEach(({ start, end, points }, at) => {
        const texts = [...near[at].texts].join("\n");
        const data = { id: `e${at}`, source: start, target: end, texts };
        Object.assign(data, segments(points, placed.boxes.get(start), placed.boxes.get(end)));
        elements.push({ group: "edges", data, classes: points.length > 2 ? "bent" : "" });
      });
      far.forEach(({ start, end, texts }, at) => {
        const data = { id: `f${at}`, source: start, target: end, texts: [...texts].join("\n") };
        elements.push({ group: "edges", data, classes: "far" });
      });
      cy.batch(() => {
        cy.elements().remove();
        cy.add(elements);
      });
      this.order = [...nodes.keys()];
      if (this.selected && !nodes.has(this.selected)) this.selected = null;
      this.paint();
    }

    /** The innermost block of each box that is drawn. */
    parents(nodes) {
      const found = new Map();
      for (const name of nodes.keys()) {
        if (name[0] !== "b") continue;
        const block = this.blocksOf[Number(name.slice(1))].slice(-1)[0];
        if (block !== undefined) found.set(name, `p${block}`);
      }
      return found;
    }

    /**
     * Edges that are always drawn, and those that are drawn only if one of their boxes is selected: a value that many
     * boxes read, like a mask, would cover the picture with lines to the far ones.
     */
    split(edges, order) {
      const place = new Map(order.map((name, at) => [name, at]));
      const readers = new Map();
      for (const { start } of edges) readers.set(start, (readers.get(start) || 0) + 1);
      const isFar = ({ start, end }) => readers.get(start) > MANY_READERS && place.get(end) - place.get(start) > FAR;
      const near = edges.filter((edge) => !isFar(edge));
      const far = edges.filter(isFar);
      const drawn = new Set(near.map(({ start }) => start));
      for (const edge of [...far].sort((a, b) => place.get(a.end) - place.get(b.end))) {
        if (!drawn.has(edge.start)) {
          drawn.add(edge.start);
          near.push(edge);
          far.splice(far.indexOf(edge), 1);
        }
      }
      return [near, far];
    }

    /** A box as the canvas draws it. */
    box(at) {
      const box = this.module.boxes[at];
      const size = SIZES[box.kind];
      const colour = this.page.colour(box.backend);
      const line = (text) => cut(text, size.width - 14);
      const figures = Words.us(box.cost_us);
      const trees = box.facts.find(([name]) => name === "trees");
      const extent = trees ? `${trees[1]} trees` : Words.shape(box.writes[0]);
      const backend = this.mixed || !extent ? box.backend : "";
      const second = [backend, figures || extent].filter(Boolean).join(" · ");
      const small = box.kind === "conversion" || box.kind === "view";
      const end = box.kind === "input" || box.kind === "output";
      const mark = this.marked.has(box.region) ? "≠ " : "";
      let label = `${line(mark + box.label)}\n${line(second)}`;
      if (small) label = cut([mark + box.label, figures].filter(Boolean).join(" · "), size.width - 10, SMALL);
      if (end) label = `${line(box.label)}\n${line(Words.shape(box.writes[0] || box.reads[0]))}`;
      const classes = [small && "small", end && "end", mark && "marked"].filter(Boolean).join(" ");
      return {
        data: {
          ...size,
          label,
          colour: end ? this.page.theme().faint : colour.line,
          fill: end ? this.page.theme().raised : colour.tint,
        },
        classes,
      };
    }

    /** A folded block as the canvas draws it, with a stripe for each backend. */
    block(number) {
      const block = this.module.blocks[number];
      const sums = this.sums(number);
      const size = SIZES.block;
      const stops = [];
      const positions = [];
      let done = 0;
      for (const [backend, weight] of sums.weights) {
        const { tint } = this.page.colour(backend);
        stops.push(tint, tint);
        positions.push(`${(done * 100).toFixed(1)}%`, `${((done += weight) * 100).toFixed(1)}%`);
      }
      const line = (text) => cut(text, size.width - 18);
      const [first] = sums.weights;
      const mark = sums.marked ? "≠ " : "";
      const backends = sums.weights.length > 1 ? `${first[0]} and ${sums.weights.length - 1} more` : first[0];
      const what = Words.us(sums.us) ? `${sums.regions} kernels · ${Words.us(sums.us)}` : `${sums.regions} nodes`;
      const label = [line(`${mark}${block.label} ▸`), line(what), line(backends)].join("\n");
      const data = {
        ...size,
        label,
        stops: stops.join(" "),
        positions: positions.join(" "),
        colour: this.page.colour(first[0]).line,
        fill: this.page.colour(first[0]).tint,
      };
      return { data, classes: mark ? "block marked" : "block" };
    }

    /** The cost of a block, and its backends by their part of it. */
    sums(number) {
      const block = this.module.blocks[number];
      const found = new Map();
      let us = 0;
      let timed = false;
      let marked = false;
      const boxes = this.module.boxes.slice(block.first, block.end);
      for (const box of boxes) {
        timed = timed || box.cost_us !== null;
        us += box.cost_us || 0;
        marked = marked || this.marked.has(box.region);
      }
      for (const box of boxes) {
        const weight = us > 0 ? (box.cost_us || 0) / us : 1 / boxes.length;
        if (weight > 0) found.set(box.backend, (found.get(box.backend) || 0) + weight);
      }
      return { us: timed ? us : null, marked, regions: boxes.length, weights: [...found].sort((a, b) => b[1] - a[1]) };
    }

    /** Frames around the boxes of unfolded blocks, one in each column; a tap on one folds the block. */
    *outlines(boxes) {
      for (const [at, block] of this.module.blocks.entries()) {
        if (this.isRow(at) || this.folded.has(at) || (block.parent !== null && this.folded.has(block.parent))) continue;
        const frames = new Map();
        for (let box = block.first; box < block.end; box++) {
          const { x, y, width, height, column } = boxes.get(`b${box}`);
          const frame = frames.get(column) || { left: Infinity, right: -Infinity, top: Infinity, bottom: -Infinity };
          frame.left = Math.min(frame.left, x - width / 2 - 10);
          frame.right = Math.max(frame.right, x + width / 2 + 10);
          frame.top = Math.min(frame.top, y - height / 2 - 24);
          frame.bottom = Math.max(frame.bottom, y + height / 2 + 6);
          frames.set(column, frame);
        }
        for (const [column, { left, right, top, bottom }] of frames) {
          const label = cut(`${block.label} ▾`, right - left - 16);
          const data = {
            id: `o${at}-${column}`,
            label,
            shift: measuring.measureText(label).width * 0.54 + 10 - (right - left) / 2,
            width: right - left,
            height: bottom - top,
            fill: "#000",
            colour: "#000",
          };
          yield {
            group: "nodes",
            data,
            position: { x: (left + right) / 2, y: (top + bottom) / 2 },
            classes: "outline",
          };
        }
      }
    }

    /** Mark what is selected and found. */
    paint() {
      const { cy } = this;
      cy.batch(() => {
        cy.elements().removeClass("selected faded near");
        if (this.selected) {
          const node = cy.getElementById(this.selected);
          node.addClass("selected");
          node.connectedEdges().addClass("near");
        }
        if (this.found.size) {
          const kept = new Set([...this.found].map((box) => this.shown(box)));
          cy.nodes().forEach((node) => {
            if (!kept.has(node.id()) && !node.hasClass("outline")) node.addClass("faded");
          });
        }
      });
    }

    select(name, { centre = false, quiet = false } = {}) {
      this.selected = name;
      this.paint();
      if (name && centre) this.show(name);
      if (!quiet) this.page.select(this, name);
    }

    /** Select a box, wherever it is: blocks that it is in are unfolded. */
    reveal(box, options = {}) {
      const inside = this.blocksOf[box].filter((each) => this.folded.has(each));
      if (inside.length) {
        inside.forEach((each) => this.folded.delete(each));
        this.draw();
      }
      this.select(`b${box}`, { centre: true, ...options });
    }

    /** Move the canvas so that the box is in it, large enough to be read. */
    show(name) {
      const node = this.cy.getElementById(name);
      if (node.empty()) return;
      if (this.cy.zoom() < LEGIBLE) this.cy.zoom(LEGIBLE);
      const seen = this.cy.extent();
      const { x1, x2, y1, y2 } = node.boundingBox();
      if (x1 < seen.x1 || x2 > seen.x2 || y1 < seen.y1 || y2 > seen.y2) this.cy.center(node);
    }

    /** The whole network if it can be read so, and else its beginning. */
    home() {
      const { cy } = this;
      cy.resize();
      cy.fit(undefined, 12);
      if (cy.zoom() > 1.15) {
        cy.zoom(1.15);
        cy.center();
      }
      if (cy.zoom() < LEGIBLE) {
        cy.zoom(LEGIBLE);
        const { x1, x2, y1, w } = cy.elements().boundingBox();
        const first = cy.getElementById(this.order[0]).position();
        const [left, right] = [12 - x1 * LEGIBLE, cy.width() - 12 - x2 * LEGIBLE];
        const centred = Math.max(right, Math.min(left, cy.width() / 2 - first.x * LEGIBLE));
        const fits = w * LEGIBLE <= cy.width() - 8;
        const isNearTop = (first.y - y1) * LEGIBLE < cy.height() / 2;
        cy.pan({
          x: fits ? (left + right) / 2 : centred,
          y: fits || isNearTop ? 12 - y1 * LEGIBLE : 48 - first.y * LEGIBLE,
        });
      }
    }

    fit() {
      this.cy.resize();
      this.cy.fit(undefined, 12);
    }

    zoom(factor) {
      const { cy } = this;
      cy.zoom({ level: cy.zoom() * factor, renderedPosition: { x: cy.width() / 2, y: cy.height() / 2 } });
    }

    unfold(block) {
      this.folded.delete(block);
      this.draw();
      const first = this.shown(this.module.blocks[block].first);
      this.select(first, { quiet: true });
      this.show(first);
    }

    fold(block) {
      this.folded.add(block);
      this.draw();
      const name = this.shown(this.module.blocks[block].first);
      this.select(name);
      this.show(name);
    }

    /** Unfold everything, or fold what is folded at first, or all blocks if nothing is. */
    foldAll(folded) {
      const { blocks } = this.module;
      const first = blocks.some((block) => block.folded);
      const isFolded = (block, at) => folded && (first ? block.folded : !this.isRow(at));
      this.folded = new Set(blocks.flatMap((block, at) => (isFolded(block, at) ? [at] : [])));
      this.draw();
      this.home();
      this.select(null);
    }

    /** Whether a block is a row of blocks. */
    isRow(at) {
      return this.module.blocks.some((each) => each.parent === at);
    }

    /** The positions of all boxes that have the text in their names, operators or backend. */
    search(text) {
      const wanted = text.trim().toLowerCase();
      const has = (box) =>
        [box.label, box.backend, ...box.ops, ...box.sources].some((each) => each.toLowerCase().includes(wanted));
      const matches = wanted ? this.module.boxes.flatMap((box, at) => (has(box) ? [at] : [])) : [];
      this.found = new Set(matches);
      this.paint();
      return matches;
    }

    /** Select the next box or block, or the one before. */
    step(by) {
      const at = this.order.indexOf(this.selected);
      const next =
        at < 0 ? (by > 0 ? 0 : this.order.length - 1) : Math.max(0, Math.min(this.order.length - 1, at + by));
      this.select(this.order[next], { centre: true, quiet: true });
      this.page.say(this.hint(this.cy.getElementById(this.selected)));
    }

    key(event) {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const pans = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] };
      const steps = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 };
      if (event.key in pans && (event.shiftKey || !this.selected))
        this.cy.panBy({ x: pans[event.key][0], y: pans[event.key][1] });
      else if (event.key in steps) this.step(steps[event.key]);
      else if (event.key === "n" || event.key === "p") this.step(event.key === "n" ? 1 : -1);
      else if (event.key === "+" || event.key === "=") this.zoom(1.25);
      else if (event.key === "-") this.zoom(0.8);
      else if (event.key === "0") this.fit();
      else if (event.key === "Enter" || event.key === " ") {
        if (!this.selected) this.step(1);
        else if (this.selected[0] === "g") this.unfold(Number(this.selected.slice(1)));
        else this.page.select(this, this.selected, true);
      } else if (event.key === "f" && this.selected && this.selected[0] === "b") {
        const block = this.blocksOf[Number(this.selected.slice(1))].slice(-1)[0];
        if (block !== undefined) this.fold(block);
      } else if (event.key === "Escape") this.select(null);
      else return;
      event.preventDefault();
    }

    /** What is said of a box, a block or an edge if the pointer is on it. */
    hint(element) {
      const id = element.id();
      if (id[0] === "e" || id[0] === "f") return element.data("texts");
      if (id[0] === "o") return "Fold this block";
      if (id[0] === "g") {
        const number = Number(id.slice(1));
        const sums = this.sums(number);
        const parts = sums.weights.map(([backend, weight]) => `${backend} ${Math.round(weight * 100)} %`).join(", ");
        return [this.module.blocks[number].label, Words.us(sums.us), parts, "Select to unfold"]
          .filter(Boolean)
          .join("\n");
      }
      const box = this.module.boxes[Number(id.slice(1))];
      const format = box.facts.find(([label]) => label === "format");
      return [
        [box.label, box.backend].filter(Boolean).join(" · "),
        Words.us(box.cost_us),
        box.reads.length ? `reads ${box.reads.join(", ")}` : "",
        box.writes.length ? `writes ${box.writes.join(", ")}` : "",
        format ? `format ${format[1]}` : "",
        box.sources.slice(0, 4).join(", ") + (box.sources.length > 4 ? ` and ${box.sources.length - 4} more` : ""),
      ]
        .filter(Boolean)
        .join("\n");
    }

    /** Take the colours of the page, which have changed. */
    restyle() {
      const { cy } = this;
      cy.style(this.style());
      cy.batch(() => {
        for (const name of this.order) {
          const number = Number(name.slice(1));
          cy.getElementById(name).data((name[0] === "g" ? this.block(number) : this.box(number)).data);
        }
      });
    }
  }

  return { View };
})();
