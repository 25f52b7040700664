// Bring the parts of a page that move up to date. Without this script a page asks the browser to load it again.
"use strict";
(() => {
  const seconds = Number(document.body.dataset.refresh);
  if (!seconds) return;
  const refresh = async () => {
    const busy = document.querySelector("#live :focus");
    if (document.visibilityState === "visible" && !busy) {
      try {
        const answer = await fetch(location.href, { credentials: "same-origin", redirect: "error" });
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        const fresh = page.getElementById("live");
        if (answer.ok && fresh) document.getElementById("live").replaceWith(fresh);
        if (answer.ok && !Number(page.body.dataset.refresh)) return;
      } catch (error) {
        // the service does not answer; the page stays as it is, and its age is shown
      }
    }
    setTimeout(refresh, seconds * 1000);
  };
  setTimeout(refresh, seconds * 1000);
})();
