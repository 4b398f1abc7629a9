"use strict";
/* Timeline, memory and roofline: axes and zoom by uPlot, the marks drawn here.

   In: a host element and marks with a place in the plot's own units. Out: a plot; `pick(mark)` is called for a click on a
   mark. A mark is a rectangle {x0, x1, y0, y1} or a dot {x, y, r}, with `fill` and the lines of its `tip`. */

class Plot {
  constructor(host, { title, note, marks, axes, scales, under, pick, control }) {
    host.replaceChildren();
    const frame = host.appendChild(document.createElement("div"));
    frame.className = "plot";
    const head = frame.appendChild(document.createElement("div"));
    head.className = "head";
    head.appendChild(document.createElement("h2")).textContent = title;
    if (control) head.append(control);
    head.appendChild(document.createElement("p")).textContent = note;
    const room = frame.appendChild(document.createElement("div"));
    room.className = "room";
    this.host = room.appendChild(document.createElement("div"));
    Object.assign(this, { marks, axes, scales, under, pick, over: null });
    this.make();
    new ResizeObserver(() => this.resize()).observe(this.host);
  }

  make() {
    const style = getComputedStyle(document.documentElement), colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const font = `12px ${getComputedStyle(document.body).fontFamily}`;
    this.colour = colour;
    this.font = font;
    this.plot?.destroy();
    const { width, height } = this.host.getBoundingClientRect();
    const axis = (more) => ({ stroke: colour("muted"), font, labelFont: font, grid: { stroke: colour("line"), width: 1 },
      ticks: { stroke: colour("line"), width: 1 }, ...more });
    const [xs, ys] = this.scales;
    this.plot = new uPlot({
      width: Math.max(200, width), height: Math.max(160, height), legend: { show: false },
      padding: [10, 18, 0, 0],
      cursor: { points: { show: false }, drag: { x: true, y: Boolean(ys.zoom), uni: 24 }, x: false, y: false },
      scales: { x: { time: false, distr: xs.log ? 3 : 1, range: (u, lo, hi) => (this.zoomed(lo, hi, xs) ? [lo, hi] : [xs.min, xs.max]) },
        y: { distr: ys.log ? 3 : 1, range: (u, lo, hi) => (ys.zoom && this.zoomed(lo, hi, ys) ? [lo, hi] : [ys.min, ys.max]) } },
      axes: this.axes.map(axis),
      series: [{}, { show: true, paths: () => null, points: { show: false } }],
      hooks: { draw: [(u) => this.draw(u)] },
    }, [[xs.min, xs.max], [ys.min, ys.max]], this.host);
    const over = this.plot.over;
    over.addEventListener("mousemove", (e) => this.hover(e));
    over.addEventListener("mouseleave", () => Tip.hide());
    let from = null;
    over.addEventListener("mousedown", (e) => { from = [e.clientX, e.clientY]; });
    over.addEventListener("mouseup", (e) => {
      const still = from && Math.hypot(e.clientX - from[0], e.clientY - from[1]) < 4;
      const mark = still && this.at(e.offsetX, e.offsetY);
      if (mark && this.pick) this.pick(mark);
    });
  }

  zoomed(lo, hi, scale) {
    return lo > scale.min || hi < scale.max;
  }

  resize() {
    const { width, height } = this.host.getBoundingClientRect();
    if (width > 10 && height > 10) this.plot.setSize({ width, height });
  }

  /* A mark's rectangle in pixels of the canvas, or of the page where `css`. */
  rect(mark, css) {
    const u = this.plot, x = (v) => u.valToPos(v, "x", !css), y = (v) => u.valToPos(v, "y", !css);
    if (mark.r) {
      const r = css ? mark.r : mark.r * devicePixelRatio;
      return [x(mark.x) - r, y(mark.y) - r, 2 * r, 2 * r];
    }
    const left = x(mark.x0), top = y(mark.y1);
    return [left, top, Math.max(css ? 1 : devicePixelRatio, x(mark.x1) - left), Math.max(1, y(mark.y0) - top)];
  }

