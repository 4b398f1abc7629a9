"use strict";
/* Numbers, names and small elements for people. In: plain values. Out: texts, and elements whose text is always text. */

const Format = {
  seconds: (s) => (s >= 1 ? `${s.toFixed(2)} s` : s >= 1e-3 ? `${(1e3 * s).toFixed(s >= 0.1 ? 0 : 2)} ms` : `${(1e6 * s).toFixed(1)} µs`),
  bytes: (n) => Format.scaled(n, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]),
  count: (n, unit = "") => Format.scaled(n, 1000, [unit, `k${unit}`, `M${unit}`, `G${unit}`, `T${unit}`, `P${unit}`]),
  most: (numbers) => numbers.reduce((a, b) => Math.max(a, b), -Infinity),
  least: (numbers) => numbers.reduce((a, b) => Math.min(a, b), Infinity),
  percent: (x) => `${(100 * x).toFixed(x < 0.0995 ? 1 : 0)} %`,
  middle: (text, most) => (text.length <= most ? text : `${text.slice(0, Math.ceil(most / 2) - 1)}…${text.slice(text.length - Math.floor(most / 2))}`),
  scaled: (n, base, units) => {
    let i = 0;
    while (Math.abs(n) >= base && i < units.length - 1) {
      n /= base;
      i += 1;
    }
    return `${+(i ? n.toPrecision(n < 1000 ? 3 : 4) : n.toFixed(0))} ${units[i]}`.trim();
  },
  /* float[1, 3, N] as 1×3×N; names too long to show beside a line are ?. */
  dims: (type) => {
    const found = /\[([^\]]*)\]/.exec(type);
    return found ? found[1].split(/,\s*/).map((d) => (d.length > 8 ? "?" : d)).join("×") : "";
  },
  leaf: (node) => {
    const parts = node.name.split("/").filter(Boolean);
    while (parts.length > 1 && parts[parts.length - 1] === node.op) parts.pop();
    return parts[parts.length - 1] || node.name;
  },
};

const make = (tag, text, className) => {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  return element;
};
const button = (text, click, className) => {
  const element = make("button", text, className);
  element.addEventListener("click", click);
  return element;
};
