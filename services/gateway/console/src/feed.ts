// The fleet's events, live. A browser opens at most six connections to a gateway that speaks HTTP/1.1, for all its
// tabs together: so one tab follows the stream of events and passes them to the others.
import { get, Refused, withQuery } from "./api";
import type { FeedEvent, Session } from "./types";

const KINDS = ["incident", "action", "camera", "watch", "job", "dead-letter"];
const NAME = "lookout-events";
const AGAIN_MS = 3000;
type Told = { kind: "event"; event: FeedEvent; id: string } | { kind: "live"; live: boolean } | { kind: "joined" };

export class Feed {
  #tabs = new BroadcastChannel(NAME);
  /** The id of the newest event, so that the next tab that follows misses none. */
  #last = "";
  #live = false;
  #follows = false;

  /** `heard` receives events, `turned` whether they arrive, `ended` why the session is over. */
  constructor(
    private readonly heard: (event: FeedEvent) => void,
    private readonly turned: (live: boolean) => void,
    private readonly ended: (error: Refused) => void,
  ) {
    this.#tabs.onmessage = ({ data }: MessageEvent<Told>) => {
      if (data.kind !== "joined") this.#take(data);
      else if (this.#follows) this.#tabs.postMessage({ kind: "live", live: this.#live });
    };
  }

  /** Follow until the session is over, in this tab or in another one. */
  async begin(): Promise<void> {
    if (this.#follows) return;
    this.#tabs.postMessage({ kind: "joined" });
    // Locks need HTTPS, or an address of this machine: without them, every tab follows the stream itself.
    if (isSecureContext) await navigator.locks.request(NAME, () => this.#follow());
    else await this.#follow();
  }

  async #follow(): Promise<void> {
    this.#follows = true;
    for (;;) {
      await this.#stream();
      try {
        await get<Session>("/v1/session");
      } catch (error) {
        if (error instanceof Refused && error.status === 401) {
          this.#follows = false;
          return this.ended(error);
        }
      }
      await new Promise((over) => setTimeout(over, AGAIN_MS));
    }
  }

  /** One stream, which the browser itself reopens until it is refused. */
  #stream(): Promise<void> {
    const source = new EventSource(withQuery("/v1/events", { after: this.#last }));
    source.onopen = () => this.#tell({ kind: "live", live: true });
    for (const kind of KINDS) {
      source.addEventListener(kind, ({ data, lastEventId }: MessageEvent<string>) =>
        this.#tell({ kind: "event", event: JSON.parse(data) as FeedEvent, id: lastEventId }),
      );
    }
    return new Promise((over) => {
      source.onerror = () => {
        this.#tell({ kind: "live", live: false });
        if (source.readyState === EventSource.CLOSED) over();
      };
    });
  }

  #tell(told: Exclude<Told, { kind: "joined" }>): void {
    if (isSecureContext) this.#tabs.postMessage(told);
    this.#take(told);
  }

  #take(told: Exclude<Told, { kind: "joined" }>): void {
    if (told.kind === "live") {
      this.turned((this.#live = told.live));
    } else {
      this.#last = told.id;
      this.heard(told.event);
    }
  }
}
