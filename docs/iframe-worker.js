// Browsers start no worker for a page that was opened from a file. There, the search's worker runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = []; // messages from before the script was there
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.addEventListener("load", () => {
        const inside = frame.contentWindow;
        inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
        const loaded = (address) =>
          new Promise((done) => {
            const script = inside.document.createElement("script");
            Object.assign(script, { src: address, async: false, onload: done });
            inside.document.body.append(script);
          });
        inside.importScripts = (...addresses) => Promise.all(addresses.map(loaded));
        loaded(url).then(() => {
          this.inside = inside;
          this.waiting.splice(0).forEach((data) => this.postMessage(data));
        });
      }, { once: true });
      frame.srcdoc = "<body></body>";
      (document.body || document.documentElement).append(frame);
    }

    postMessage(data) {
      if (this.inside) this.inside.dispatchEvent(new MessageEvent("message", { data }));
      else this.waiting.push(data);
    }

    terminate() {}
  };
}
