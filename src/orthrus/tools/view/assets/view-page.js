"use strict";
/* The page: search, tabs and keys, and what joins the other files.

   Every text of the model reaches the page as the text of a node, never as HTML. */

(() => {
  const began = performance.now();
  const $ = (id) => document.getElementById(id);
  const given = JSON.parse($("data").textContent), asFile = Boolean(given.file) && location.hash === "#file";
  const data = asFile ? given.file : given;
  const model = new Model(data);
  const { real, measured } = model;
  const meter = document.createElement("canvas").getContext("2d"), font = getComputedStyle(document.body).fontFamily;
  const widths = new Map();
  const measure = (text, weight, size) => {
    const key = `${weight} ${size} ${text}`;
    if (!widths.has(key)) {
      meter.font = `${weight} ${size}px ${font}`;
      widths.set(key, meter.measureText(text).width);
    }
    return widths.get(key);
  };
  const tree = new Tree(data, measure);
  const painter = new Painter($("canvas"), tree);
  const colours = new Colours(model, painter);
  painter.colour = (item) => colours.of(item);
  new Overview($("map"), painter);
  painter.shapeOf = (value) => Format.dims(data.values[value].type);

  const panel = panelOf($("panel"), model, tree, (item, move) => choose(item, move), (item) => toggle(item));
  const show = () => panel(painter.chosen);

  const choose = (item, move) => {
    painter.chosen = item;
    show();
    painter.dirty();
    if (!item || !move) return Promise.resolve();
    pick("graph");
    tree.reveal(item);
    return arrange().then(() => painter.show(item));
  };

  /* Opening and closing. */
  let turn = Promise.resolve();
  const arrange = () => {
    turn = turn.then(async () => {
      const busy = $("busy"), started = performance.now();
      await tree.arrange((done, all) => {
        if (performance.now() - started < 200) return;
        busy.hidden = false;
        busy.textContent = `Laying out ${done} of ${all} boxes`;
      });
      busy.hidden = true;
      colours.forget();
      painter.dirty();
    });
    return turn;
  };
  const toggle = (item) => {
    tree.toggle(item, !item.open);
    return painter.hold(item, arrange).then(() => show());
  };
  const all = (open) => {
    tree.toggleAll(open);
    return arrange().then(() => painter.start());
  };
  painter.onpick = (item) => choose(item);
  painter.ontoggle = toggle;
  painter.onhover = (item, event) => {
    if (!item || item.open || painter.view.k >= 0.5) Tip.hide();
    else Tip.show(event, Tree.texts(item));
  };

  /* Search. */
  const words = data.nodes.map((node) => [node.op, node.name, ...node.origin.flat(), node.kernel, Model.kernel(node), ...node.outputs.map((v) => (v < 0 ? "" : data.values[v].name))]
    .join("\n").toLowerCase());
  const search = $("search"), found = $("found");
  let hits = [], at = 0;
  const look = () => {
    const asked = search.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    hits = asked.length ? data.nodes.map((_, i) => i).filter((i) => asked.every((word) => words[i].includes(word))) : [];
    at = 0;
    painter.found = new Set();
    hits.forEach((i) => {
      for (let item = tree.items[i]; item && item !== tree.root; item = item.parent) painter.found.add(item);
    });
    painter.dirty();
    list(asked.length > 0);
  };
  const list = (open) => {
    const rows = hits.slice(0, 60).map((index, i) => {
      const node = data.nodes[index], row = make("li");
      row.setAttribute("role", "option");
      row.id = `found-${i}`;
      row.append(make("span", node.op || node.kind, "op"), make("span", undefined, "name"));
      row.lastChild.append(make("bdi", node.name));
      row.addEventListener("mousedown", (e) => {
        e.preventDefault();
        go(i);
      });
      return row;
    });
    if (open && !rows.length) rows.push(make("li", "Nothing has that in its name, operator, kernel or outputs.", "none"));
    if (hits.length > 60) rows.push(make("li", `and ${(hits.length - 60).toLocaleString("en")} more`, "none"));
    found.replaceChildren(...rows);
    found.hidden = !open;
    search.setAttribute("aria-expanded", String(open));
    mark();
  };
  const mark = () => {
    [...found.children].forEach((row, i) => row.setAttribute("aria-selected", String(i === at && hits.length > 0)));
    if (hits.length) {
      search.setAttribute("aria-activedescendant", `found-${at}`);
      found.children[at]?.scrollIntoView({ block: "nearest" });
    } else search.removeAttribute("aria-activedescendant");
  };
  const go = (i) => {
    if (hits[i] === undefined) return;
    found.hidden = true;
    search.setAttribute("aria-expanded", "false");
    choose(tree.items[hits[i]], true);
  };
  search.addEventListener("input", look);
  search.addEventListener("focus", () => { if (search.value.trim()) list(true); });
  search.addEventListener("blur", () => { found.hidden = true; });
  search.addEventListener("keydown", (e) => {
    const most = Math.min(hits.length, 60) - 1;
    if (e.key === "ArrowDown") at = Math.min(most, at + 1);
    else if (e.key === "ArrowUp") at = Math.max(0, at - 1);
    else if (e.key === "Enter") go(at);
    else return;
    e.preventDefault();
    if (e.key !== "Enter") mark();
  });

  /* Tabs. */
  const tabs = [...document.querySelectorAll("[role=tab]")];
  const drawn = new Map();
  const missing = (need) => (asFile ? "The graph in the file does not run; choose As it runs." : data.runs === 0 ? "This page was written without a run (--no-run)." : need);
  const outermost = (index) => {
    let item = tree.items[index];
    while (item.parent && item.parent !== tree.root) item = item.parent;
    return item.children ? Tree.texts(item)[0] : "in no box";
  };
  const family = (node) => colours.family(node);
  const draw = (name) => {
    const host = $(`view-${name}`), pickNode = (index) => choose(tree.items[index]);
    const empty = (why) => host.replaceChildren(make("div", why, "empty"));
    if (name === "timeline") {
      if (!measured.length) return empty(missing("The run noted no steps."));
      return Plots.timeline(host, data, family, pickNode, outermost);
    }
    if (name === "memory") {
      if (!data.parts.some((part) => part.memory.length)) return empty("No part of this graph has a memory plan.");
      return Plots.memory(host, data, pickNode);
    }
    if (name === "roofline") {
      if (!measured.some((n) => n.measured.flop && n.measured.bytes) || !data.peak.flops) return empty(missing("No node counts operations."));
      return Plots.roofline(host, data, family, pickNode);
    }
    return nodeTable(host, model, pickNode);
  };
  const pick = (name) => {
    tabs.forEach((tab) => {
      const on = tab.id === `tab-${name}`;
      tab.setAttribute("aria-selected", String(on));
      tab.tabIndex = on ? 0 : -1;
      $(tab.getAttribute("aria-controls")).hidden = !on;
    });
    Tip.hide();
    if (name === "graph") painter.resize();
    else if (!drawn.has(name)) drawn.set(name, draw(name));
  };
  tabs.forEach((tab, i) => {
    tab.addEventListener("click", () => pick(tab.id.slice(4)));
    tab.addEventListener("keydown", (e) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
      if (!step) return;
      const next = tabs[(i + step + tabs.length) % tabs.length];
      next.focus();
      next.click();
      e.stopPropagation();
    });
  });

  /* Buttons and keys. */
  const recolour = () => {
    colours.forget();
    $("legend").replaceChildren(...colours.legend());
    painter.dirty();
  };
  const setMode = (name) => {
    colours.mode = name;
    document.querySelectorAll("[data-colour]").forEach((b) => b.setAttribute("aria-checked", String(b.dataset.colour === name)));
    recolour();
  };
  document.querySelectorAll("[data-colour]").forEach((b) => {
    if (b.dataset.colour === "time" && !measured.length || b.dataset.colour === "provider" && asFile) {
      b.disabled = true;
      b.title = asFile ? "The graph in the file does not run" : "This page was written without a run";
    }
    b.addEventListener("click", () => setMode(b.dataset.colour));
  });
  document.querySelectorAll("[data-graph]").forEach((b) => {
    b.setAttribute("aria-checked", String((b.dataset.graph === "file") === asFile));
    b.addEventListener("click", () => {
      if ((b.dataset.graph === "file") === asFile) return;
      location.hash = b.dataset.graph === "file" ? "#file" : "";
      location.reload();
    });
  });
  $("which").hidden = !given.file;
  $("open-all").addEventListener("click", () => all(true));
  $("close-all").addEventListener("click", () => all(false));
  if (!tree.groups.length) $("open-all").hidden = $("close-all").hidden = true;
  $("fit").addEventListener("click", () => painter.fit());
  const setTheme = (name) => {
    document.documentElement.dataset.theme = name;
    painter.readTheme();
    recolour();
    drawn.clear();
    const open = tabs.find((tab) => tab.getAttribute("aria-selected") === "true");
    pick(open.id.slice(4));
  };
  $("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  document.addEventListener("keydown", (e) => {
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(e.target.tagName);
    if (e.key === "Escape") {
      if (!found.hidden || search.value) {
        search.value = "";
        look();
        search.blur();
      } else choose(null);
      return;
    }
    if (typing || e.ctrlKey || e.metaKey || e.altKey) return;
    const move = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] }[e.key];
    if (e.key === "/") search.focus();
    else if (e.key === "f") painter.fit();
    else if (e.key === "+" || e.key === "=") painter.zoom(1.25);
    else if (e.key === "-") painter.zoom(0.8);
    else if (e.key === "Enter" && e.target === $("canvas") && painter.chosen?.children) toggle(painter.chosen);
    else if (move && e.target.getAttribute?.("role") !== "tab" && !$("view-graph").hidden) painter.pan(...move);
    else return;
    e.preventDefault();
  });

  $("model").textContent = data.model;
  $("summary").textContent = [`${real.length.toLocaleString("en")} nodes`, ...(asFile ? ["in the file"] : colours.engines.slice(0, 2)),
    data.seconds ? `${Format.seconds(data.seconds)} a run` : "",
    data.others >= 0.3 ? "measured beside other work" : ""].filter(Boolean).join(" · ");
  setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  if (asFile) setMode("operator");
  else if (measured.length) setMode("time");
  tree.openSome(64);
  show();
  const ready = arrange().then(() => {
    painter.start();
    painter.draw();
    document.documentElement.dataset.ready = String(Math.round(performance.now() - began));
  });
  /* For scripts that drive the page. */
  window.orthrusView = { data, tree, painter, choose, all, pick, ready };
})();