  draw(u) {
    const c = u.ctx, { left, top, width, height } = u.bbox;
    c.save();
    c.beginPath();
    c.rect(left, top, width, height);
    c.clip();
    if (this.under) this.under(u, c, this);
    c.textBaseline = "middle";
    c.textAlign = "left";
    this.marks.forEach((mark) => {
      const [x, y, w, h] = this.rect(mark);
      if (x > left + width || x + w < left || y > top + height || y + h < top) return;
      c.fillStyle = mark.fill;
      if (mark.r) {
        c.beginPath();
        c.arc(x + w / 2, y + w / 2, w / 2, 0, 7);
        c.globalAlpha = 0.72;
        c.fill();
        c.globalAlpha = 1;
        c.lineWidth = devicePixelRatio;
        c.strokeStyle = this.colour("surface");
        c.stroke();
        return;
      }
      const gap = w > 4 * devicePixelRatio ? devicePixelRatio : 0;
      c.fillRect(x, y, w - gap, Math.max(1, h - (h > 4 ? gap || 1 : 0)));
      if (!mark.text || h < 13 * devicePixelRatio || w < 30 * devicePixelRatio) return;
      c.font = this.font.replace("12px", `${11 * devicePixelRatio}px`);
      if (c.measureText(mark.text).width > w - 8 * devicePixelRatio) return;
      c.fillStyle = mark.ink || "#fff";
      c.fillText(mark.text, Math.max(x, left) + 4 * devicePixelRatio, y + h / 2);
    });
    c.restore();
  }

  at(x, y) {
    for (let i = this.marks.length - 1; i >= 0; i--) {
      const [left, top, w, h] = this.rect(this.marks[i], true), slack = this.marks[i].r ? 2 : 1;
      if (x >= left - slack && x <= left + w + slack && y >= top - slack && y <= top + h + slack) return this.marks[i];
    }
    return null;
  }

  hover(e) {
    const mark = this.at(e.offsetX, e.offsetY);
    this.plot.over.style.cursor = mark ? "pointer" : "crosshair";
    if (mark) Tip.show(e, mark.tip);
    else Tip.hide();
  }
}

