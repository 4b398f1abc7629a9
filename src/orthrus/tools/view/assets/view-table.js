"use strict";
/* All nodes as a table that sorts by any column. In: an element and the model. Out: rows; `choose(index)` is called for a click. */

const nodeTable = (host, model, choose) => {
  const { data, real, measured, spent } = model;
  const columns = [["operator", (n) => n.op, (n) => n.op], ["node", (n) => n.name, (n) => Format.middle(n.name, 52)],
    ["kernel", Model.kernel, Model.kernel], ["provider", (n) => n.provider, (n) => n.provider.replace(/ExecutionProvider$/, "")]];
  if (measured.length) {
    const of = (key) => (n) => (n.measured && n.measured[key] !== null ? n.measured[key] : -1);
    columns.push(["time", of("seconds"), (n) => (n.measured ? Format.seconds(n.measured.seconds) : "")],
      ["share", of("seconds"), (n) => (n.measured && spent ? Format.percent(n.measured.seconds / spent) : "")],
      ["FLOP", of("flop"), (n) => (n.measured && n.measured.flop ? Format.count(n.measured.flop) : "")],
      ["bytes", of("bytes"), (n) => (n.measured && n.measured.bytes ? Format.bytes(n.measured.bytes) : "")],
      ["of peak", of("share"), (n) => (n.measured && typeof n.measured.share === "number" ? Format.percent(n.measured.share) : "")]);
  }
  if (data.checked) columns.push(["difference", (n) => n.distance?.excess ?? -1, (n) => (n.distance ? (n.distance.largest ?? NaN).toExponential(1) : "")]);
  let by = measured.length ? 4 : 0, down = measured.length > 0, limit = 500;
  const scroll = make("div", undefined, "scroll");
  host.replaceChildren(scroll);
  const fill = () => {
    const [, key] = columns[by], order = real.map((node) => [key(node), node]);
    order.sort((a, b) => (a[0] < b[0] ? -1 : a[0] > b[0] ? 1 : 0) * (down ? -1 : 1));
    const table = make("table"), header = table.appendChild(make("thead")).appendChild(make("tr")), body = table.appendChild(make("tbody"));
    columns.forEach(([name], i) => {
      const cell = header.appendChild(make("th", undefined, i > 3 ? "number" : ""));
      cell.append(button(name, () => {
        down = by === i ? !down : i > 3;
        by = i;
        fill();
      }));
      if (i === by) cell.setAttribute("aria-sort", down ? "descending" : "ascending");
    });
    order.slice(0, limit).forEach(([, node]) => {
      const row = body.appendChild(make("tr"));
      columns.forEach(([, , text], i) => {
          const cell = row.appendChild(make("td", text(node), i > 3 ? "number" : ""));
          if (i < 4) cell.title = i === 1 ? node.name : cell.textContent;
        });
      row.addEventListener("click", () => choose(node.index));
    });
    scroll.replaceChildren(table);
    if (order.length > limit) {
      scroll.append(button(`Show all ${order.length.toLocaleString("en")}`, () => {
        limit = Infinity;
        fill();
      }, "more"));
    }
  };
  fill();
  return null;
};
