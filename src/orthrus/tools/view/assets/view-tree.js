"use strict";
/* The graph as nested boxes.

   In: the page's data. Out: `Tree`, whose items carry absolute x, y, w, h once `arrange()` is done, and whose open boxes
   carry `lines`, the edges between their children. An edge that enters or leaves a box is cut at its border: into a
   line to the box and lines inside, from the middle of its upper edge and to the middle of its lower one. */

class Tree {
  constructor(data, measure) {
    this.data = data;
    Tree.values = data.values;
    this.measure = measure;
    this.layouts = new Map();
    this.root = this.box(null, { title: data.model, kind: "root", parent: -1 });
    this.root.open = true;
    this.groups = [];
    data.groups.forEach((group, i) => {
      const item = this.box(group.parent < 0 ? this.root : this.groups[group.parent], group);
      item.index = i;
      this.groups.push(item);
    });
    this.items = data.nodes.map((node, index) => {
      const parent = node.group < 0 ? this.root : this.groups[node.group];
      if (node.body >= 0) {
        parent.node = node;
        parent.nodeIndex = index;
        return parent;
      }
      const item = { node, nodeIndex: index, parent, depth: parent.depth + 1 };
      parent.children.push(item);
      return item;
    });
    [this.root, ...this.groups].forEach((box) => box.children.forEach((child, i) => { child.place = i; }));
    data.edges.forEach(([from, to, value]) => this.route(this.items[from], this.items[to], value));
    this.total(this.root);
  }

  box(parent, group) {
    const item = { group, parent, depth: parent ? parent.depth + 1 : 0, children: [], open: false, edges: new Map(),
      lines: [], stale: true };
    if (parent) parent.children.push(item);
    return item;
  }

  /* One edge of the graph becomes an edge in each box between its ends. */
  route(from, to, value) {
    while (from.parent !== to.parent) {
      if (!to.parent || (from.parent && from.parent.depth > to.parent.depth)) {
        this.edge(from.parent, from, "out", value);
        from = from.parent;
      } else {
        this.edge(to.parent, "in", to, value);
        to = to.parent;
      }
      if (from === to) return;
    }
    if (from !== to) this.edge(from.parent, from, to, value);
  }

  edge(box, from, to, value) {
    const a = from.place ?? from, b = to.place ?? to, key = `${a}>${b}`;
    const known = box.edges.get(key);
    if (known) known.values.add(value);
    else box.edges.set(key, { from: a, to: b, values: new Set([value]) });
  }

  /* Sums over the nodes inside each box. */
  total(box) {
    box.count = 0;
    box.seconds = 0;
    const add = (node) => {
      if (!node || node.kind !== "node") return;
      box.count += 1;
      box.seconds += node.measured ? node.measured.seconds : 0;
    };
    add(box.node);
    box.children.forEach((child) => {
      if (!child.children) {
        add(child.node);
        return;
      }
      this.total(child);
      box.count += child.count;
      box.seconds += child.seconds;
    });
  }

  *visible(box = this.root) {
    for (const child of box.children) {
      yield child;
      if (child.open) yield* this.visible(child);
    }
  }

  toggle(item, open) {
    if (!item.children || item === this.root || item.open === open) return;
    item.open = open;
    for (let at = item; at; at = at.parent) at.stale = true;
  }

  toggleAll(open) {
    this.groups.forEach((item) => this.toggle(item, open));
  }

  /* Open boxes from the outermost inwards while no more than `budget` items show: all boxes of a box, or those of them that
     hold boxes themselves. */
  openSome(budget) {
    let showing = this.root.children.length;
    const queue = [this.root];
    while (queue.length) {
      const all = queue.shift().children.filter((item) => item.children);
      const some = all.filter((item) => item.children.some((child) => child.children));
      const chosen = [all, some].find((boxes) => showing + boxes.reduce((sum, item) => sum + item.children.length, 0) <= budget) || [];
      chosen.forEach((item) => {
        showing += item.children.length;
        this.toggle(item, true);
        queue.push(item);
      });
    }
  }

  reveal(item) {
    for (let at = item.parent; at && at !== this.root; at = at.parent) this.toggle(at, true);
  }

