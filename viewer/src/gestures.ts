// Wheel, drag and pinch on a view. Positions are in CSS pixels within the element.

export interface Gestures {
  zoom(x: number, y: number, factorX: number, factorY: number): void;
  pan(dx: number, dy: number): void;
  click(x: number, y: number): void;
  hover(x: number, y: number): void;
  leave(): void;
  box?(x0: number, y0: number, x1: number, y1: number): void;
  dragBox?(x0: number, y0: number, x1: number, y1: number): void;
}

const CLICK_DISTANCE = 4;

export function attach(element: HTMLElement, g: Gestures): void {
  const pointers = new Map<number, { x: number; y: number }>();
  let start = { x: 0, y: 0 };
  let moved = false;
  let isBox = false;

  const at = (e: MouseEvent): { x: number; y: number } => {
    const r = element.getBoundingClientRect();
    return { x: e.clientX - r.left, y: e.clientY - r.top };
  };

  element.addEventListener(
    "wheel",
    (e) => {
      e.preventDefault();
      const p = at(e);
      const scale = e.deltaMode === 1 ? 16 : e.deltaMode === 2 ? 400 : 1;
      const dx = e.deltaX * scale;
      const dy = e.deltaY * scale;
      if (e.shiftKey) g.pan(-(dy || dx), 0);
      else if (Math.abs(dx) > Math.abs(dy)) g.pan(-dx, 0);
      else {
        const factor = Math.exp(Math.max(-1, Math.min(1, dy * (e.ctrlKey ? 0.01 : 0.0022))));
        // A pinch on a touch pad arrives as a wheel with the control key.
        if (e.altKey) g.zoom(p.x, p.y, 1, factor);
        else g.zoom(p.x, p.y, factor, e.ctrlKey || e.metaKey ? factor : 1);
      }
    },
    { passive: false },
  );

  element.addEventListener("pointerdown", (e) => {
    if (e.button !== 0) return;
    const p = at(e);
    pointers.set(e.pointerId, p);
    try {
      element.setPointerCapture(e.pointerId);
    } catch {
      // The pointer is already gone.
    }
    if (pointers.size === 1) {
      start = p;
      moved = false;
      isBox = e.shiftKey && g.box !== undefined;
    } else moved = true;
  });

  element.addEventListener("pointermove", (e) => {
    const p = at(e);
    const last = pointers.get(e.pointerId);
    if (!last) {
      if (e.pointerType !== "touch") g.hover(p.x, p.y);
      return;
    }
    if (pointers.size >= 2) {
      const other = [...pointers.entries()].find(([id]) => id !== e.pointerId)![1];
      const before = { x: Math.abs(last.x - other.x), y: Math.abs(last.y - other.y) };
      const after = { x: Math.abs(p.x - other.x), y: Math.abs(p.y - other.y) };
      // Each direction follows the fingers, unless they are so close that the ratio means nothing.
      g.zoom(
        (p.x + other.x) / 2,
        (p.y + other.y) / 2,
        before.x > 30 && after.x > 30 ? before.x / after.x : 1,
        before.y > 30 && after.y > 30 ? before.y / after.y : 1,
      );
      g.pan((p.x - last.x) / 2, (p.y - last.y) / 2);
    } else {
      if (!moved && Math.hypot(p.x - start.x, p.y - start.y) > CLICK_DISTANCE) moved = true;
      if (moved && isBox) g.dragBox?.(start.x, start.y, p.x, p.y);
      else if (moved) g.pan(p.x - last.x, p.y - last.y);
    }
    pointers.set(e.pointerId, p);
  });

  const end = (e: PointerEvent): void => {
    if (!pointers.delete(e.pointerId)) return;
    const p = at(e);
    if (pointers.size > 0 || e.type === "pointercancel") return;
    if (moved && isBox) g.box?.(start.x, start.y, p.x, p.y);
    else if (!moved) g.click(p.x, p.y);
  };
  element.addEventListener("pointerup", end);
  element.addEventListener("pointercancel", end);
  element.addEventListener("pointerleave", () => g.leave());
}
