import { within } from "./api";
import { text } from "./text";
import { at } from "./time";
import type { Camera, Incident } from "./types";

/** A camera's state: its fault, or else the outcome of its newest window. */
export const stateOf = (camera: Camera): string =>
  (camera.state !== "offline" && camera.fault) || (camera.state ?? "unspecified");

const GOOD = ["watched", "idle"];
const DECIDING = ["resolve", "false-positive"];
const DECIDED = ["resolved", "false-positive"];
const WEAK = ["degraded", "skipped", "unwatched", "unspecified"];

/** The severity of that state, as a badge class. */
export function tone(camera: Camera): string {
  const state = stateOf(camera);
  return GOOD.includes(state) ? "good" : WEAK.includes(state) ? "warn" : "bad";
}

/** When an incident became yes: its first window begins before anything can be seen. For a camera fault, its begin. */
export const began = (incident: Incident): string | undefined => incident.raised ?? incident.start;

/** Who resolved an incident, or called it a false positive; empty while it is open, or if its acts are unknown. */
export function decidedBy(incident: Incident): string {
  const last = incident.actions?.findLast((act) => DECIDING.includes(act.kind ?? ""));
  return DECIDED.includes(incident.state ?? "") ? (last?.actor ?? "") : "";
}

/** Why nothing arrives from a camera, as far as that is known. */
export function whyOffline(camera: Camera): string {
  if (camera.pull_error) return camera.pull_error;
  if (camera.pull === "no-room") return text.wall.noRoom;
  return camera.seen ? text.wall.silent(at(camera.seen)) : text.wall.never;
}

/** Why a camera's live picture failed, which a video element does not tell. */
export async function liveFault(camera: string): Promise<string> {
  const stop = new AbortController();
  try {
    const response = await fetch(`/v1/cameras/${within(camera)}/live`, { signal: stop.signal });
    if (response.ok) return text.wall.noPlay;
    const { detail } = (await response.json()) as { detail?: string };
    return detail ? `${text.wall.notLive} ${detail}` : text.wall.notLive;
  } catch {
    return text.wall.notLive;
  } finally {
    stop.abort();
  }
}

/** What is wrong with an address that the user types; empty if nothing is. */
export const addressFault = (address: string): string =>
  /^\s*rtsps?:\/\/[^/?#]*(@|%40)/i.test(address) ? text.start.noPassword : "";
