// What was typed into forms and not saved, by the address of the form: it is there again on return.
export const drafts = new Map<string, string>();

addEventListener("beforeunload", (event) => {
  if (drafts.size) event.preventDefault(); // the browser asks
});
