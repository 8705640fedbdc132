// The current view, kept in the address after the #, so that copied links and the back button work.

class Router {
  view = $state("");
  id = $state("");
  query = $state(new URLSearchParams());

  constructor() {
    this.#read();
    addEventListener("hashchange", () => this.#read());
  }

  #read(): void {
    const [path = "", query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
    const [view = "", ...rest] = path.split("/");
    this.view = view;
    this.id = rest.map(decodeURIComponent).join("/");
    this.query = new URLSearchParams(query);
  }

  /** Change some parameters of the query in the current view; empty values are removed. */
  set(changes: Record<string, string>): void {
    const query = new URLSearchParams(this.query);
    for (const [name, value] of Object.entries(changes)) {
      if (value) query.set(name, value);
      else query.delete(name);
    }
    history.replaceState(null, "", link(this.view, this.id, query));
    this.#read();
  }
}

/** The address of a view. */
export function link(view: string, id = "", query: URLSearchParams | Record<string, string> = {}): string {
  const path = id ? `${view}/${id.split("/").map(encodeURIComponent).join("/")}` : view;
  const text = new URLSearchParams(query).toString();
  return `#/${path}${text ? `?${text}` : ""}`;
}

export const router = new Router();
