// A bar between two parts that changes the size of one of them, by dragging and by arrow keys. The size is a custom
// property of the document, which the style uses.
import { h } from "./dom";

const SIZES: Record<
  string,
  { property: string; isVertical: boolean; size: number; least: number; most: number; sign: number }
> = {
  memory: { property: "--memory-height", isVertical: true, size: 150, least: 50, most: 500, sign: 1 },
  moment: { property: "--moment-height", isVertical: true, size: 132, least: 40, most: 500, sign: -1 },
  side: { property: "--side-width", isVertical: false, size: 376, least: 220, most: 720, sign: -1 },
};

export function splitter(name: string, label: string, changed: () => void): HTMLElement {
  const kind = SIZES[name]!;
  const element = h("div", {
    class: `splitter ${name}`,
    role: "separator",
    tabindex: 0,
    "aria-label": label,
    "aria-orientation": kind.isVertical ? "horizontal" : "vertical",
    "aria-valuemin": kind.least,
    "aria-valuemax": kind.most,
    "aria-valuenow": kind.size,
  });
  const set = (size: number): void => {
    kind.size = Math.round(Math.max(kind.least, Math.min(kind.most, size)));
    document.documentElement.style.setProperty(kind.property, `${kind.size}px`);
    element.setAttribute("aria-valuenow", String(kind.size));
    changed();
  };
  element.addEventListener("pointerdown", (e) => {
    element.setPointerCapture(e.pointerId);
    const start = kind.isVertical ? e.clientY : e.clientX;
    const size = kind.size;
    const move = (m: PointerEvent): void => set(size + kind.sign * ((kind.isVertical ? m.clientY : m.clientX) - start));
    const end = (): void => {
      element.removeEventListener("pointermove", move);
      element.removeEventListener("pointerup", end);
      element.removeEventListener("pointercancel", end);
    };
    element.addEventListener("pointermove", move);
    element.addEventListener("pointerup", end);
    element.addEventListener("pointercancel", end);
  });
  element.addEventListener("keydown", (e) => {
    const step = { ArrowUp: -16, ArrowLeft: -16, ArrowDown: 16, ArrowRight: 16 }[e.key];
    if (step === undefined) return;
    e.preventDefault();
    e.stopPropagation();
    set(kind.size + kind.sign * step);
  });
  return element;
}
