// What the fleet's model was trained for.
import { get } from "./api";
import type { TrainedQuestions } from "./types";

/** A question without what does not change its meaning: case, punctuation and white space. */
const bare = (question: string): string =>
  question
    .normalize("NFKC")
    .toLowerCase()
    .replaceAll("’", "'")
    .replace(/[^\p{L}\p{N}']+/gu, " ")
    .trim();

class Trained {
  /** Undefined: unknown, perhaps only for now. */
  found = $state.raw<TrainedQuestions>();

  async load(): Promise<void> {
    if (!this.found) this.found = await get<TrainedQuestions>("/v1/questions").catch(() => undefined);
  }

  /** The entry of a question, in any of its wordings. */
  of(question: string) {
    return this.found?.questions?.find((one) => one.wordings?.some((wording) => bare(wording) === bare(question)));
  }

  /** How well it answers, in words. */
  usual(): string[] {
    return (this.found?.questions ?? []).flatMap((one) => one.wordings?.slice(0, 1) ?? []);
  }
}

export const trained = new Trained();

/** The F1 score below which answers are called often wrong; not applied to what was not measured. */
const WEAK = 0.7;
export const isWeak = (f1: number | undefined): boolean => f1 !== undefined && f1 < WEAK;
