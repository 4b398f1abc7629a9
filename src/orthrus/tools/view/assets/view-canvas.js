"use strict";
/* Draws a tree on a canvas, moves over it and picks what is under the pointer.

   In: a `Tree` that is arranged, and functions that give colours. Out: calls of `onpick(item)` and `ontoggle(item)`. Only
   what is in sight is drawn, with less detail from afar. */

class Painter {
  constructor(canvas, tree) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.tree = tree;
    this.view = { x: 0, y: 0, k: 1 };
    this.chosen = null;
    this.found = new Set();
    this.colour = () => ({});
    this.font = getComputedStyle(document.body).fontFamily;
    this.readTheme();
    new ResizeObserver(() => this.resize()).observe(canvas);
    this.listen();
    this.resize();
  }

  readTheme() {
    const style = getComputedStyle(document.documentElement);
    this.theme = new Proxy({}, { get: (known, name) => (known[name] ??= style.getPropertyValue(`--${name}`).trim()) });
    this.dirty();
  }

  resize() {
    const box = this.canvas.getBoundingClientRect();
    if (!box.width) return;
    this.ratio = window.devicePixelRatio || 1;
    this.width = box.width;
    this.height = box.height;
    this.canvas.width = Math.round(box.width * this.ratio);
    this.canvas.height = Math.round(box.height * this.ratio);
    this.draw();
  }

  dirty() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => this.draw());
  }

  /* Moving. */
  zoom(factor, x = this.width / 2, y = this.height / 2) {
    const v = this.view, k = Math.min(4, Math.max(this.least(), v.k * factor));
    v.x = x - ((x - v.x) * k) / v.k;
    v.y = y - ((y - v.y) * k) / v.k;
    v.k = k;
    this.dirty();
  }

  least() {
    const { w, h } = this.tree.root;
    return Math.min(0.5, 0.5 * Math.min(this.width / (w || 1), this.height / (h || 1)));
  }

  pan(dx, dy) {
    this.view.x += dx;
    this.view.y += dy;
    this.dirty();
  }

  fit() {
    const { w, h } = this.tree.root;
    const k = Math.min(1.25, (this.width - 40) / w, (this.height - 40) / h);
    Object.assign(this.view, { k, x: (this.width - w * k) / 2, y: 20 + Math.max(0, (this.height - 40 - h * k) / 2) });
    this.dirty();
  }

  /* The start: everything where that can be read, else the upper end in a size that can. */
  start() {
    this.fit();
    if (this.view.k >= 0.62) return;
    const { w } = this.tree.root, k = Math.max(0.62, Math.min(1, (this.width - 40) / w));
    Object.assign(this.view, { k, x: this.width / 2 - this.anchor() * k, y: 20 });
  }

  anchor() {
    const { children, w } = this.tree.root;
    const first = children.reduce((best, item) => (!best || item.y < best.y ? item : best), null);
    return this.width > w * 0.62 || !first ? w / 2 : first.x + first.w / 2;
  }

  show(item) {
    const k = Math.max(this.view.k, 0.8);
    Object.assign(this.view, { k, x: this.width / 2 - (item.x + item.w / 2) * k,
      y: this.height / 2 - (item.y + Math.min(item.h, 200) / 2) * k });
    this.dirty();
  }

  /* Keep `item` where it is on the screen while `change` moves everything. */
  async hold(item, change) {
    const v = this.view, x = v.x + item.x * v.k, y = v.y + item.y * v.k;
    await change();
    v.x = x - item.x * v.k;
    v.y = y - item.y * v.k;
    this.dirty();
  }

  listen() {
    const { canvas } = this, pointers = new Map();
    let moved = 0, pinch = 0;
    const spot = (e) => {
      const box = canvas.getBoundingClientRect();
      return [e.clientX - box.left, e.clientY - box.top];
    };
    const span = () => {
      const [a, b] = [...pointers.values()];
      return Math.hypot(a[0] - b[0], a[1] - b[1]);
    };
    canvas.addEventListener("wheel", (e) => {
      e.preventDefault();
      const unit = e.deltaMode === 1 ? 18 : 1;
      if (e.shiftKey) this.pan(-(e.deltaX || e.deltaY) * unit, 0);
      else this.zoom(Math.exp(-e.deltaY * unit * (e.ctrlKey ? 0.01 : 0.0016)), ...spot(e));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (e) => {
      canvas.setPointerCapture(e.pointerId);
      pointers.set(e.pointerId, spot(e));
      moved = 0;
      pinch = pointers.size === 2 ? span() : 0;
    });
    canvas.addEventListener("pointermove", (e) => {
      const before = pointers.get(e.pointerId), now = spot(e);
      if (!before) {
        const item = this.at(...now);
        canvas.classList.toggle("over", Boolean(item));
        this.onhover(item, e);
        return;
      }
      pointers.set(e.pointerId, now);
      if (pointers.size === 2) {
        const wide = span();
        this.zoom(wide / (pinch || wide), ...now);
        pinch = wide;
        return;
      }
      moved += Math.abs(now[0] - before[0]) + Math.abs(now[1] - before[1]);
      if (moved > 4) {
        canvas.classList.add("moving");
        this.onhover(null);
        this.pan(now[0] - before[0], now[1] - before[1]);
        if (moved - 4 < Math.abs(now[0] - before[0]) + Math.abs(now[1] - before[1])) return;
      }
    });
    const end = (e) => {
      if (!pointers.delete(e.pointerId)) return;
      canvas.classList.remove("moving");
      if (e.type !== "pointerup" || moved > 4) return;
      const item = this.at(...spot(e));
      if (item && item.children && this.onSign(item, ...spot(e))) this.ontoggle(item);
      else this.onpick(item);
    };
    canvas.addEventListener("pointerup", end);
    canvas.addEventListener("pointercancel", end);
    canvas.addEventListener("pointerleave", () => this.onhover(null));
    canvas.addEventListener("dblclick", (e) => {
      const item = this.at(...spot(e));
      if (item && item.children && !this.onSign(item, ...spot(e))) this.ontoggle(item);
    });
  }

  onhover() {}

  ondraw() {}

  /* The innermost item under a point of the canvas. */
  at(x, y, box = this.tree.root) {
    const wx = (x - this.view.x) / this.view.k, wy = (y - this.view.y) / this.view.k;
    for (const item of box.children) {
      if (wx < item.x || wx > item.x + item.w || wy < item.y || wy > item.y + item.h) continue;
      return (item.open && this.at(x, y, item)) || item;
    }
    return null;
  }

  onSign(item, x, y) {
    const wx = (x - this.view.x) / this.view.k, wy = (y - this.view.y) / this.view.k;
    return wx > item.x + item.w - 30 && wy < item.y + (item.open ? Tree.HEAD : item.h);
  }

  /* Drawing. */
  draw() {
    cancelAnimationFrame(this.waiting);
    this.waiting = 0;
    const { context: c, view, ratio } = this;
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.fillStyle = this.theme.page;
    c.fillRect(0, 0, this.width, this.height);
    if (this.tree.root.made) {
      this.keep();
      c.setTransform(ratio * view.k, 0, 0, ratio * view.k, ratio * view.x, ratio * view.y);
      this.sight = { left: -view.x / view.k, top: -view.y / view.k,
        right: (this.width - view.x) / view.k, bottom: (this.height - view.y) / view.k };
      this.box(this.tree.root);
      if (this.chosen) this.links(this.chosen);
    }
    this.ondraw();
  }

  /* Some of the graph stays in sight. */
  keep() {
    const { view: v, width, height, tree: { root } } = this, rest = 80;
    v.x = Math.min(width - rest, Math.max(rest - root.w * v.k, v.x));
    v.y = Math.min(height - rest, Math.max(rest - root.h * v.k, v.y));
  }

  seen(item) {
    const s = this.sight;
    return item.x < s.right && item.x + item.w > s.left && item.y < s.bottom && item.y + item.h > s.top;
  }

  box(box) {
    const { context: c, theme, view } = this;
    if (box !== this.tree.root) {
      this.shape(box, 8);
      c.fillStyle = theme.group;
      c.fill();
      c.lineWidth = this.chosen === box ? 2 : 1;
      c.strokeStyle = this.chosen === box ? theme.accent : this.found.has(box) ? theme.mark : theme["group-line"];
      c.stroke();
      if (view.k > 0.3) this.head(box);
      if (box.h * view.k < 14) return;
    }
    this.lines(box);
    for (const item of box.children) {
      if (!this.seen(item)) continue;
      if (item.open) this.box(item);
      else this.node(item);
    }
  }

  shape(item, radius) {
    const { context: c } = this;
    c.beginPath();
    if (this.view.k < 0.25) c.rect(item.x, item.y, item.w, item.h);
    else c.roundRect(item.x, item.y, item.w, item.h, radius);
  }

  text(text, x, y, size, weight, fill) {
    const { context: c } = this;
    c.font = `${weight} ${size}px ${this.font}`;
    c.fillStyle = fill;
    c.fillText(text, x, y);
  }

  head(box) {
    const [title, below] = Tree.texts(box);
    this.context.textBaseline = "middle";
    this.text(title, box.x + 12, box.y + 16, 13, 600, this.theme.text);
    const used = this.context.measureText(title).width;
    this.text(below, box.x + 22 + used, box.y + 16, 11, 400, this.theme.muted);
    this.sign(box, box.x + box.w - 18, box.y + 16, this.theme.muted);
  }

  sign(box, x, y, ink) {
    const { context: c } = this;
    c.strokeStyle = ink;
    c.lineWidth = 1.5;
    c.beginPath();
    c.moveTo(x - 4, y);
    c.lineTo(x + 4, y);
    if (!box.open) {
      c.moveTo(x, y - 4);
      c.lineTo(x, y + 4);
    }
    c.stroke();
  }

  node(item) {
    const { context: c, theme, view } = this;
    const { fill, ink, bar } = this.colour(item), far = view.k < 0.25;
    const pill = !item.children && item.node.kind !== "node";
    if (far) {
      c.fillStyle = bar || fill || theme["line-strong"];
      c.fillRect(item.x, item.y, item.w, item.h);
      if (item !== this.chosen && !this.found.has(item)) return;
    }
    if (item.children && view.k > 0.3) {
      c.beginPath();
      c.roundRect(item.x + 4, item.y + 4, item.w, item.h, 7);
      c.fillStyle = theme["group-line"];
      c.fill();
    }
    this.shape(item, pill ? item.h / 2 : 7);
    c.fillStyle = fill || (pill ? theme.page : theme.node);
    if (!far) c.fill();
    if (bar && !far) {
      c.save();
      c.clip();
      c.fillStyle = bar;
      c.fillRect(item.x, item.y, 5, item.h);
      c.restore();
      this.shape(item, 7);
    }
    const chosen = item === this.chosen, found = this.found.has(item);
    c.lineWidth = (chosen || found ? 2.5 : 1) / Math.min(1, far ? view.k * 3 : 1);
    c.strokeStyle = chosen ? theme.accent : found ? theme.mark : theme["line-strong"];
    c.stroke();
    if (view.k < 0.3) return;
    const [title, below] = Tree.texts(item), x = item.x + (bar ? 16 : 14);
    c.textBaseline = "middle";
    if (pill) {
      this.text(title, item.x + 14, item.y + item.h / 2 + 0.5, 12.5, 500, theme.muted);
      return;
    }
    this.text(title, x, item.y + (view.k < 0.5 ? 21.5 : 14.5), 13, 600, ink || theme.text);
    if (view.k >= 0.5) this.text(below, x, item.y + 30, 11, 400, ink || theme.muted);
    if (item.children) this.sign(item, item.x + item.w - 18, item.y + item.h / 2, ink || theme.muted);
  }

  /* A line whose corners are round but never cut far, so that it stays where the layout left room for it. */
  trace(line) {
    const { context: c } = this, p = line.points;
    c.moveTo(p[0][0], p[0][1]);
    if (this.view.k < 0.15) {
      c.lineTo(p[p.length - 1][0], p[p.length - 1][1]);
      return;
    }
    const near = ([x, y], to, share) => {
      const long = Math.hypot(to[0] - x, to[1] - y) || 1, part = Math.min(60, long * share) / long;
      return [x + (to[0] - x) * part, y + (to[1] - y) * part];
    };
    for (let i = 1; i < p.length - 1; i++) {
      c.lineTo(...near(p[i], p[i - 1], i === 1 ? 1 : 0.5));
      c.quadraticCurveTo(...p[i], ...near(p[i], p[i + 1], i === p.length - 2 ? 1 : 0.5));
    }
    c.lineTo(...p[p.length - 1]);
  }

  arrow(line, fill) {
    const { context: c } = this, p = line.points, [x, y] = p[p.length - 1], up = p[p.length - 2][1] > y ? -1 : 1;
    c.fillStyle = fill;
    c.beginPath();
    c.moveTo(x, y);
    c.lineTo(x - 3.5, y - 7 * up);
    c.lineTo(x + 3.5, y - 7 * up);
    c.fill();
  }

  lines(box) {
    const { context: c, theme, view, sight: s } = this;
    if (view.k < 0.06) return;
    const seen = box.lines.filter((l) => l.left < s.right && l.right > s.left && l.top < s.bottom && l.bottom > s.top);
    c.strokeStyle = theme.edge;
    c.lineWidth = view.k < 0.3 ? 0.8 / view.k / 3 : 1.2;
    c.beginPath();
    seen.forEach((line) => this.trace(line));
    c.stroke();
    if (view.k < 0.4) return;
    seen.forEach((line) => { if (line.arrow) this.arrow(line, theme.edge); });
    if (view.k < 0.7) return;
    c.textBaseline = "middle";
    const taken = [...box.children];
    seen.forEach((line) => this.label(line, taken));
  }

  /* The shape of the one value that goes along a line, as near to its middle as what is `taken` leaves room. */
  label(line, taken) {
    const { context: c, theme } = this, { points: p, edge } = line;
    const gap = p[p.length - 1][1] - p[0][1];
    if (edge.values.size !== 1 || gap < 28 || !line.to || !line.from) return;
    const text = this.shapeOf([...edge.values][0]);
    if (!text) return;
    c.font = `400 10px ${this.font}`;
    const wide = c.measureText(text).width, middle = Math.floor(p.length / 2);
    const free = ([x, y]) => !taken.some((i) => i.x < x + wide / 2 + 3 && i.x + i.w > x - wide / 2 - 3
      && i.y < y + 6 && i.y + i.h > y - 6);
    const m = p.map((at, i) => [Math.abs(i - middle), at]).sort((a, b) => a[0] - b[0]).map(([, at]) => at).find(free);
    if (!m) return;
    const room = { x: m[0] - wide / 2 - 3, y: m[1] - 6, w: wide + 6, h: 12 };
    taken.push(room);
    c.fillStyle = theme.page;
    c.globalAlpha = 0.85;
    c.fillRect(room.x, room.y, room.w, room.h);
    c.globalAlpha = 1;
    this.text(text, m[0] - wide / 2, m[1] + 0.5, 10, 400, theme.muted);
  }

  /* What goes into and out of the chosen item, through every open box on the way. */
  links(item) {
    const { context: c, theme } = this;
    c.strokeStyle = theme.accent;
    c.lineWidth = Math.max(2, 1 / this.view.k);
    if (!item.parent) return;
    item.parent.lines.forEach((line) => {
      if (line.from !== item && line.to !== item) return;
      c.beginPath();
      this.trace(line);
      c.stroke();
      if (line.arrow && this.view.k > 0.3) this.arrow(line, theme.accent);
    });
  }
}
