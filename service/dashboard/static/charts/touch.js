// Fingers on a chart: one reads the values, or moves the range of a chart that is zoomed; two zoom. Scales follow the
// fingers, and when they are lifted the points of the new range are asked for.

const LEAST_MOVE = 8;
const CLOSEST = 24; // of two fingers, px

// `chart` has `plot`, `zoomed`, `point` to read the values at a place, and `choose` to load a range.
export function followFingers(box, chart) {
  const fingers = new Map();
  let gesture = null;

  function place(event) {
    return event.clientX - chart.plot.over.getBoundingClientRect().left;
  }

  // The values of x that the fingers hold.
  function begin() {
    const { min, max } = chart.plot.scales.x;
    const held = [...fingers.values()].map((at) => chart.plot.posToVal(at, "x"));
    gesture = { held, from: [...fingers.values()], range: [min, max], moved: gesture?.moved ?? false };
  }

  // The range in which the held values are under the fingers again.
  function rangeNow() {
    const width = chart.plot.over.clientWidth;
    const now = [...fingers.values()];
    const [min, max] = gesture.range;
    if (now.length === 1) {
      const shift = ((gesture.from[0] - now[0]) / width) * (max - min);
      return [min + shift, max + shift];
    }
    const apart = now[1] - now[0];
    if (Math.abs(apart) < CLOSEST) return null;
    const scale = (gesture.held[1] - gesture.held[0]) / apart;
    return scale > 0 ? [gesture.held[0] - now[0] * scale, gesture.held[0] + (width - now[0]) * scale] : null;
  }

  box.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "mouse" || !chart.plot || fingers.size === 2) return;
    box.setPointerCapture(event.pointerId);
    fingers.set(event.pointerId, place(event));
    if (fingers.size === 1) gesture = null;
    begin();
    if (fingers.size === 1) chart.point(event);
  });

  box.addEventListener("pointermove", (event) => {
    if (!fingers.has(event.pointerId)) return;
    fingers.set(event.pointerId, place(event));
    if (fingers.size === 1 && !chart.zoomed) {
      if (!gesture.moved) chart.point(event);
      return;
    }
    gesture.moved ||= [...fingers.values()].some((at, finger) => Math.abs(at - gesture.from[finger]) >= LEAST_MOVE);
    const range = gesture.moved ? rangeNow() : null;
    if (range) chart.plot.setScale("x", { min: range[0], max: range[1] });
  });

  for (const type of ["pointerup", "pointercancel"]) {
    box.addEventListener(type, (event) => {
      if (!fingers.delete(event.pointerId)) return;
      if (fingers.size) begin();
      else if (gesture.moved) {
        const { min, max } = chart.plot.scales.x;
        chart.choose(min, max);
        gesture = null;
      }
    });
  }
}
