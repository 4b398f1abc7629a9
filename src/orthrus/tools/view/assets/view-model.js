"use strict";
/* The page's data with what is looked up often. In: what Python wrote. Out: `Model`: fields that were left out filled in, who makes
   and who reads each value, what was measured. */

class Model {
  constructor(data) {
    this.data = data;
    data.nodes.forEach((node, index) => {
      Object.assign(node, { provider: "", kernel: "", part: "", op: "", domain: "", inputs: [], outputs: [], attributes: [], origin: [],
        reasons: [], ...node, index });
    });
    data.values.forEach((value) => Object.assign(value, { name: "", type: "", kind: "", text: "", ...value }));
    this.makers = new Map();
    this.readers = new Map();
    data.edges.forEach(([from, to, value]) => {
      this.makers.set(value, from);
      if (!this.readers.has(value)) this.readers.set(value, []);
      this.readers.get(value).push(to);
    });
    this.real = data.nodes.filter((node) => node.kind === "node");
    this.measured = this.real.filter((node) => node.measured);
    this.spent = this.measured.reduce((sum, node) => sum + node.measured.seconds, 0);
    this.longest = this.measured.reduce((most, node) => Math.max(most, node.measured.seconds), 0);
    this.named = new Map(this.real.map((node) => [node.name, node.index]));
    this.heads = new Map();
    this.measured.forEach((node) => node.measured.fused.forEach((name) => {
      if (name !== node.name) this.heads.set(name, node.index);
    }));
    this.leaves = new Map();
  }

  /* The nodes of an item: its own, and all inside it. */
  inside(item) {
    if (!this.leaves.has(item)) {
      const found = item.node ? [item.node] : [];
      (item.children || []).forEach((child) => this.inside(child).forEach((node) => found.push(node)));
      this.leaves.set(item, found.filter((node) => node.kind === "node"));
    }
    return this.leaves.get(item);
  }
}

/* The kernel that ran, else the one that was made. */
Model.kernel = (node) => (node.measured && node.measured.kernel) || node.kernel;
