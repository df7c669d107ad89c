"use strict";

/**
 * Where the boxes of a network are drawn. Dagre puts them in ranks from top to bottom; a deep network is then cut into
 * columns that stand side by side, so that it fills the canvas.
 */
const Layout = (() => {
  const GUTTER = 44; // between columns
  const LANE = 6; // between edges that go from column to column
  const LANES = 5;
  const MARGIN = 48; // above and below columns, for these edges
  const MOST_COLUMNS = 12;
  const MOST_RANKED = 1200; // dagre recurses along a network, and takes seconds for more

  /**
   * Positions of boxes and points of edges, in the canvas's units.
   *
   * `sizes` has width and height of each box by its name, `edges` are pairs of names, and `room` is the canvas: its
   * width and height in pixels, and the least zoom at which texts can be read. Boxes with the same one of `parents` stay
   * together.
   */
  function layout(sizes, edges, room, parents) {
    const ranked = sizes.size > MOST_RANKED ? rows(sizes, edges) : ranks(sizes, edges, parents);
    const cuts = columns(ranked, room);
    return arrange(ranked, cuts);
  }

  function ranks(sizes, edges, parents) {
    const graph = new dagre.graphlib.Graph({ compound: parents.size > 0 });
    const ranker = sizes.size > 300 ? "tight-tree" : "network-simplex";
    graph.setGraph({ rankdir: "TB", nodesep: 18, ranksep: 28, edgesep: 12, marginx: 8, marginy: 8, ranker });
    graph.setDefaultEdgeLabel(() => ({}));
    for (const [name, size] of sizes) graph.setNode(name, { width: size.width, height: size.height });
    for (const [start, end] of edges) graph.setEdge(start, end);
    for (const [name, parent] of parents) {
      graph.setNode(parent, {});
      graph.setParent(name, parent);
    }
    dagre.layout(graph);
    const boxes = new Map();
    for (const [name, size] of sizes) {
      const { x, y } = graph.node(name);
      boxes.set(name, { x, y, width: size.width, height: size.height });
    }
    const lines = edges.map(([start, end]) => ({ start, end, points: graph.edge(start, end).points }));
    return { boxes, lines, width: graph.graph().width, height: graph.graph().height };
  }

  /** Ranks without crossings in mind: each box is in the row below the last one that it reads. */
  function rows(sizes, edges) {
    const before = new Map([...sizes.keys()].map((name) => [name, []]));
    for (const [start, end] of edges) before.get(end).push(start);
    const row = new Map();
    for (const name of sizes.keys()) row.set(name, 1 + Math.max(-1, ...before.get(name).map((each) => row.get(each) ?? 0)));
    const members = [];
    for (const [name, at] of row) (members[at] ??= []).push(name);
    const widths = members.map((names) => names.reduce((sum, name) => sum + sizes.get(name).width + 18, -18));
    const width = Math.max(...widths);
    const boxes = new Map();
    let top = 8;
    members.forEach((names, at) => {
      const height = Math.max(...names.map((name) => sizes.get(name).height));
      let left = 8 + (width - widths[at]) / 2;
      for (const name of names) {
        const size = sizes.get(name);
        boxes.set(name, { x: left + size.width / 2, y: top + height / 2, width: size.width, height: size.height });
        left += size.width + 18;
      }
      top += height + 28;
    });
    const lines = edges.map(([start, end]) => {
      const [one, other] = [boxes.get(start), boxes.get(end)];
      const points = [
        { x: one.x, y: one.y + one.height / 2 },
        { x: other.x, y: other.y - other.height / 2 },
      ];
      return { start, end, points };
    });
    return { boxes, lines, width: width + 16, height: top };
  }

  /** The heights at which the picture is cut into columns: none, if one column can be seen best. */
  function columns(ranked, room) {
    const places = gaps(ranked);
    let best = null;
    let widest = null;
    for (let count = 1; count <= MOST_COLUMNS; count++) {
      const cuts = cut(ranked, places, count);
      if (cuts.length < count - 1) break;
      const spans = spansOf(ranked, cuts);
      const width = spans.reduce((sum, span) => sum + span.right - span.left + GUTTER, -GUTTER);
      const height = Math.max(...spans.map((span) => span.height)) + (count > 1 ? 2 * MARGIN : 0);
      const zoom = Math.min(room.width / width, room.height / height, 1);
      if (!best || zoom > best.zoom * 1.05) best = { zoom, cuts };
      if (count === 1 || width * room.legible <= room.width) widest = { zoom, cuts };
    }
    return (best.zoom < room.legible ? widest : best).cuts;
  }

  /** Up to `count - 1` cuts in places that few edges cross, at about equal distances. */
  function cut(ranked, places, count) {
    const cuts = [];
    const reach = ranked.height / count / 3;
    for (let number = 1; number < count; number++) {
      const ideal = (ranked.height * number) / count;
      let found = null;
      for (const place of places) {
        if (Math.abs(place.y - ideal) > reach || place.y <= (cuts[cuts.length - 1] || 0)) continue;
        const badness = place.crossing + (3 * Math.abs(place.y - ideal)) / reach;
        if (!found || badness < found.badness) found = { y: place.y, badness };
      }
      if (found) cuts.push(found.y);
    }
    return cuts;
  }

  const columnOf = (cuts, y) => cuts.filter((each) => y > each).length;

  /** The left and right end and the height of each column. */
  function spansOf(ranked, cuts) {
    const spans = Array.from({ length: cuts.length + 1 }, (_, number) => ({
      left: Infinity,
      right: -Infinity,
      height: (number < cuts.length ? cuts[number] : ranked.height) - (number ? cuts[number - 1] : 0),
    }));
    const widen = (y, left, right) => {
      const span = spans[columnOf(cuts, y)];
      span.left = Math.min(span.left, left);
      span.right = Math.max(span.right, right);
    };
    for (const { x, y, width } of ranked.boxes.values()) widen(y, x - width / 2, x + width / 2);
    for (const line of ranked.lines) for (const { x, y } of line.points) widen(y, x, x);
    return spans;
  }

  /** The heights between boxes that cut no box, with the number of edges that cross each. */
  function gaps(ranked) {
    const boxes = [...ranked.boxes.values()].sort((a, b) => a.y - a.height / 2 - (b.y - b.height / 2));
    const found = [];
    let bottom = -Infinity;
    for (const box of boxes) {
      const top = box.y - box.height / 2;
      if (top > bottom + 4 && bottom > 0) found.push({ y: (bottom + top) / 2, crossing: 0 });
      bottom = Math.max(bottom, box.y + box.height / 2);
    }
    for (const line of ranked.lines) {
      const from = ranked.boxes.get(line.start).y;
      const to = ranked.boxes.get(line.end).y;
      for (const place of found) if (from < place.y && place.y < to) place.crossing++;
    }
    return found;
  }

  function arrange(ranked, cuts) {
    const spans = spansOf(ranked, cuts);
    const bottom = Math.max(...spans.map((span) => span.height));
    let x = 0;
    spans.forEach((span, number) => {
      span.dx = x - span.left;
      span.dy = number ? -cuts[number - 1] : 0;
      span.gutter = x - GUTTER / 2;
      x += span.right - span.left + GUTTER;
    });
    const moved = (point) => {
      const span = spans[columnOf(cuts, point.y)];
      return { x: point.x + span.dx, y: point.y + span.dy };
    };
    const boxes = new Map();
    for (const [name, box] of ranked.boxes) boxes.set(name, { ...box, ...moved(box), column: columnOf(cuts, box.y) });
    const lanes = new Map();
    const lines = ranked.lines.map((line) => {
      const from = ranked.boxes.get(line.start);
      const to = ranked.boxes.get(line.end);
      const first = columnOf(cuts, from.y);
      const last = columnOf(cuts, to.y);
      if (first === last) return { ...line, points: line.points.map(moved) };
      if (!lanes.has(line.start)) lanes.set(line.start, lanes.size % LANES);
      const number = lanes.get(line.start); // 0, 1, -1, 2, -2 from the middle of the gutter
      const lane = LANE * Math.ceil(number / 2) * (number % 2 ? 1 : -1);
      const before = line.points.filter((point) => columnOf(cuts, point.y) === first).map(moved);
      const after = line.points.filter((point) => columnOf(cuts, point.y) === last).map(moved);
      const leaves = before[before.length - 1].x;
      const enters = after[0].x;
      const below = bottom + MARGIN / 2 + lane;
      const above = -MARGIN / 2 + lane;
      const gutter = spans[last].gutter + lane;
      const way = [
        { x: leaves, y: below },
        { x: gutter, y: below },
        { x: gutter, y: above },
        { x: enters, y: above },
      ];
      return { ...line, points: [...before, ...way, ...after] };
    });
    return { boxes, lines: lines.map((line) => ({ ...line, points: simplified(line.points) })) };
  }

  /** The points without those on a straight line between their neighbours. */
  function simplified(points) {
    const kept = [points[0]];
    for (let at = 1; at + 1 < points.length; at++) {
      const [a, b, c] = [kept[kept.length - 1], points[at], points[at + 1]];
      const area = Math.abs((b.x - a.x) * (c.y - a.y) - (b.y - a.y) * (c.x - a.x));
      if (area > 2 * Math.hypot(c.x - a.x, c.y - a.y) && Math.hypot(b.x - a.x, b.y - a.y) > 1) kept.push(b);
    }
    return [...kept, points[points.length - 1]];
  }

  return { layout };
})();
