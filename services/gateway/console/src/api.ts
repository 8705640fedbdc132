// Calls to the gateway's API.
import { text } from "./text";

/** An answer that reports a failure, with the gateway's message. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    detail: string,
  ) {
    super(detail);
  }
}

/** Time after which a call counts as unanswered: a proxy may hold it for ever. */
const LONGEST_MS = 120_000;

let csrf = "";

/** Store the token that every change must send. */
export function useCsrf(value: string): void {
  csrf = value;
}

type Query = Record<string, string | number | boolean | string[] | undefined>;

/** A path with its query; undefined and empty parameters are left out. */
export function withQuery(path: string, query: Query = {}): string {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== "") search.append(name, String(one));
    }
  }
  return search.size ? `${path}?${search.toString()}` : path;
}

async function refused(response: Response): Promise<Refused> {
  const body = await response.text();
  return new Refused(response.status, parsed(body)?.detail || body || `${response.status}`);
}

async function call<T>(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<T> {
  const headers: Record<string, string> = {};
  if (method !== "GET") {
    headers["x-csrf-token"] = csrf;
    headers["idempotency-key"] = crypto.randomUUID();
  }
  if (body !== undefined) headers["content-type"] = body instanceof Blob ? body.type : "application/json";
  const sent = body === undefined || body instanceof Blob ? body : JSON.stringify(body);
  const late = AbortSignal.timeout(LONGEST_MS);
  const response = await fetch(path, { method, headers, body: sent, signal: signal ? AbortSignal.any([signal, late]) : late });
  if (!response.ok) throw await refused(response);
  return (response.status === 204 ? undefined : await response.json()) as T;
}

type Shown = { address: string; masked: boolean; type: string };

/** The object URL of a picture or clip, which must be revoked; whether a privacy mask hides a part of it. */
export async function picture(path: string, signal: AbortSignal): Promise<Shown> {
  if (path.startsWith("blob:")) return { address: path, masked: false, type: "" };
  const response = await fetch(path, { signal });
  if (!response.ok) throw await refused(response);
  const masked = response.headers.has("lookout-masked");
  const content = await response.blob();
  return { address: URL.createObjectURL(content), masked, type: content.type };
}

/** The events of a stream as they arrive: name and message. The signal ends the stream; a `body` is posted. */
export async function* events(path: string, query: Query, signal: AbortSignal, body?: Blob): AsyncGenerator<[string, unknown]> {
  const posted = body && { method: "POST", headers: { "x-csrf-token": csrf, "content-type": body.type }, body };
  const response = await fetch(withQuery(path, query), { signal, ...posted });
  if (!response.ok) throw await refused(response);
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop() ?? "";
    for (const part of parts) {
      const name = /^event: (.*)$/m.exec(part)?.[1];
      const data = /^data: (.*)$/m.exec(part)?.[1];
      if (name && data) yield [name, JSON.parse(data)];
    }
  }
}

export const get = <T>(path: string, query: Query = {}, signal?: AbortSignal): Promise<T> =>
  call<T>("GET", withQuery(path, query), undefined, signal);
export const post = <T>(path: string, body?: unknown): Promise<T> => call<T>("POST", path, body);
/** Ask a question about a picture, which is the body. */
export const postPicture = <T>(path: string, query: Query, body: Blob, signal: AbortSignal): Promise<T> =>
  call<T>("POST", withQuery(path, query), body, signal);
export const put = <T>(path: string, body: unknown): Promise<T> => call<T>("PUT", path, body);
export const remove = <T>(path: string): Promise<T> => call<T>("DELETE", path);

/** Upload a file; `progress` receives the share that was sent. */
export function upload<T>(path: string, query: Query, file: File, progress: (share: number) => void): Promise<T> {
  const sending = new XMLHttpRequest(); // fetch tells nothing of what it has sent
  sending.open("POST", withQuery(path, query));
  sending.setRequestHeader("x-csrf-token", csrf);
  sending.upload.onprogress = (event) => progress(event.loaded / Math.max(1, event.total));
  return new Promise((resolve, reject) => {
    sending.onload = () => {
      const answer = parsed(sending.responseText);
      if (sending.status === 201 && answer) resolve(answer as T);
      else reject(new Refused(sending.status, answer?.detail ?? `${sending.status}`));
    };
    sending.onerror = () => reject(new Refused(0, text.uploadEnded));
    sending.send(file);
  });
}

function parsed(body: string): { detail?: string } | undefined {
  try {
    return JSON.parse(body) as { detail?: string };
  } catch {
    return undefined; // no document: a proxy answered
  }
}

/** Names that a new camera or watch may have, as in `lookout.wire.name_fault`. */
export const NEW_NAME = "(?!.*\\.\\.)[\\p{L}\\p{N}][\\p{L}\\p{N}._\\/:\\-]{0,63}";

const NAME = new RegExp(`^(?:${NEW_NAME})$`, "v");
export const isName = (name: string): boolean => NAME.test(name.trim());

/** The id of a camera or watch in a path: slashes in ids are kept. */
export const within = (id: string): string => id.split("/").map(encodeURIComponent).join("/");

export const cameraPicture = (camera: string, time: string, width: number, whole?: boolean): string =>
  withQuery(`/v1/cameras/${within(camera)}/frames/${encodeURIComponent(time)}.jpg`, { width, whole });
export const incidentPicture = (id: string, width: number, overlay = ""): string =>
  withQuery(`/v1/incidents/${encodeURIComponent(id)}/picture.jpg`, { width, overlay });
export const cameraClip = (camera: string, from: string, to: string): string =>
  withQuery(`/v1/cameras/${within(camera)}/clip.mp4`, { from, to });
