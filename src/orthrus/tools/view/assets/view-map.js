"use strict";
/* The whole graph in little beside a long one, with what the large canvas shows of it; a press there moves that canvas.

   In: a canvas and the painter it follows. The map is hidden while everything is in sight. */

class Overview {
  constructor(canvas, painter) {
    Object.assign(this, { canvas, painter, context: canvas.getContext("2d") });
    const move = (e) => {
      const box = canvas.getBoundingClientRect(), { view } = painter;
      view.y = painter.height / 2 - ((e.clientY - box.top - this.top) / this.k) * view.k;
      view.x = painter.width / 2 - ((e.clientX - box.left - this.left) / this.k) * view.k;
      painter.dirty();
    };
    canvas.addEventListener("pointerdown", (e) => {
      canvas.setPointerCapture(e.pointerId);
      move(e);
    });
    canvas.addEventListener("pointermove", (e) => { if (e.buttons) move(e); });
    painter.ondraw = () => this.draw();
  }

  draw() {
    const { canvas, painter, context: c } = this, { root } = painter.tree, { view, theme } = painter;
    const hidden = root.h * view.k <= painter.height + 1 && root.w * view.k <= painter.width + 1;
    canvas.style.visibility = hidden ? "hidden" : "visible";
    if (hidden || !root.made) return;
    const ratio = window.devicePixelRatio || 1, { clientWidth: width, clientHeight: height } = canvas;
    if (!width || !height) return;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    this.k = Math.min((width - 12) / root.w, (height - 12) / root.h);
    this.left = (width - root.w * this.k) / 2;
    this.top = 6;
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.boxes(root);
    const right = Math.min(width - 1, this.left + ((painter.width - view.x) / view.k) * this.k);
    const bottom = Math.min(height - 1, this.top + ((painter.height - view.y) / view.k) * this.k);
    const x = Math.max(1, this.left - (view.x / view.k) * this.k), y = Math.max(1, this.top - (view.y / view.k) * this.k);
    c.strokeStyle = theme.accent;
    c.lineWidth = 1.5;
    c.strokeRect(x, y, Math.max(3, right - x), Math.max(3, bottom - y));
  }

  boxes(box) {
    const { context: c, painter } = this;
    box.children.forEach((item) => {
      if (item.open) return this.boxes(item);
      const { fill, bar } = painter.colour(item);
      c.fillStyle = bar || fill || painter.theme["line-strong"];
      c.fillRect(this.left + item.x * this.k, this.top + item.y * this.k, Math.max(2, item.w * this.k), Math.max(1, item.h * this.k - 1));
      return undefined;
    });
  }
}
