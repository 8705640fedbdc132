// Light or dark: the system's preference, until the user switches.

class Theme {
  dark = $state(false);
  #query = matchMedia("(prefers-color-scheme: dark)");

  constructor() {
    const chosen = localStorage.getItem("theme");
    this.dark = chosen ? chosen === "dark" : this.#query.matches;
    this.#query.addEventListener("change", (event) => {
      if (!localStorage.getItem("theme")) this.#use(event.matches);
    });
    // Another tab has switched.
    addEventListener("storage", (event) => event.key === "theme" && event.newValue && this.#use(event.newValue === "dark"));
    this.#use(this.dark);
  }

  turn(): void {
    this.#use(!this.dark);
    localStorage.setItem("theme", this.dark ? "dark" : "light");
  }

  #use(dark: boolean): void {
    this.dark = dark;
    document.documentElement.dataset.theme = dark ? "dark" : "light";
  }
}

export const theme = new Theme();

/** The current value of a colour of app.css. */
export const colour = (name: string): string =>
  getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
