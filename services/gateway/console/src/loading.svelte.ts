// Data that a view needs before it can show anything. A failure is shown in its place, and the request repeated.
import { onDestroy } from "svelte";
import { Refused } from "./api";
import { session } from "./session.svelte";
import { text } from "./text";

const AGAIN_MS = 3000;
/** Answers after which the same request may succeed. */
const PASSING = [408, 429, 500, 502, 503, 504];

/** One per view, created with it. Only the newest request counts: earlier ones are abandoned. */
export class Loading<T> {
  /** Why there is nothing to show; empty during a request and after a successful one. */
  failure = $state("");
  #timer = 0;
  #request = new AbortController();

  constructor(
    private readonly fetched: (signal: AbortSignal) => Promise<T>,
    private readonly take: (found: T) => void,
  ) {
    onDestroy(() => this.#stop());
  }

  /** Send a request now; the current content stays until the answer arrives. */
  readonly again = async (): Promise<void> => {
    this.#stop();
    const { signal } = (this.#request = new AbortController());
    try {
      const found = await this.fetched(signal);
      if (signal.aborted) return;
      this.failure = "";
      this.take(found);
    } catch (error) {
      if (!signal.aborted) this.#failed(error);
    }
  };

  #failed(error: unknown): void {
    this.failure = error instanceof Refused ? error.message : text.unreachable;
    session.failed(error);
    if (!(error instanceof Refused) || PASSING.includes(error.status)) {
      this.#timer = window.setTimeout(() => void this.again(), AGAIN_MS);
    }
  }

  #stop(): void {
    clearTimeout(this.#timer);
    this.#request.abort();
  }
}
