// One player for each recording: the footage if it lies next to the page, else the clips in the page.
const clipsOfPage = document.querySelectorAll("script.clips");
for (const [place, section] of document.querySelectorAll(".recording").entries()) {
  const video = section.querySelector("video");
  const note = section.querySelector(".note");
  const clips = JSON.parse(clipsOfPage[place].textContent);
  const film = video.dataset.film;
  let whole = Boolean(film), offset = 0, shown = null;

  const clock = at => {
    const tenths = Math.round(at * 10), minutes = Math.floor(tenths / 600), rest = (tenths % 600) / 10;
    return minutes < 60 ? `${minutes}:${rest.toFixed(1).padStart(4, "0")}`
      : `${Math.floor(minutes / 60)}:${String(minutes % 60).padStart(2, "0")}:${String(Math.floor(rest)).padStart(2, "0")}`;
  };
  const address = clip => {
    if (!clip.url) {
      const bytes = Uint8Array.from(atob(clip.data), character => character.charCodeAt(0));
      clip.url = URL.createObjectURL(new Blob([bytes], {type: clip.type}));
    }
    return clip.url;
  };
  const load = (source, begin) => {
    if (shown === source) return;
    shown = source;
    offset = begin;
    video.src = source;
  };
  const go = (at, play) => {
    const jump = () => {
      video.currentTime = Math.max(0, at - offset);
      if (play) video.play().catch(() => {});
    };
    if (video.readyState > 0) jump();
    else video.addEventListener("loadedmetadata", jump, {once: true});
  };
  const seek = (at, play = true) => {
    if (whole) return go(at, play);
    const clip = clips.find(clip => clip.start <= at && at < clip.end);
    if (!clip) {
      note.textContent = `The footage is not next to this page, and no clip in it shows ${clock(at)}.`;
      return;
    }
    note.textContent = `Clip from ${clock(clip.start)} to ${clock(clip.end)}, out of this page.`;
    load(address(clip), clip.start);
    go(at, play);
  };

  video.addEventListener("error", () => {
    if (whole) {
      whole = false;
      shown = null;
      if (clips.length) seek(clips[0].from, false);
      else note.textContent = `${decodeURIComponent(film)} is not next to this page, or this browser does not play ${video.dataset.codec}.`;
    } else if (shown) note.textContent = `This browser does not play ${video.dataset.codec}.`;
  });
  video.addEventListener("timeupdate", () => {
    const at = offset + video.currentTime;
    for (const chart of section.querySelectorAll(".chart")) {
      const share = (at - chart.dataset.first) / chart.dataset.length;
      const cursor = chart.querySelector(".cursor");
      cursor.hidden = share < 0 || share > 1;
      cursor.style.left = `${100 * share}%`;
    }
  });
  section.addEventListener("click", event => {
    const place = event.target.closest("[data-at]");
    if (place) return seek(Number(place.dataset.at));
    const chart = event.target.closest(".chart");
    if (!chart) return;
    const box = chart.getBoundingClientRect();
    seek(Number(chart.dataset.first) + chart.dataset.length * (event.clientX - box.left) / box.width);
  });
  if (whole) load(film, 0);
  else if (clips.length) seek(clips[0].from, false);
  else note.textContent = "No footage is linked, and no clip is in this page.";
}
