// Files that the page creates.

/** Offer a text for download as a file. */
export function save(name: string, type: string, content: string): void {
  const address = URL.createObjectURL(new Blob([content], { type }));
  const anchor = document.createElement("a");
  anchor.href = address;
  anchor.download = name;
  anchor.click();
  URL.revokeObjectURL(address);
}

function cell(value: unknown): string {
  const plain = String(value ?? "");
  // A spreadsheet would run text that begins like a formula.
  return `"${(/^[\s]*[=+\-@＝＋－＠]/.test(plain) ? `'${plain}` : plain).replaceAll('"', '""')}"`;
}

/** Rows as CSV (RFC 4180). */
export const csv = (rows: unknown[][]): string => rows.map((row) => row.map(cell).join(",")).join("\r\n");

const two = (value: number): string => String(Math.floor(value)).padStart(2, "0");

/** A time within a recording: 1:02:03. */
export function position(seconds: number): string {
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor((seconds % 3600) / 60)];
  return hours ? `${hours}:${two(minutes)}:${two(seconds % 60)}` : `${minutes}:${two(seconds % 60)}`;
}

function cueTime(seconds: number): string {
  const all = Math.round(seconds * 1000);
  const [hours, minutes] = [all / 3_600_000, (all % 3_600_000) / 60_000];
  return `${two(hours)}:${two(minutes)}:${two((all % 60_000) / 1000)},${String(all % 1000).padStart(3, "0")}`;
}

export type Cue = { start: number; end: number; text: string };

/** Subtitles (SubRip) in order of time. Subtitles cannot escape markup: an invisible word joiner breaks tags. */
export const srt = (cues: Cue[]): string =>
  cues
    .toSorted((one, other) => one.start - other.start || one.end - other.end)
    .map((cue, place) => {
      const plain = cue.text.replace(/\s+/g, " ").replaceAll("<", "<\u2060").replaceAll("{", "(").replaceAll("}", ")");
      return `${place + 1}\n${cueTime(cue.start)} --> ${cueTime(cue.end)}\n${plain}\n`;
    })
    .join("\n");