  /* Lay out every open box that changed, the innermost first. Large ones go to workers; the page stays free meanwhile. */
  async arrange(progress) {
    const levels = [];
    const find = (box) => {
      if (!box.stale) return;
      box.children.forEach((child) => { if (child.open) find(child); });
      (levels[box.depth] ??= []).push(box);
    };
    find(this.root);
    const all = levels.reduce((sum, boxes) => sum + boxes.length, 0);
    let done = 0, since = performance.now();
    for (const boxes of levels.reverse()) {
      const asked = new Map();
      for (const box of boxes) {
        const { key, sizes, edges } = this.task(box);
        if (!this.layouts.has(key) && !asked.has(key)) asked.set(key, { sizes, edges });
      }
      const many = asked.size > 1;
      await Promise.all([...asked].map(async ([key, { sizes, edges }]) => {
        const away = many && edges.length > 30;
        this.layouts.set(key, away ? await Away.layered(sizes, edges) : Layered.layout(sizes, edges));
        done += 1;
        if (progress) progress(done, all);
      }));
      for (const box of boxes) {
        this.take(box);
        if (performance.now() - since < 30) continue;
        await new Promise((go) => setTimeout(go));
        since = performance.now();
      }
    }
    this.settle(this.root, 0, 0);
  }

  size(item) {
    if (item.open) return item.inner;
    if (!item.closed) {
      const [title, below] = Tree.texts(item), pill = item.node && item.node.kind !== "node" && !item.children;
      const wide = Math.max(this.measure(title, 600, 13), this.measure(below, 400, 11)) + (item.children ? 46 : 28);
      item.closed = { w: Math.min(260, Math.max(pill ? 60 : 84, Math.ceil(wide / 12) * 12)), h: pill ? 30 : 42 };
    }
    return item.closed;
  }

  /* What a layout depends on; equal boxes share one. */
  task(box) {
    const sizes = box.children.map((child) => this.size(child));
    const edges = [...box.edges.values()].map((e) => ({ from: e.from, to: e.to, weight: Math.min(4, e.values.size) }));
    const key = `${sizes.map((s) => `${s.w}x${s.h}`).join()}|${edges.map((e) => `${e.from}>${e.to}`).join()}`;
    return { key, sizes, edges };
  }

  take(box) {
    const made = this.layouts.get(this.task(box).key);
    const [head, below] = Tree.texts(box);
    const title = box === this.root ? 0 : this.measure(head, 600, 13) + this.measure(below, 400, 11) + 70;
    const top = box === this.root ? 0 : Tree.HEAD, pad = box === this.root ? 0 : Tree.PAD;
    const w = Math.max(made.w + 2 * pad, title);
    box.made = made;
    box.shift = { x: (w - made.w) / 2, y: top + pad };
    box.inner = { w, h: made.h + top + 2 * pad };
    box.stale = false;
  }

  /* Absolute places from relative ones. */
  settle(box, x, y) {
    Object.assign(box, { x, y, w: box.inner.w, h: box.inner.h });
    const left = x + box.shift.x, top = y + box.shift.y;
    box.children.forEach((child, i) => {
      const s = this.size(child), at = box.made.at[i];
      Object.assign(child, { x: left + at.x - s.w / 2, y: top + at.y - s.h / 2, w: s.w, h: s.h });
      if (child.open) this.settle(child, child.x, child.y);
    });
    box.lines = [];
    box.edges.forEach((edge, key) => {
      const middle = box.made.lines[key];
      if (!middle) return;
      const from = box.children[edge.from], to = box.children[edge.to];
      const start = from ? [from.x + from.w / 2, from.y + from.h] : [x + box.w / 2, y + Tree.HEAD];
      const end = to ? [to.x + to.w / 2, to.y] : [x + box.w / 2, y + box.h];
      if (from && to && to.y < from.y) {
        start[1] = from.y;
        end[1] = to.y + to.h;
      }
      const points = [start, ...middle.map(([px, py]) => [left + px, top + py]), end];
      const xs = points.map((p) => p[0]), ys = points.map((p) => p[1]);
      box.lines.push({ points, from, to, edge, arrow: Boolean(to), left: Math.min(...xs), right: Math.max(...xs),
        top: Math.min(...ys), bottom: Math.max(...ys) });
    });
  }

  /* The two lines of text on a closed item. */
  static texts(item) {
    if (item.children) {
      const title = item.group.kind === "control" ? item.node.op : item.group.title;
      const time = item.seconds ? ` · ${Format.seconds(item.seconds)}` : "";
      return [Format.middle(title, 34), `${item.count.toLocaleString("en")} node${item.count === 1 ? "" : "s"}${time}`];
    }
    if (item.node.kind !== "node") return [Format.middle(item.node.name, 30), ""];
    return [item.node.op, Format.middle(this.below(item), 30)];
  }
}

/* The second line of a node: its own name where that says more than operator and box do, else the shape it gives. */
Tree.below = (item) => {
  const own = Format.leaf(item.node), value = item.node.outputs.find((v) => v >= 0);
  const told = item.parent.group.title.split("/").pop() === own || /^(node_)?[A-Z]\w*?_\d+$/.test(own) && own.includes(item.node.op);
  return (told && value !== undefined && Format.dims(Tree.values[value].type)) || own;
};
Tree.HEAD = 30;
Tree.PAD = 8;
