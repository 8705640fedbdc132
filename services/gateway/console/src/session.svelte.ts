// The user's session, and the fleet's events during it.
import { get, Refused, remove, useCsrf } from "./api";
import { drafts } from "./drafts";
import { Feed } from "./feed";
import { text } from "./text";
import type { FeedEvent, Session } from "./types";

type Listener = (event: FeedEvent) => void;
const AGAIN_MS = 3000;
const SAID_MS = 8000;
const UNDO_MS = 20_000;

class State {
  who = $state<Session>();
  signedOut = $state(false);
  /** Events arrive; false while the gateway cannot be reached. */
  live = $state(false);
  message = $state("");
  /** Undoes what the message reports. */
  undo = $state.raw<() => void>();
  /** A question before something that cannot be undone; `act` is the label of the button that does it. */
  asked = $state.raw<{ words: string; act: string; answer: (sure: boolean) => void }>();
  now = $state(Date.now());
  #listeners = new Set<Listener>();
  #hide = 0;
  #feed = new Feed(
    (event) => this.#listeners.forEach((listener) => listener(event)),
    (live) => (this.live = live),
    (error) => this.failed(error),
  );

  constructor() {
    setInterval(() => (this.now = Date.now()), 1000);
  }

  get mayAct(): boolean {
    return this.who?.role === "operator" || this.mayAdminister;
  }

  get mayAdminister(): boolean {
    return this.who?.role === "administrator";
  }

  /** Begin, or continue after a session has ended and the user has signed in again in another tab. */
  async begin(): Promise<void> {
    try {
      const who = await get<Session>("/v1/session");
      if (this.who && this.who.actor !== who.actor) drafts.clear();
      this.who = who;
      this.signedOut = false;
    } catch (error) {
      this.failed(error);
      if (!this.signedOut) setTimeout(() => void this.begin(), AGAIN_MS);
      return;
    }
    useCsrf(this.who.csrf ?? "");
    void this.#feed.begin();
  }

  /** Receive events until the returned function is called. */
  listen(listener: Listener): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Show a message for a few seconds; longer if it can be undone. */
  say(message: string, undo?: () => void): void {
    [this.message, this.undo] = [message, undo];
    clearTimeout(this.#hide);
    this.#hide = window.setTimeout(() => (this.message = ""), undo ? UNDO_MS : SAID_MS);
  }

  /** Ask the user to confirm something. */
  sure(words: string, act: string): Promise<boolean> {
    return new Promise((answer) => (this.asked = { words, act, answer }));
  }

  /** Show why a call failed. After the session has ended, the page waits for a new one and keeps what was typed. */
  failed(error: unknown): void {
    if (error instanceof DOMException && error.name === "AbortError") return;
    if (error instanceof Refused && error.status === 401) {
      this.signedOut = true;
    } else {
      this.say(error instanceof Refused ? error.message : text.unreachable);
    }
  }

  async end(): Promise<void> {
    await remove("/v1/session").catch(() => undefined);
    drafts.clear();
    [this.signedOut, this.who] = [true, undefined]; // nothing of the person stays in the page
  }
}

export const session = new State();
