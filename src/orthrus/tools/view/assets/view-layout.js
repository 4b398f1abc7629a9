"use strict";
/* One box: sizes of children and edges between them in, places out. By dagre; large boxes in workers.

   In: [{w, h}] and [{from, to, weight}], ends being indices of children, "in" or "out". Out: {w, h, at, lines}: the box's size, the
   middle of each child, and by "from>to" the points of an edge between its ends. `Layered` needs nothing but dagre, as
   its text is what a worker runs. */

const Layered = {
  layout(sizes, edges) {
    const among = edges.some((e) => typeof e.from === "number" && typeof e.to === "number");
    return !among && sizes.length > 4 ? Layered.grid(sizes) : Layered.layered(sizes, edges);
  },

  grid(sizes) {
    const columns = Math.ceil(Math.sqrt(sizes.length * 0.6)), w = Math.max(...sizes.map((s) => s.w)) + 14;
    const h = Math.max(...sizes.map((s) => s.h)) + 14;
    const at = sizes.map((s, i) => ({ x: (i % columns + 0.5) * w, y: (Math.floor(i / columns) + 0.5) * h }));
    return { w: columns * w, h: Math.ceil(sizes.length / columns) * h, at, lines: {} };
  },

  layered(sizes, edges) {
    const graph = new dagre.graphlib.Graph();
    graph.setGraph({ rankdir: "TB", nodesep: 22, ranksep: 34, edgesep: 12, marginx: 8, marginy: 4 });
    sizes.forEach((s, i) => graph.setNode(String(i), { width: s.w, height: s.h }));
    for (const port of ["in", "out"])
      if (edges.some((e) => e.from === port || e.to === port)) graph.setNode(port, { width: 1, height: 1 });
    edges.forEach((e) => graph.setEdge(String(e.from), String(e.to), { weight: e.weight }));
    dagre.layout(graph, { disableOptimalOrderHeuristic: sizes.length > 30 });
    const spot = (name) => {
      const { x, y } = graph.node(name);
      return { x, y };
    };
    const lines = {};
    graph.edges().forEach((e) => {
      const points = graph.edge(e).points.slice(1, -1).map((p) => [p.x, p.y]);
      if (e.v === "in") points.unshift([spot("in").x, spot("in").y]);
      if (e.w === "out") points.push([spot("out").x, spot("out").y]);
      lines[`${e.v}>${e.w}`] = points;
    });
    const { width, height } = graph.graph();
    return { w: width || 40, h: height || 40, at: sizes.map((_, i) => spot(String(i))), lines };
  },
};

/* The same on a few workers, started with the first task and made from the text of this page's scripts; where workers
   are not to be had, here. */
const Away = {
  workers: null,
  waiting: new Map(),
  next: 0,

  start() {
    const source = [document.getElementById("dagre.min.js").textContent,
      document.getElementById("view-layout.js").textContent.split("/* The same on")[0],
      "onmessage = ({ data: [id, sizes, edges] }) => postMessage([id, Layered.layout(sizes, edges)]);"];
    const count = Math.max(1, Math.min(4, navigator.hardwareConcurrency || 2));
    try {
      const url = URL.createObjectURL(new Blob(source, { type: "text/javascript" }));
      Away.workers = Array.from({ length: count }, () => {
        const worker = new Worker(url);
        worker.onmessage = ({ data: [id, made] }) => Away.answer(id, made);
        worker.onerror = () => Away.fail();
        return worker;
      });
    } catch {
      Away.workers = [];
    }
  },

  answer(id, made) {
    Away.waiting.get(id)?.done(made);
    Away.waiting.delete(id);
  },

  fail() {
    Away.workers = [];
    Away.waiting.forEach(({ sizes, edges }, id) => Away.answer(id, Layered.layout(sizes, edges)));
  },

  layered(sizes, edges) {
    if (!Away.workers) Away.start();
    if (!Away.workers.length) return Promise.resolve(Layered.layout(sizes, edges));
    return new Promise((done) => {
      const id = Away.next++;
      Away.waiting.set(id, { done, sizes, edges });
      Away.workers[id % Away.workers.length].postMessage([id, sizes, edges]);
    });
  },
};
