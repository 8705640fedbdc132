import type { Camera } from "./types";

/** How a camera is: what is wrong with it, else what became of its newest window. */
export const stateOf = (camera: Camera): string =>
  (camera.state !== "offline" && camera.fault) || (camera.state ?? "unspecified");

const GOOD = ["watched", "idle"];
const WEAK = ["degraded", "skipped", "unwatched", "unspecified"];

/** How bad that is, as a class of badges. */
export function tone(camera: Camera): string {
  const state = stateOf(camera);
  return GOOD.includes(state) ? "good" : WEAK.includes(state) ? "warn" : "bad";
}
