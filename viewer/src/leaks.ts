// Memory that grows from step to step, as `weir leaks` finds it.
import type { App } from "./app";
import { h, type Child } from "./dom";

export function leaksPanel(app: App): Child[] {
  return [h("pre", {}, JSON.stringify(app.recordings[0]!.info.leaks, null, 1))];
}
