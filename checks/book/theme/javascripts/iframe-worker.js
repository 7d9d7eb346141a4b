// Search where the book is opened as a file: a browser starts no worker from file://, so that a
// hidden frame does its work. Served by a web server, nothing here happens.
(() => {
  if (location.protocol !== "file:") return;

  /** @param {unknown} data copied, as between threads */
  const message = (data) => new MessageEvent("message", { data: structuredClone(data) });

  class FrameWorker extends EventTarget {
    /** @param {string | URL} url the worker's script */
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "search";
      document.body.append(frame);
      const scope = /** @type {any} */ (frame.contentWindow);
      const load = (/** @type {string | URL} */ source) =>
        new Promise((done, failed) => {
          const script = scope.document.createElement("script");
          script.onload = done;
          script.onerror = failed;
          script.src = String(source);
          scope.document.documentElement.append(script);
        });
      scope.document.open();
      scope.document.close();
      scope.importScripts = (/** @type {string[]} */ ...sources) =>
        sources.reduce(
          (before, source) => before.then(() => load(new URL(source, String(url)))),
          Promise.resolve(),
        );
      scope.postMessage = (/** @type {unknown} */ data) => {
        setTimeout(() => this.dispatchEvent(message(data)));
      };
      this.scope = scope;
      this.ready = load(url);
    }

    /** @param {unknown} data the message to the worker */
    postMessage(data) {
      this.ready.then(() => this.scope.dispatchEvent(message(data)));
    }

    terminate() {
      this.scope.frameElement?.remove();
    }

    set onmessage(/** @type {EventListener} */ listener) {
      this.addEventListener("message", listener);
    }
  }

  /** @type {any} */ (window).Worker = FrameWorker;
})();
