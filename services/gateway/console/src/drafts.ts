// Unsaved content of forms, by the form's address, to restore it when the user returns.
export const drafts = new Map<string, string>();

addEventListener("beforeunload", (event) => {
  if (drafts.size) event.preventDefault(); // the browser asks
});
