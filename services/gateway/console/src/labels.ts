// People's judgements of moments. They are stored as labels, which back-tests use.
import { get, post, remove } from "./api";
import { ms } from "./time";
import type { Label } from "./types";

export const allLabels = async (): Promise<Label[]> => (await get<{ labels?: Label[] }>("/v1/labels")).labels ?? [];

/** The label of a moment. It may overlap only partly, as the windows of other searches may begin earlier or later. */
export const labelOf = (labels: Label[], camera: string | undefined, begin: number, end: number): Label | undefined =>
  labels.find((label) => label.camera === camera && ms(label.start) < end && begin < ms(label.end));

/** Store a judgement of a moment and return its label. The same judgement again removes it and returns undefined. */
export async function judge(known: Label | undefined, moment: Label, right: boolean): Promise<Label | undefined> {
  if (known && (known.right ?? false) === right) return void (await remove(`/v1/labels/${encodeURIComponent(known.incident ?? "")}`));
  return post<Label>("/v1/labels", { right, moment: known ?? moment });
}
