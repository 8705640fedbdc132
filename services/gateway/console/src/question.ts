// Checks of a question before it is asked.
import { text } from "./text";
import type { Verdict, Watch } from "./types";

/** Allowed answers and a condition at the end of a question. */
const STRUCTURE = /\s*\[[^[\]]*\]\s*when\s+\S.*$/i;
export const isStructured = (question = ""): boolean => STRUCTURE.test(question);
const YES_NO = /^(is|are|am|was|were|do|does|did|has|have|had|can|could|will|would|should)\b/i;

/** Another watch that asks the same question. */
export const twin = (question: string, id: string, others: Watch[]): Watch | undefined =>
  others.find((watch) => watch.id !== id && watch.question?.trim().toLowerCase() === question.trim().toLowerCase());

/** What may be wrong with a question, in words; empty for a good question. */
export function doubts(question: string, id: string, others: Watch[]): string[] {
  const whole = question.trim();
  const plain = whole.replace(STRUCTURE, "");
  const found: string[] = [];
  if (!plain) return found;
  if (!plain.endsWith("?")) found.push(text.watches.checks.mark);
  if (plain === whole && !YES_NO.test(plain)) found.push(text.watches.checks.yesno);
  if ((plain.match(/\?/g) ?? []).length > 1) found.push(text.watches.checks.one);
  if (/\b(not|isn't|aren't|doesn't|without|no)\b/i.test(plain)) found.push(text.watches.checks.not);
  const same = twin(question, id, others);
  if (same) found.push(text.watches.checks.same(same.id ?? ""));
  return found;
}

/** The verdict with the highest p(yes). */
export const peakOf = (verdicts: Verdict[] = []): Verdict | undefined =>
  verdicts.reduce<Verdict | undefined>((best, one) => ((one.p_yes ?? -1) > (best?.p_yes ?? -1) ? one : best), undefined);
