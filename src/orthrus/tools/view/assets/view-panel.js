"use strict";
/* The panel: what there is to know of a node, of a box, of the model. In: the model, the tree, and how to choose and to open an
   item. Out: a function that shows an item, or the model where there is none. */

const panelOf = (panel, model, tree, choose, toggle) => {
  const { data, makers, readers, real, spent, heads, named } = model;

  const section = (title, ...children) => {
    if (children.length) panel.append(make("h3", title), ...children);
  };
  const facts = (rows) => {
    const list = make("dl");
    rows.filter(([, value]) => value !== "" && value !== undefined && value !== null).forEach(([name, value]) => {
      list.append(make("dt", name));
      const cell = list.appendChild(make("dd"));
      cell.append(value);
    });
    return list;
  };
  const goto = (index) => button(data.nodes[index].name || "(unnamed)", () => choose(tree.items[index], true), "link");
  const valueList = (indices, types, ends) => {
    const list = make("ul");
    indices.forEach((v, i) => {
      const row = list.appendChild(make("li"));
      if (v < 0) {
        row.append(make("span", "left out", "note"));
        return;
      }
      const value = data.values[v];
      row.append(make("span", value.name, "value"));
      const run = types && types[i];
      row.append(make("span", [value.kind, value.type, run && !same(run, value.type) ? `in this run ${run}` : ""].filter(Boolean).join(" · "), "type"));
      if (value.text) row.append(make("span", value.text, "type value"));
      ends(v).forEach(([word, index]) => {
        const line = row.appendChild(make("span", `${word} `, "type"));
        line.append(goto(index));
      });
    });
    return list;
  };
  const same = (a, b) => a.replace(/\s/g, "") === b.replace(/\s/g, "");
  const source = (v) => (makers.has(v) && data.nodes[makers.get(v)].kind === "node" ? [["from", makers.get(v)]] : []);
  const targets = (v) => (readers.get(v) || []).slice(0, 12).map((index) => ["to", index]);
  const pathOf = (item) => {
    const names = [];
    for (let at = item.parent; at && at !== tree.root; at = at.parent) names.unshift(Tree.texts(at)[0]);
    return names.join(" › ");
  };
  const heading = (title, path) => {
    panel.replaceChildren(button("×", () => choose(null), "close"), make("h2", title), make("div", path, "path"));
    panel.firstChild.setAttribute("aria-label", "Close");
    panel.scrollTop = 0;
  };

  const showNode = (item, index) => {
    const node = data.nodes[index], m = node.measured;
    if (node.kind !== "node") {
      heading(node.name, node.kind === "input" ? "input" : "output");
      const v = node.kind === "input" ? node.outputs[0] : node.inputs[0];
      section("Value", valueList([v], null, node.kind === "input" ? targets : source));
      return;
    }
    heading(node.op, node.name);
    if (item.children) panel.append(toggler(item));
    const inBox = pathOf(item);
    section("Node", facts([["operator", `${node.domain || "ai.onnx"} ${node.op}`], ["version", String(node.version)], ["in", inBox]]));
    if (node.origin.length) section("In the file", reasons(node.origin.map(([op, name]) => [op, name])));
    section("Placement", facts([["provider", node.provider], ["kernel", Model.kernel(node)],
      ["compiled", m && m.kernel !== node.kernel ? node.kernel : ""], ["part", node.part]]),
      ...(node.reasons.length ? [reasons(node.reasons)] : []));
    if (m) {
      const rows = [["time", `${Format.seconds(m.seconds)}${m.calls > 1 ? `, ${m.calls} calls` : ""}`],
        ["of the run", spent ? Format.percent(m.seconds / spent) : ""], ["operations", m.flop ? Format.count(m.flop, "FLOP") : ""],
        ["bytes", m.bytes ? Format.bytes(m.bytes) : ""], ["rate", m.flop && m.seconds ? Format.count(m.flop / m.seconds, "FLOP/s") : ""],
        ["reads", m.fused.length > 1 ? m.inputs.join(", ") : ""], ["gives", m.fused.length > 1 ? m.outputs.join(", ") : ""],
        ["bound by", m.bound === "memory" ? "memory" : m.bound === "compute" ? "arithmetic" : m.bound]];
      const list = facts(rows);
      if (m.share !== undefined && m.share !== null) {
        list.append(make("dt", "of the peak"));
        const cell = list.appendChild(make("dd", Format.percent(m.share)));
        const bar = cell.appendChild(make("div", undefined, "bar")).appendChild(make("i"));
        bar.style.width = `${Math.min(100, 100 * m.share)}%`;
      }
      const fused = m.fused.filter((name) => name !== node.name);
      section("Run", list, ...(fused.length ? [together(fused)] : []));
    } else if (node.free || heads.has(node.name)) {
      const line = make("p", node.free ? "Follows from shapes alone: it costs a run nothing." : "Computed by the kernel of ", "note");
      if (!node.free) line.append(goto(heads.get(node.name)));
      section("Run", line);
    } else if (data.runs) section("Run", make("p", "It did not run.", "note"));
    if (data.checked) {
      const d = node.distance, times = (x) => (x === null || x === undefined ? "beyond measure" : `${x.toPrecision(2)} × what is allowed`);
      section("Against the definition", d ? facts([["largest", d.largest === null ? "not comparable" : d.largest.toExponential(1)],
        ["that is", times(d.excess)], ["of its own", d.own === null ? "" : times(d.own)]]) :
        make("p", "Not compared: this value is not in the model as it was given.", "note"));
    }
    if (node.attributes.length) section("Attributes", facts(node.attributes));
    const alone = m && m.fused.length < 2, of = (types, values) => alone && types.length === values.length ? types : null;
    if (node.inputs.length) section("Inputs", valueList(node.inputs, m && of(m.inputs, node.inputs), source));
    if (node.outputs.length) section("Outputs", valueList(node.outputs, m && of(m.outputs, node.outputs), targets));
  };

  const reasons = (rows) => {
    const list = make("ul");
    rows.forEach(([who, why]) => {
      const row = list.appendChild(make("li"));
      row.append(make("span", who, "value"), make("span", why, "type"));
    });
    return list;
  };

  const together = (names) => {
    const line = make("p", "Together with ", "note");
    names.slice(0, 12).forEach((name, i) => {
      line.append(i ? ", " : "", named.has(name) ? goto(named.get(name)) : name);
    });
    if (names.length > 12) line.append(` and ${names.length - 12} more`);
    return line;
  };

  const toggler = (item) => {
    const line = button(item.open ? "Close this box" : "Open this box", () => toggle(item));
    line.style.marginBottom = "4px";
    return line;
  };

  const showGroup = (item) => {
    heading(item.group.title, pathOf(item));
    panel.append(toggler(item));
    const nodes = model.inside(item);
    section("Inside", facts([["nodes", nodes.length.toLocaleString("en")],
      ["time", item.seconds ? `${Format.seconds(item.seconds)}, ${Format.percent(item.seconds / spent)} of the run` : ""]]));
    tally(nodes);
  };

  /* Operators of some nodes, and the slowest of them. */
  const tally = (nodes) => {
    const counts = new Map();
    nodes.forEach((node) => {
      const at = counts.get(node.op) || [0, 0];
      counts.set(node.op, [at[0] + 1, at[1] + (node.measured ? node.measured.seconds : 0)]);
    });
    const rows = [...counts].sort((a, b) => b[1][1] - a[1][1] || b[1][0] - a[1][0]).slice(0, 14).map(([op, [count, seconds]]) => {
      const row = make("li", undefined, "row");
      row.append(make("span", op), make("span", seconds ? `${count} · ${Format.seconds(seconds)}` : String(count)));
      return row;
    });
    const list = make("ul");
    list.append(...rows);
    section("Operators", list);
    const slow = nodes.filter((n) => n.measured).sort((a, b) => b.measured.seconds - a.measured.seconds).slice(0, 8);
    if (!slow.length) return;
    const top = make("ul");
    slow.forEach((node) => {
      const row = top.appendChild(make("li", undefined, "row"));
      row.append(goto(node.index), make("span", Format.seconds(node.measured.seconds)));
    });
    section("Slowest", top);
  };

  const showModel = () => {
    heading(data.model, data.facts.length > 1 ? "the graph as it runs" : "the graph in the file");
    panel.firstChild.remove();
    section("Model", facts(data.facts));
    if (data.seconds) {
      section("Run", facts([["time", `${Format.seconds(data.seconds)}, mean of ${data.runs}`],
        ["taken apart", data.stepwise ? Format.seconds(data.stepwise) : ""], ["in nodes", spent ? Format.seconds(spent) : ""],
        ["disturbed", data.others >= 0.3 ? `other programs kept ${data.others.toFixed(1)} processors busy; the times are too long` : ""],
        ["machine", data.peak.flops ? `${Format.count(data.peak.flops, "FLOP/s")}, ${Format.count(data.peak.bandwidth, "B/s")}, ` +
          `${data.peak.threads} thread${data.peak.threads === 1 ? "" : "s"}` : ""]]));
    }
    for (const kind of ["input", "output"]) {
      const list = make("ul");
      data.nodes.forEach((node, index) => {
        if (node.kind !== kind || (node.group >= 0 && data.groups[node.group].kind !== "border")) return;
        const value = data.values[kind === "input" ? node.outputs[0] : node.inputs[0]];
        const row = list.appendChild(make("li"));
        row.append(goto(index), make("span", value.type, "type"));
      });
      if (list.children.length) section(kind === "input" ? "Inputs" : "Outputs", list);
    }
    tally(real);
    if (data.passes.length) section("Passes that changed the graph", facts(data.passes.map(([name, count]) => [name.replaceAll("_", " "), String(count)])));
    const keys = [["/", "search"], ["Esc", "close"], ["f", "show everything"], ["+ −", "zoom"], ["arrows", "move"], ["Enter", "open or close the chosen box"]];
    section("Keys", facts(keys));
  };

  return (item) => {
    if (!item) showModel();
    else if (item.nodeIndex !== undefined) showNode(item, item.nodeIndex);
    else showGroup(item);
  };
};
