"use strict";

/** The page of a module: the networks and all panels around them. */
(() => {
  const { make, draw, table, us, times, percent } = Words;
  const data = JSON.parse(document.getElementById("data").textContent);
  const body = (id) => document.querySelector(`#${id} .body`);
  const MOST_ROWS = 300;
  const SMALLEST_LABEL = 46;

  // Okabe and Ito's colours, which colour-blind readers can tell apart; each box has its backend's name, too.
  const PALETTE = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#8c6bb1"];
  const GREY = "#8a8f98";
  const QUIET = new Set(["layout", "view", ""]);

  const comparison = data.comparison;
  const backends = (module) => [
    ...module.shares.map((each) => each.backend),
    ...module.boxes.map((each) => each.backend),
    ...module.costly.flatMap((each) => (each.runner_up ? [each.runner_up.backend] : [])),
  ];
  const names = [...new Set(data.modules.flatMap(backends))];
  const colours = new Map(
    names.filter((name) => !QUIET.has(name)).map((name, at) => [name, PALETTE[at % PALETTE.length]]),
  );
  const solid = (backend) => colours.get(backend) || GREY;

  function theme() {
    const found = getComputedStyle(document.documentElement);
    const value = (name) => found.getPropertyValue(`--${name}`).trim();
    return Object.fromEntries(
      ["surface", "raised", "text", "faint", "edge", "accent", "mark"].map((name) => [name, value(name)]),
    );
  }

  /** The colour of a backend's frames, and its tint under text. */
  function colour(backend) {
    const line = solid(backend);
    const under = theme().surface;
    const parts = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
    const [one, other] = [parts(line), parts(under)];
    const tint = one.map((each, at) => Math.round(each * 0.28 + other[at] * 0.72));
    return { line, tint: `rgb(${tint.join(",")})` };
  }

  const small = (text) => make("span", { class: "small" }, text);
  const swatch = (backend) =>
    make("span", { class: "swatch", style: { background: solid(backend) }, "aria-hidden": "true" });

  let views = [];
  let current = 0;
  let opener = null;

  const page = {
    theme,
    colour,
    tip,
    say: (text) => views.forEach((view) => view.status(text.split("\n").slice(0, 2).join(", "))),
    select(view, name, focus = false) {
      if (comparison && name && name[0] === "b") {
        const node = view.module.boxes[Number(name.slice(1))].nodes[0];
        for (const other of views) if (other !== view) revealNode(other, node);
      }
      details(view, name, focus);
    },
  };

  function revealNode(view, node) {
    const at = view.module.boxes.findIndex((box) => box.nodes.includes(node));
    if (at >= 0 && view.selected !== `b${at}`) view.reveal(at, { quiet: true });
  }

  function tip(text, event) {
    const found = document.getElementById("tip");
    found.hidden = !text || !event;
    if (found.hidden) return;
    found.textContent = text;
    const { clientX, clientY } = event;
    const { offsetWidth, offsetHeight } = found;
    found.style.left = `${Math.max(4, Math.min(clientX + 14, innerWidth - offsetWidth - 8))}px`;
    found.style.top = `${clientY + 18 + offsetHeight > innerHeight ? Math.max(4, clientY - offsetHeight - 12) : clientY + 18}px`;
  }

  // The network with its tools.

  function network(module, marked) {
    const search = make("input", {
      type: "search",
      placeholder: "Search (/)",
      "aria-label": `Search the network ${module.title}`.trim(),
    });
    const status = make("span", { class: "status", role: "status", "aria-live": "polite" });
    const keys =
      "Arrow keys move, Enter opens or unfolds, f folds, plus and minus zoom, 0 shows all, slash searches, Escape closes.";
    const canvas = make("div", {
      class: "canvas",
      tabindex: "0",
      role: "application",
      "aria-label": `The network ${module.title}. ${keys}`,
    });
    const button = (label, text, act) =>
      make("button", { type: "button", "aria-label": label, title: label, onclick: act }, text);
    const tools = make(
      "div",
      { class: "tools", role: "toolbar", "aria-label": "Tools of the network" },
      search,
      status,
      button("Zoom in (+)", "+", () => view.zoom(1.25)),
      button("Zoom out (-)", "−", () => view.zoom(0.8)),
      button("Show the whole network (0)", "Fit", () => view.fit()),
    );
    if (module.blocks.length) {
      tools.append(
        button("Fold all blocks", "Fold all", () => view.foldAll(true)),
        button("Unfold all blocks", "Unfold all", () => view.foldAll(false)),
      );
    }
    const parts = [tools, canvas];
    if (comparison) parts.unshift(make("h3", {}, `${module.title}: ${module.headline}`));
    document
      .getElementById("networks")
      .append(make("section", { class: "network", "aria-label": "Network" }, ...parts));
    const view = new Network.View(canvas, module, page, marked);
    view.status = (text) => (status.textContent = text);
    let matches = [];
    let at = -1;
    search.addEventListener("input", () => {
      matches = view.search(search.value);
      at = -1;
      view.status(search.value.trim() ? `${matches.length} found` : "");
    });
    search.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && matches.length) {
        at = (at + (event.shiftKey ? matches.length - 1 : 1)) % matches.length;
        view.reveal(matches[at]);
        view.status(`${at + 1} of ${matches.length}`);
      } else if (event.key === "Escape") {
        search.value = "";
        matches = view.search("");
        view.status("");
        canvas.focus();
      }
    });
    return view;
  }

  // Panels.

  function bar(label, figure, share, fill, { ours = false, noise = null, classes = "" } = {}) {
    const track = make(
      "div",
      { class: "track" },
      make("div", { class: "fill", style: { width: `${share * 100}%`, background: fill } }),
    );
    if (noise && noise.width > 0.03)
      track.append(
        make("div", { class: "noise", style: { left: `${noise.left * 100}%`, width: `${noise.width * 100}%` } }),
      );
    const name = make("span", { class: "name" }, label);
    return make(
      "div",
      { class: `bar ${ours ? "ours" : ""} ${classes}` },
      name,
      make("span", { class: "figure" }, figure),
      track,
    );
  }

  function contenders(module) {
    const most = Math.max(...module.contenders.map((each) => each.us + each.noise_us));
    const found = module.contenders.map((each) => {
      const left = Math.max(0, each.us - each.noise_us);
      const noise = { left: left / most, width: (each.us + each.noise_us - left) / most };
      const figure = each.ours ? us(each.us) : `${us(each.us)} · ${times(each.times)}`;
      return bar(each.label, figure, each.us / most, each.ours ? theme().accent : GREY, { ours: each.ours, noise });
    });
    body("contenders").replaceChildren(...found);
    if (!found.length) body("contenders").append(make("p", { class: "note" }, "Nothing was measured."));
    else
      body("contenders").append(
        make("p", { class: "note" }, "Medians of the last race; the thin line is the 95 % interval."),
      );
  }

  function shares(module) {
    const rows = module.shares.map((each) => {
      const kernels = `${each.kernels} kernel${each.kernels === 1 ? "" : "s"}`;
      const label = make(
        "span",
        {},
        swatch(each.backend),
        each.backend === "layout" ? "conversions (layout)" : each.backend,
      );
      return bar(
        label,
        [kernels, percent(each.share)].filter(Boolean).join(" · "),
        each.share || 0,
        solid(each.backend),
      );
    });
    body("shares").replaceChildren(...rows);
  }

  function go(box, view = views[0]) {
    view.container.scrollIntoView({ block: "nearest" });
    view.reveal(box);
  }

  function costly(module) {
    const most = Math.max(
      ...module.costly.map((each) => each.us * Math.max(1, each.runner_up ? each.runner_up.times : 1)),
      0,
    );
    const found = module.costly.map((each) => {
      const box = module.boxes[each.box];
      const label = make(
        "button",
        { type: "button", class: "link", onclick: () => go(each.box) },
        box.sources[0] || box.label,
      );
      const pair = [
        bar(
          make("span", {}, swatch(box.backend), `${box.backend}: `, label),
          us(each.us),
          each.us / most,
          solid(box.backend),
        ),
      ];
      const other = each.runner_up;
      if (other) {
        const name = [other.backend, other.how].filter(Boolean).join(", ");
        const figure = `${other.at_least ? "≥ " : ""}${times(other.times)}`;
        pair.push(
          bar(`runner-up: ${name}`, figure, Math.min(1, (each.us * other.times) / most), solid(other.backend), {
            classes: "runner",
          }),
        );
      } else pair.push(make("p", { class: "note" }, "No other candidate for exactly these operators was compared."));
      return make("div", { class: "pair" }, ...pair);
    });
    body("costly").replaceChildren(...found);
    document.getElementById("costly").hidden = !found.length || comparison;
  }

  function regions(module) {
    const listed = module.boxes.flatMap((box, at) =>
      box.region === null || box.kind === "engine" ? [] : [{ box, at }],
    );
    listed.sort((a, b) => a.box.region - b.box.region);
    const total = listed.reduce((sum, { box }) => sum + (box.cost_us || 0), 0);
    const rows = listed.map(({ box, at }) => ({
      cells: [
        box.region,
        make("span", { class: "backend" }, swatch(box.backend), box.backend),
        make(
          "button",
          { type: "button", class: "link", onclick: () => go(at) },
          box.ops.length > 6 ? box.label : box.ops.join(" + "),
        ),
        box.sources.slice(0, 3).join(", ") + (box.sources.length > 3 ? ` and ${box.sources.length - 3} more` : ""),
        box.facts.map(([label, text]) => `${label} ${text}`).join("; "),
        us(box.cost_us),
        box.cost_us === null || !total ? "" : percent(box.cost_us / total),
      ],
    }));
    const found = document.getElementById("regions");
    found.hidden = !rows.length || comparison;
    found.querySelector("summary").textContent = `Kernels (${rows.length})`;
    const fill = () =>
      body("regions").replaceChildren(
        table("Kernels", [">#", "Backend", "Operators", "ONNX nodes", "How", ">Cost", ">Share"], rows),
        ...module.notes.map((note) => make("p", { class: "note" }, note)),
      );
    found.ontoggle = () => found.open && fill();
    if (found.open) fill();
  }

  function rejected(module) {
    const found = document.getElementById("rejected");
    found.hidden = !module.rejected.length || comparison;
    const rows = module.rejected.map((cells) => ({ cells }));
    body("rejected").replaceChildren(
      table("Rejected candidates", ["Backend", "Reason", ">Count", "The most frequent one"], rows),
    );
  }

  function facts(module) {
    const found = module.facts.flatMap(([label, text]) => [make("dt", {}, label), make("dd", {}, text)]);
    body("facts").replaceChildren(make("dl", {}, ...found));
    document.getElementById("facts").hidden = comparison;
  }

  function differences() {
    document.getElementById("differences").hidden = !comparison;
    if (!comparison) return;
    const [one, other] = data.modules;
    const side = (each) => [each.backends.join(" + "), each.how.join("; "), us(each.us)].filter(Boolean).join(" · ");
    const rows = comparison.differences.map((each) => {
      const at = one.boxes.findIndex((box) => box.nodes.some((node) => each.nodes.includes(node)));
      const label = each.sources.length
        ? `${each.sources[0]}${each.sources.length > 1 ? ` and ${each.sources.length - 1} more` : ""}`
        : each.ops.join(" + ");
      const gained = each.one.us - each.other.us;
      return {
        cells: [
          at < 0 ? label : make("button", { type: "button", class: "link", onclick: () => go(at) }, label),
          side(each.one),
          side(each.other),
          `${gained >= 0 ? "−" : "+"}${us(Math.abs(gained))}`,
        ],
      };
    });
    const changed = rows.length
      ? table("Differences", ["Nodes", one.title, other.title, ">Cost"], rows)
      : make("p", { class: "note" }, "All operators run on the same kernels.");
    const said =
      comparison.unlike ||
      `${rows.length} group${rows.length === 1 ? "" : "s"} of operators on other kernels, with ≠ in the networks.`;
    const note = make("p", { class: "note" }, said);
    body("differences").replaceChildren(note, comparison.unlike ? "" : changed);
  }

  // The time line.

  let stretch = 1;

  /** A round time, without the zeros of `us`. */
  const round = (at) => (at < 1000 ? `${Number(at.toPrecision(3))} us` : `${Number((at / 1000).toPrecision(3))} ms`);

  function timeline(module) {
    const line = module.time_line;
    document.getElementById("timeline").hidden = line.bars.length < 2 || !line.end_us || comparison;
    if (document.getElementById("timeline").hidden) return;
    const place = body("timeline");
    const [left, height, axis] = [86, 44, 22];
    const room = Math.max(place.clientWidth - 2, 300);
    const width = left + (room - left - 8) * stretch;
    const x = (at) => left + (at / line.end_us) * (width - left - 8);
    const first = new Map();
    module.boxes.forEach((box, at) => box.region !== null && !first.has(box.region) && first.set(box.region, at));
    const parts = [];
    const tick = 10 ** Math.floor(Math.log10(line.end_us / (4 * stretch)));
    const steps = [1, 2, 5, 10].map((each) => each * tick).find((each) => line.end_us / each <= 10 * stretch);
    for (let at = 0; at <= line.end_us; at += steps) {
      parts.push(
        draw("line", {
          x1: x(at),
          x2: x(at),
          y1: axis - 4,
          y2: axis + line.rows.length * height,
          stroke: "var(--line)",
        }),
      );
      if (x(at) < width - 60) parts.push(draw("text", { x: x(at) + 3, y: 13 }, at ? round(at) : "0"));
    }
    line.rows.forEach((row, at) => parts.push(draw("text", { x: 6, y: axis + at * height + height / 2 + 4 }, row)));
    for (const wait of line.waits) {
      const size = {
        x: x(wait.start_us),
        y: axis + wait.row * height + 8,
        width: Math.max(0.5, x(wait.end_us) - x(wait.start_us)),
        height: height - 16,
      };
      const said = `waiting ${us(wait.end_us - wait.start_us)}`;
      parts.push(
        draw("rect", {
          ...size,
          fill: "url(#waiting)",
          onmousemove: (event) => tip(said, event),
          onmouseleave: () => tip("", null),
        }),
      );
    }
    for (const each of line.bars) {
      const box = module.boxes[first.get(each.region)];
      const [start, end] = [x(each.start_us), x(each.end_us)];
      const size = {
        x: start,
        y: axis + each.first * height + 3,
        width: Math.max(0.7, end - start - 0.4),
        height: (each.end - each.first) * height - 6,
      };
      const conversion = box.kind === "conversion";
      const said = [
        `${box.label} · ${box.backend}`,
        us(each.end_us - each.start_us),
        box.sources.slice(0, 3).join(", "),
      ]
        .filter(Boolean)
        .join("\n");
      const acts = {
        onclick: () => go(first.get(each.region)),
        onmousemove: (event) => tip(said, event),
        onmouseleave: () => tip("", null),
      };
      parts.push(
        draw("rect", {
          ...size,
          fill: conversion ? "url(#converting)" : colour(box.backend).tint,
          stroke: solid(box.backend),
          "stroke-width": size.width > 3 ? 1.5 : 0.5,
          ...acts,
        }),
      );
      if (size.width > SMALLEST_LABEL && !conversion) {
        const most = Math.floor((size.width - 8) / 6.6);
        parts.push(
          draw(
            "text",
            { x: start + 5, y: size.y + size.height / 2 + 4, "pointer-events": "none" },
            box.backend.length > most ? `${box.backend.slice(0, most - 1)}…` : box.backend,
          ),
        );
      }
    }
    const stripes = (id, stroke) =>
      draw(
        "pattern",
        { id, width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
        draw("line", { x1: 0, x2: 0, y1: 0, y2: 7, stroke, "stroke-width": id === "waiting" ? 2 : 5 }),
      );
    const total = axis + line.rows.length * height + 6;
    const label = `Time line of ${line.bars.length} launches in ${us(line.end_us)}; the table of kernels has the same figures.`;
    const svg = draw(
      "svg",
      { width, height: total, viewBox: `0 0 ${width} ${total}`, role: "img", "aria-label": label },
      draw("defs", {}, stripes("waiting", "var(--line)"), stripes("converting", GREY)),
      ...parts,
    );
    const button = (label_, text, by) =>
      make(
        "button",
        {
          type: "button",
          "aria-label": label_,
          onclick: () => ((stretch = Math.max(1, Math.min(64, stretch * by))), timeline(module)),
        },
        text,
      );
    const waits = line.waits.reduce((sum, each) => sum + each.end_us - each.start_us, 0);
    const conversions = line.bars.filter((each) => module.boxes[first.get(each.region)].kind === "conversion");
    const said = [
      `${line.bars.length} launch${line.bars.length === 1 ? "" : "es"}, ${us(line.end_us)} by the measured costs of each`,
      conversions.length
        ? `${conversions.length} conversion${conversions.length === 1 ? "" : "s"} (striped), ${us(conversions.reduce((sum, each) => sum + each.end_us - each.start_us, 0))}`
        : "no conversions",
      waits > 0 ? `threads wait ${us(waits)} (thin stripes)` : "no waiting",
    ].join("; ");
    place.replaceChildren(
      make(
        "div",
        { class: "head" },
        button("Shorten the time line", "−", 0.5),
        button("Stretch the time line", "+", 2),
        make("span", { class: "note" }, said),
      ),
      make("div", { class: "strip", tabindex: "0", role: "region", "aria-label": "Time line" }, svg),
    );
  }

  // Details of what is selected.

  function candidates(module, box) {
    const kept = new Map();
    for (const node of box.nodes) for (const row of module.covering[node] || []) kept.set(row, module.candidates[row]);
    const [, , , , VERDICT, , COST, , , LEAST] = Array.from({ length: 10 }, (_, at) => at);
    const rank = (row) => [
      module.texts[row[VERDICT]] === "chosen" ? 0 : 1,
      row[COST] === null && row[LEAST] === null ? 1 : 0,
      row[COST] ?? row[LEAST] ?? 0,
    ];
    const rows = [...kept.values()].sort((a, b) => rank(a).reduce((found, each, at) => found || each - rank(b)[at], 0));
    const text = (at) => module.texts[at];
    const shown = rows.slice(0, MOST_ROWS).map((row) => {
      const [backend, pattern, layout, split, verdict] = row.slice(0, 5).map(text);
      const [operators, cost, noise, inside, least] = row.slice(5);
      const alone =
        cost !== null ? us(cost) + (noise ? ` ± ${us(noise)}` : "") : least !== null ? `≥ ${us(least)}` : "";
      const how = [
        layout === "plain" ? "" : layout,
        split,
        `${operators} operator${operators === 1 ? "" : "s"}`,
        pattern,
      ];
      return {
        class: verdict === "chosen" ? "chosen" : null,
        cells: [
          make("span", { class: "backend" }, swatch(backend), backend),
          make("span", {}, alone, inside !== null ? small(`${us(inside)} in place`) : ""),
          make("span", {}, verdict, small(how.filter(Boolean).join("; "))),
        ],
      };
    });
    const parts = [make("h3", {}, `Candidates (${rows.length})`)];
    if (!rows.length) return [...parts, make("p", { class: "note" }, "No candidate is known for these nodes.")];
    parts.push(table("Candidates", ["Backend", ">Time alone", "Verdict, and what it is"], shown));
    if (rows.length > shown.length)
      parts.push(
        make("p", { class: "note" }, `and ${rows.length - shown.length} more: collage show --explain lists them.`),
      );
    return parts;
  }

  function list(title, texts) {
    if (!texts.length) return [];
    const items = texts.slice(0, MOST_ROWS).map((text) => make("li", {}, text));
    return [
      make("h3", {}, title),
      make(
        "div",
        { class: "scroll", tabindex: "0", role: "region", "aria-label": title },
        make("ul", { class: "names" }, ...items),
      ),
    ];
  }

  function details(view, name, focus) {
    const panel = document.getElementById("details");
    panel.hidden = !name || name[0] !== "b";
    if (panel.hidden) return;
    const { module } = view;
    const box = module.boxes[Number(name.slice(1))];
    const entries = [];
    const entry = (label, text) => text && entries.push(make("dt", {}, label), make("dd", {}, text));
    const kinds = {
      engine: "one node of what the engine runs whole",
      conversion: "conversion between formats",
      view: "shares its input's memory and launches nothing",
      input: "input of the model",
      output: "output of the model",
    };
    entry("kind", kinds[box.kind] || "");
    entry("backend", box.backend && make("span", {}, swatch(box.backend), box.backend));
    entry("cost", box.cost_us === null ? "" : `${us(box.cost_us)}${box.noise_us ? ` ± ${us(box.noise_us)}` : ""}`);
    for (const [label, text] of box.facts) entry(label, text);
    for (const text of box.reads) entry("reads", text);
    for (const text of box.writes) entry("writes", text);
    const readers = module.edges.filter((edge) => edge.start === Number(name.slice(1))).length;
    if (readers > 4) entry("read by", `${readers} boxes; edges to far ones are drawn while this one is selected`);
    const nodes = box.nodes
      .map((node) => module.names[node])
      .filter(Boolean)
      .map(([op, source, types]) => [op, source && `from ${source}`, types].filter(Boolean).join(" "));
    document.getElementById("details-title").textContent = comparison ? `${module.title}: ${box.label}` : box.label;
    const block = view.blocksOf[Number(name.slice(1))].slice(-1)[0];
    const fold =
      block === undefined
        ? []
        : [
            make(
              "p",
              {},
              make("button", { type: "button", onclick: () => view.fold(block) }, `Fold ${module.blocks[block].label}`),
            ),
          ];
    body("details").replaceChildren(
      make("dl", {}, ...entries),
      ...fold,
      ...(box.nodes.length ? candidates(module, box) : []),
      ...list("Operators and their ONNX nodes", nodes),
    );
    panel.scrollTop = 0;
    document.querySelector("aside").scrollTop = 0;
    opener = view.container;
    if (focus) panel.focus();
  }

  function close() {
    if (document.getElementById("details").hidden) return;
    document.getElementById("details").hidden = true;
    views.forEach((view) => view.select(null, { quiet: true }));
    if (opener) opener.focus();
  }

  // The whole page.

  function headline(module) {
    const [time] = module.headline.match(/^not measured|^[^ ]+ [^ :,]+|^/);
    const rest = module.headline.slice(time.length).replace(/^[:,] /, "");
    document.getElementById("headline").replaceChildren(make("strong", {}, time), rest);
  }

  function show(number) {
    current = number;
    const module = data.modules[number];
    const changed = (side) => new Set(comparison.differences.flatMap((each) => each[side].regions));
    document.getElementById("networks").replaceChildren();
    document.getElementById("details").hidden = true;
    views = comparison
      ? [network(data.modules[0], changed("one")), network(data.modules[1], changed("other"))]
      : [network(module, new Set())];
    document.getElementById("contenders").hidden = document.getElementById("shares").hidden = false;
    if (!comparison) headline(module);
    panels();
    requestAnimationFrame(() => views.forEach((view) => view.home())); // now that all parts have their widths
  }

  function panels() {
    const module = data.modules[current];
    for (const fill of [contenders, shares, costly, regions, rejected, facts, timeline]) fill(module);
    differences();
    if (comparison) {
      const [one, other] = data.modules;
      document.getElementById("contenders-title").textContent = "Totals";
      body("contenders").replaceChildren(
        table(
          "Totals",
          ["", one.title, other.title],
          comparison.totals.map((cells) => ({ cells })),
        ),
      );
      body("shares").replaceChildren(
        ...[...colours.keys()].map((name) => make("p", { class: "note" }, swatch(name), name)),
      );
    }
  }

  const isDark = () => getComputedStyle(document.documentElement).colorScheme === "dark";
  const nameTheme = () => (document.getElementById("theme").textContent = isDark() ? "Light" : "Dark");

  function themed() {
    nameTheme();
    views.forEach((view) => view.restyle());
    panels();
  }

  document.querySelector("header").hidden = document.querySelector("main").hidden = false;
  document.getElementById("model").textContent = comparison
    ? `${data.modules[0].title} and ${data.modules[1].title}`
    : data.model;
  if (data.modules.length > 1 && !comparison) {
    const choice = document.getElementById("placement");
    choice.append(...data.modules.map((module, at) => make("option", { value: at }, module.title)));
    choice.addEventListener("change", () => show(Number(choice.value)));
    document.getElementById("shapes").hidden = false;
  }
  document.getElementById("close").addEventListener("click", close);
  document.getElementById("theme").addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    themed();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", themed);
  document.addEventListener("keydown", (event) => {
    const typing = ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName);
    if (event.key === "/" && !typing) {
      event.preventDefault();
      document.querySelector(".tools input").focus();
    } else if (event.key === "Escape" && !typing) close();
  });
  let resized = 0;
  let width = innerWidth;
  addEventListener("resize", () => {
    clearTimeout(resized);
    resized = setTimeout(() => {
      if (innerWidth === width) return;
      width = innerWidth;
      views.forEach((view) => (view.draw(), view.home()));
      timeline(data.modules[current]);
    }, 150);
  });
  nameTheme();
  show(0);
})();