/* The small box beside the pointer; its first line is bold. */
const Tip = {
  show(e, lines) {
    const tip = document.getElementById("tip");
    tip.replaceChildren(...lines.filter(Boolean).map((line, i) => {
      const row = document.createElement(i ? "span" : "b");
      row.textContent = line;
      return row;
    }));
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(e.clientX + 14, innerWidth - width - 8))}px`;
    tip.style.top = `${Math.max(4, e.clientY + 16 + height > innerHeight ? e.clientY - height - 10 : e.clientY + 16)}px`;
  },
  hide() {
    document.getElementById("tip").hidden = true;
  },
};

/* What each plot shows. `colours(node)` gives a node's colour, `pick(index)` chooses it. */
const Plots = {
  lanes: 14,

  timeline(host, data, colours, pick, boxOf) {
    const ran = data.nodes.map((node, index) => ({ node, index })).filter(({ node }) => node.measured)
      .sort((a, b) => a.node.measured.start - b.node.measured.start);
    const total = ran.reduce((sum, { node }) => sum + node.measured.seconds, 0);
    const lanes = { operator: ({ node }) => node.op, kernel: ({ node }) => node.measured.kernel, box: ({ index }) => boxOf(index),
      provider: ({ node }) => node.provider.replace(/ExecutionProvider$/, "") };
    const control = document.createElement("select");
    control.setAttribute("aria-label", "A row per");
    Object.keys(lanes).forEach((name) => {
      const option = control.appendChild(document.createElement("option"));
      option.value = name;
      option.textContent = `a row per ${name}`;
    });
    const show = () => {
      const lane = lanes[control.value], spent = new Map();
      ran.forEach((each) => spent.set(lane(each), (spent.get(lane(each)) || 0) + each.node.measured.seconds));
      const ordered = [...spent.keys()].sort((a, b) => spent.get(b) - spent.get(a));
      const named = ordered.slice(0, ordered.length > Plots.lanes ? Plots.lanes - 1 : Plots.lanes);
      const rest = ordered.slice(named.length).reduce((sum, name) => sum + spent.get(name), 0);
      const rows = ordered.length > named.length ? [...named, `${ordered.length - named.length} others`] : named;
      let at = 0;
      const marks = ran.map((each) => {
        const { node, index } = each, { seconds, kernel } = node.measured, place = named.indexOf(lane(each));
        const y = rows.length - 1 - (place < 0 ? rows.length - 1 : place);
        at += 1e3 * seconds;
        return { x0: at - 1e3 * seconds, x1: at, y0: y + 0.14, y1: y + 0.86, index, fill: colours(node), text: Format.leaf(node),
          tip: [`${node.op} · ${Format.seconds(seconds)}`, node.name, `${Format.percent(seconds / total)} of all nodes' time`, kernel] };
      });
      const shares = rows.map((name, i) => (i < named.length ? spent.get(name) : rest) / total);
      return new Plot(host, {
        title: "Timeline", marks, control, pick: (mark) => pick(mark.index),
        note: `The mean of ${data.runs} runs: ${ran.length} steps one after another, the rows with most time on top. Drag to zoom, double-click to go back.`,
        axes: [{ values: (u, vs) => vs.map((v) => `${+v.toFixed(6)} ms`) },
          { size: 210, grid: { show: false }, ticks: { show: false }, splits: () => rows.map((_, i) => rows.length - i - 0.5),
            values: () => rows.map((name, i) => `${Format.middle(name, 20)}  ${Format.percent(shares[i])}`) }],
        scales: [{ min: 0, max: at * 1.01 || 1 }, { min: Math.min(0, rows.length - 9), max: rows.length }],
      });
    };
    control.addEventListener("change", show);
    return show();
  },

  /* Ticks at multiples of a power of two. */
  binary(low, high) {
    const step = 2 ** Math.max(0, Math.ceil(Math.log2((high - low) / 9 || 1)));
    const first = Math.ceil(low / step), count = Math.floor(high / step) - first + 1;
    return Array.from({ length: Math.max(1, count) }, (_, i) => (first + i) * step);
  },

  memory(host, data, pick) {
    const parts = data.parts.filter((part) => part.memory.length);
    const made = new Map();
    data.nodes.forEach((node, index) => (node.outputs || []).forEach((v) => {
      if (v >= 0 && node.kind === "node") made.set(data.values[v].name, index);
    }));
    const choose = parts.length > 1 ? document.createElement("select") : null;
    choose?.setAttribute("aria-label", "Part");
    const palette = Array.from({ length: 8 }, (_, i) => `var(--c${i})`);
    const step = (part, i) => `step ${i}${part.steps[i] ? ` (${Format.middle(part.steps[i], 60)})` : ""}`;
    const show = (part) => {
      const style = getComputedStyle(document.documentElement);
      const fills = palette.map((p) => style.getPropertyValue(p.slice(4, -1)).trim());
      const last = Format.most(part.memory.map((row) => row.last)) + 1;
      const marks = part.memory.map((row, i) => ({ x0: row.first, x1: row.last + 1, y0: row.offset, y1: row.offset + row.bytes,
        fill: fills[i % fills.length], text: Format.bytes(row.bytes), index: made.get(row.value),
        tip: [row.value || "working memory", `${Format.bytes(row.bytes)} at offset ${row.offset.toLocaleString("en")}`,
          `needed from ${step(part, row.first)} to ${step(part, row.last)}`] }));
      const whole = part.memory.reduce((sum, row) => sum + row.bytes, 0);
      return new Plot(host, {
        title: "Memory plan", control: choose, marks, pick: (mark) => { if (mark.index !== undefined) pick(mark.index); },
        note: `One arena of ${Format.bytes(part.arena)} holds ${part.memory.length} results that take ${Format.bytes(whole)} ` +
          `together: a rectangle is a result, as wide as it is needed. ${part.packed ? `Packed constants: ${Format.bytes(part.packed)}. ` : ""}Drag to zoom.`,
        axes: [{ label: "step", values: (u, vs) => vs.map((v) => (Number.isInteger(v) ? v : "")) },
          { size: 84, splits: (u, i, lo, hi) => Plots.binary(lo, hi), values: (u, vs) => vs.map((v) => Format.bytes(v)) }],
        scales: [{ min: 0, max: last }, { min: 0, max: part.arena || 1, zoom: true }],
      });
    };
    let plot = null;
    if (choose) {
      parts.forEach((part, i) => {
        const option = choose.appendChild(document.createElement("option"));
        option.value = i;
        const what = part.name ? `${part.nodes} nodes on ${part.provider.replace(/ExecutionProvider$/, "")}` : "outside of compiled parts";
        option.textContent = `${i + 1}: ${what}, ${Format.bytes(part.arena)}`;
        option.title = part.name;
      });
      const largest = parts.reduce((best, part, i) => (part.arena > parts[best].arena ? i : best), 0);
      choose.value = largest;
      choose.addEventListener("change", () => { plot = show(parts[choose.value]); });
      plot = show(parts[largest]);
    } else plot = show(parts[0]);
    return plot;
  },

  roofline(host, data, colours, pick) {
    const { flops, bandwidth, threads } = data.peak;
    const ran = data.nodes.map((node, index) => ({ node, index }))
      .filter(({ node }) => node.measured && node.measured.flop > 0 && node.measured.bytes > 0 && node.measured.seconds > 0);
    const longest = Format.most(ran.map(({ node }) => node.measured.seconds));
    const marks = ran.map(({ node, index }) => {
      const m = node.measured, x = m.flop / m.bytes, y = m.flop / m.seconds, limit = Math.min(flops, x * bandwidth);
      return { x, y, r: 3.5 + 9 * Math.sqrt(m.seconds / longest), index, fill: colours(node),
        tip: [`${node.op} · ${Format.seconds(m.seconds)}`, node.name,
          `${Format.count(y, "FLOP/s")}, ${Format.percent(y / limit)} of what ${x * bandwidth < flops ? "memory" : "arithmetic"} allows`,
          `${Format.count(m.flop, "FLOP")}, ${Format.bytes(m.bytes)}, ${x.toPrecision(3)} FLOP per byte`] };
    }).sort((a, b) => b.r - a.r);
    const ridge = flops / bandwidth, xs = [...marks.map((m) => m.x), ridge], ys = [...marks.map((m) => m.y), flops];
    const low = 10 ** Math.floor(Math.log10(Format.least(xs)) - 0.1), high = 10 ** Math.ceil(Math.log10(Format.most(xs)) + 0.2);
    const bottom = 10 ** Math.floor(Math.log10(Format.least(ys))), top = 10 ** Math.ceil(Math.log10(Format.most(ys)) + 0.05);
    const under = (u, c, plot) => {
      const x = (v) => u.valToPos(v, "x", true), y = (v) => u.valToPos(v, "y", true);
      c.strokeStyle = plot.colour("accent");
      c.lineWidth = 2 * devicePixelRatio;
      c.lineJoin = "round";
      c.beginPath();
      c.moveTo(x(low), y(low * bandwidth));
      c.lineTo(x(ridge), y(flops));
      c.lineTo(x(high), y(flops));
      c.stroke();
      c.font = plot.font.replace("12px", `${12 * devicePixelRatio}px`);
      c.fillStyle = plot.colour("accent");
      c.textAlign = "right";
      c.fillText(`${Format.count(flops, "FLOP/s")} arithmetic peak`, x(high) - 8 * devicePixelRatio, y(flops) - 10 * devicePixelRatio);
      c.textAlign = "left";
      c.save();
      const at = Math.max(low * 1.6, (bottom / bandwidth) * 1.6);
      c.translate(x(at), y(at * bandwidth));
      c.rotate(Math.atan2(y(10 * at * bandwidth) - y(at * bandwidth), x(10 * at) - x(at)));
      c.fillText(`${Format.count(bandwidth, "B/s")} from memory`, 6 * devicePixelRatio, -10 * devicePixelRatio);
      c.restore();
    };
    const decades = (unit) => (u, vs) => vs.map((v) => (v && Math.abs(Math.log10(v) % 1) < 1e-9 ? Format.count(v, unit) : ""));
    const ratios = (u, vs) => vs.map((v) => (v && Math.abs(Math.log10(v) % 1) < 1e-9 ? String(+v.toPrecision(6)) : ""));
    return new Plot(host, {
      title: "Roofline", marks, under, pick: (mark) => pick(mark.index),
      note: `A dot per node, larger where more time goes; the line is what this machine can do with ${threads} ` +
        `thread${threads === 1 ? "" : "s"}. Dots far below it have room. Drag to zoom.`,
      axes: [{ label: "FLOP per byte", values: ratios }, { size: 106, values: decades("FLOP/s") }],
      scales: [{ min: low, max: high, log: true }, { min: bottom, max: top, log: true, zoom: true }],
    });
  },
};
