// What a version of a watch changed, in the form's words.
import { text } from "./text";
import { span } from "./time";
import type { Watch, Zone } from "./types";

export type Difference = { name: string; before: string; now: string };

const percent = (share: number) => `${Math.round(share * 100)} %`;
const yes = (set: boolean | undefined) => (set ? text.watches.isOn : text.watches.isOff);

function schedule(watch: Watch): string {
  const spans = watch.rule?.schedule ?? [];
  const told = spans.map((one) => {
    const days = (one.weekdays ?? []).map((day) => text.watches.days[day - 1]).join(", ");
    return `${days} ${one.start}–${one.end} ${one.time_zone || "UTC"}`.trim();
  });
  return told.join("; ") || text.watches.always;
}

/** The share of the picture that a zone covers (shoelace formula). */
function area({ points = [] }: Zone): number {
  const sum = points.reduce((all, point, place) => {
    const next = points[(place + 1) % points.length] ?? point;
    return all + (point.x ?? 0) * (next.y ?? 0) - (next.x ?? 0) * (point.y ?? 0);
  }, 0);
  return Math.abs(sum) / 2;
}

function zones(watch: Watch): string {
  const told = (watch.rule?.zones ?? []).map((zone, place) =>
    text.watches.zoneOf(zone.name || text.watches.zone(place + 1), percent(area(zone))),
  );
  return told.join(", ") || text.watches.wholePicture;
}

/** Every field that a person may change: its name, its value, and the value in words. */
const FIELDS: [string, (watch: Watch) => unknown, (watch: Watch) => string][] = [
  [text.question, (one) => one.question, (one) => one.question ?? ""],
  [text.watches.cameras, (one) => one.cameras, (one) => one.cameras?.join(", ") || text.watches.everyCamera],
  [text.watches.threshold, (one) => one.rule?.threshold || 0.5, (one) => percent(one.rule?.threshold || 0.5)],
  [text.watches.clear, (one) => one.rule?.clear_threshold || 0, (one) => percent(one.rule?.clear_threshold || one.rule?.threshold || 0.5)],
  [text.watches.raise, (one) => [one.rule?.k || 1, one.rule?.n || one.rule?.k || 1], (one) => text.watches.kOfN(one.rule?.k || 1, one.rule?.n || one.rule?.k || 1)],
  [text.watches.quiet, (one) => one.rule?.cooldown_s ?? 0, (one) => span(one.rule?.cooldown_s)],
  [text.watches.schedule, (one) => one.rule?.schedule ?? [], schedule],
  [text.watches.zones, (one) => one.rule?.zones ?? [], zones],
  [text.watches.gate, (one) => [one.gate?.watch ?? "", one.gate?.motion ?? false], (one) => [one.gate?.watch && text.watches.saysYes(one.gate.watch), one.gate?.motion && text.watches.gateMotion].filter(Boolean).join(", ") || text.watches.noGate],
  [text.watches.describe, (one) => one.describe ?? false, (one) => yes(one.describe)],
  [text.watches.keep, (one) => one.keep ?? false, (one) => yes(one.keep)],
  [text.watches.verify, (one) => one.verify ?? false, (one) => yes(one.verify)],
  [text.watches.verifyWith, (one) => one.verify_with ?? "", (one) => one.verify_with || text.watches.firstModel],
  [text.watches.askedOf, (one) => one.asked === "strides", (one) => (one.asked === "strides" ? text.watches.askedOfStrides : text.watches.askedOfWindows)],
  [text.watches.asks, (one) => !one.disabled, (one) => (one.disabled ? text.watches.paused : text.watches.on)],
  [text.watches.priority, (one) => one.priority || "normal", (one) => one.priority || "normal"],
  [text.watches.severity, (one) => one.severity || "warning", (one) => one.severity || "warning"],
  [text.watches.tenant, (one) => one.tenant ?? "", (one) => one.tenant || text.watches.everyTenant],
];

/** The fields in which a version differs from the previous one. */
export function differences(before: Watch, now: Watch): Difference[] {
  return FIELDS.filter(([, value]) => JSON.stringify(value(before)) !== JSON.stringify(value(now))).map(([name, , said]) => {
    const [old, next] = [said(before), said(now)];
    // If corners were moved, the zone may still be as large as before.
    return { name, before: old, now: old === next ? `${next} ${text.watches.redrawn}` : next };
  });
}
