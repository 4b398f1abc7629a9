"use strict";
/* Which colour a node has: by provider, time or operator. In: the model and the theme. Out: `of(item)`: {fill, bar, ink}, and the
   entries of a legend. */

class Colours {
  constructor(model, painter) {
    Object.assign(this, { model, painter, mode: "provider", kept: new Map(), solids: new Map() });
    const counts = new Map();
    model.real.forEach((node) => {
      const name = Colours.engine(node);
      counts.set(name, (counts.get(name) || 0) + 1);
    });
    this.engines = [...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a) || (a < b ? -1 : 1));
  }

  /* The provider, and what of it computes a node. */
  static engine(node) {
    const short = node.provider.replace(/ExecutionProvider$/, "");
    if (/^(reference|numpy)/.test(Model.kernel(node)) || node.reasons.some(([who]) => who === "on numpy")) return `${short}, numpy`;
    if (/^generated/.test(node.kernel)) return `${short}, generated code`;
    return /^control/.test(node.kernel) ? `${short}, control flow` : short || "not placed";
  }

  static family(op) {
    return Colours.families.find(({ names }) => names.test(op)) || Colours.elementwise;
  }

  /* The colour of the operator's family, which plots use too. */
  family(node) {
    return this.painter.theme[`c${Colours.family(node.op).colour}`];
  }

  forget() {
    this.kept.clear();
    this.solids.clear();
  }

  /* A colour that a canvas takes: custom properties and mixtures worked out. */
  solid(text) {
    if (!this.solids.has(text)) {
      const probe = document.body.appendChild(make("i"));
      probe.style.color = text;
      this.solids.set(text, getComputedStyle(probe).color);
      probe.remove();
    }
    return this.solids.get(text);
  }

  mix(a, b, share) {
    return this.solid(`color-mix(in oklab, ${a} ${Math.round(100 * (1 - share))}%, ${b})`);
  }

  heat(share) {
    const { theme } = this.painter, step = Math.round(20 * Math.sqrt(Math.min(1, share))) / 20;
    return {
      fill: step < 0.5 ? this.mix(theme["heat-low"], theme["heat-mid"], 2 * step) : this.mix(theme["heat-mid"], theme["heat-high"], 2 * step - 1),
      ink: step > 0.78 ? theme["ink-high"] : step > 0.25 ? theme["ink-mid"] : undefined,
    };
  }

  of(item) {
    const key = item.open ? null : item;
    if (!this.kept.has(key)) this.kept.set(key, this.fresh(item));
    return this.kept.get(key);
  }

  fresh(item) {
    const { painter: { theme }, model } = this, node = item.children ? null : item.node;
    if (node && node.kind !== "node") return {};
    if (this.mode === "time") {
      const seconds = node ? (node.measured ? node.measured.seconds : 0) : item.seconds;
      const most = node ? model.longest : Math.max(model.longest, ...item.parent.children.map((it) => (it.children && !it.open ? it.seconds : 0)));
      return seconds && most ? this.heat(seconds / most) : { fill: theme["heat-low"] };
    }
    const counts = new Map();
    model.inside(item).forEach((each) => {
      const colour = this.mode === "operator" ? this.family(each) : theme[`c${this.engines.indexOf(Colours.engine(each)) % 8}`];
      counts.set(colour, (counts.get(colour) || 0) + 1);
    });
    const [bar] = [...counts].reduce((best, each) => (each[1] > best[1] ? each : best), [undefined, 0]);
    return bar ? { bar, fill: this.mix(theme.node, bar, 0.07) } : {};
  }

  legend() {
    const { theme } = this.painter;
    const swatch = (colour, text) => {
      const entry = make("span"), mark = entry.appendChild(make("i"));
      mark.style.background = colour;
      entry.append(text);
      return entry;
    };
    if (this.mode === "provider") return this.engines.map((name, i) => swatch(theme[`c${i % 8}`], name));
    if (this.mode === "operator") {
      const present = new Set(this.model.real.map((node) => Colours.family(node.op)));
      return [Colours.elementwise, ...Colours.families].filter((family) => present.has(family))
        .map(({ title, colour }) => swatch(theme[`c${colour}`], title));
    }
    const ramp = swatch(`linear-gradient(90deg, ${theme["heat-low"]}, ${theme["heat-mid"]}, ${theme["heat-high"]})`, "");
    ramp.firstChild.className = "ramp";
    ramp.prepend("0");
    ramp.append(`${Format.seconds(this.model.longest)} in a node`);
    return [ramp];
  }
}

Colours.elementwise = { title: "elementwise", colour: 1 };
Colours.families = [
  { title: "control flow", colour: 4, names: /^(If|Loop|Scan)$|^Sequence|^Optional/ },
  { title: "products", colour: 0, names: /Conv|MatMul|Gemm|Einsum|Attention|LSTM|GRU|RNN|TreeEnsemble/ },
  { title: "normalization and reduction", colour: 2, names: /Norm|Softmax|Reduce|Pool|TopK|ArgM/ },
  { title: "quantization and casts", colour: 6, names: /Quantize|Cast/ },
  { title: "movement", colour: 5, names: /Reshape|Transpose|Slice|Concat|Split|Gather|Squeeze|Flatten|Expand|Pad|Shape|Tile|Scatter|Resize|Identity|DepthToSpace/ },
];
