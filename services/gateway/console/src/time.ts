// Times in the viewer's time zone.

/** A 24-hour clock everywhere, as in the sentences of reports and the pictures of most cameras. */
const STYLE = { dateStyle: "medium", timeStyle: "medium", hourCycle: "h23" } as const;
const whole = new Intl.DateTimeFormat(undefined, STYLE);
const OF_CLOCK = ["hour", "minute", "second", "dayPeriod"];
const relative = new Intl.RelativeTimeFormat(undefined, { numeric: "auto", style: "short" });

export const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;

export const ms = (time: string | undefined): number => (time ? Date.parse(time) : NaN);

/** A time in the format of date and time fields: in the viewer's time zone, to the second. */
export const local = (time: number): string => iso(time - new Date(time).getTimezoneOffset() * 60_000).slice(0, 19);

export const iso = (time: number): string => new Date(time).toISOString();

/** Date and time. */
export const at = (time: string | number | undefined): string =>
  time === undefined ? "–" : whole.format(new Date(time));

/** The same moment in the camera's time zone, in brackets; empty if that is the viewer's, or not known. */
export function elsewhere(time: string | number | undefined, place: string | undefined): string {
  if (!place || place === zone || time === undefined) return "";
  try {
    const there = new Intl.DateTimeFormat(undefined, { ...STYLE, timeZone: place });
    return `(${there.format(new Date(time))} ${place})`;
  } catch {
    return ""; // a zone that this browser does not know
  }
}

/** The time of day, written as next to a date: browsers write it differently on its own. */
export function clock(time: string | number): string {
  const parts = whole.formatToParts(new Date(time));
  const own = parts.map((part) => OF_CLOCK.includes(part.type));
  const shown = parts.slice(own.indexOf(true), own.lastIndexOf(true) + 1);
  return shown.map((part) => part.value).join("");
}

/** The end of a span: only the time of day if it ends on the day on which it began. */
export const until = (begin: string | undefined, end: string | undefined): string =>
  begin && end && new Date(begin).toDateString() === new Date(end).toDateString() ? clock(end) : at(end);

/** "5 min ago". */
export function ago(time: string | undefined, now: number): string {
  if (!time) return "–";
  const seconds = (ms(time) - now) / 1000;
  const units: [Intl.RelativeTimeFormatUnit, number][] = [
    ["day", 86_400],
    ["hour", 3600],
    ["minute", 60],
  ];
  for (const [unit, size] of units) {
    if (Math.abs(seconds) >= size) return relative.format(Math.round(seconds / size), unit);
  }
  return relative.format(Math.round(Math.min(seconds, 0)), "second");
}

/** A duration, as reports write it: to the second below an hour ("5 min 20 s"), then to the minute. */
export function span(seconds: number | undefined): string {
  const rounded = Math.round(seconds ?? 0);
  const [unit, whole] = rounded < 3600 ? [["min", "s"], rounded] : [["h", "min"], Math.round(rounded / 60)];
  const parts = [`${Math.floor(whole / 60)} ${unit[0]}`, `${whole % 60} ${unit[1]}`];
  return parts.filter((part) => !part.startsWith("0 ")).join(" ") || "0 s";
}
