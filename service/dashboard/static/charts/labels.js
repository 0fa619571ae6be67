// The labels of marks beside them, on the side that has room, each above those that it would cover.

const BESIDE = 10; // px
const ABOVE = 5;
const LINE = 15; // height

export function drawLabels(plot, marks, colour) {
  const { ctx, bbox } = plot;
  const written = [];
  const px = (length) => length * devicePixelRatio;
  ctx.save();
  Object.assign(ctx, { font: `${px(12)}px system-ui, sans-serif`, fillStyle: colour, textAlign: "left" });
  for (const { label, x, y } of marks) {
    const [left, top] = [plot.valToPos(x[0], "x", true), plot.valToPos(y[0], "y", true)];
    if (left < bbox.left || left > bbox.left + bbox.width) continue;
    const { width } = ctx.measureText(label);
    const start = left > bbox.left + bbox.width / 2 ? left - px(BESIDE) - width : left + px(BESIDE);
    let bottom = Math.max(top - px(ABOVE), bbox.top + px(LINE));
    const covered = () => written.find((other) => start < other.end && other.start < start + width && Math.abs(other.bottom - bottom) < px(LINE));
    for (let other = covered(); other && other.bottom - px(LINE) > bbox.top; other = covered()) bottom = other.bottom - px(LINE);
    written.push({ start, end: start + width, bottom });
    ctx.fillText(label, start, bottom);
  }
  ctx.restore();
  return written;
}
