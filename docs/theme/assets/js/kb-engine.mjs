// The page's side of the worker: one engine a page, started when first asked for.
export const STUCK = "stuck";
const SECONDS = 60; // longer than any check takes, on a phone too; a worker that is stuck is replaced

export class Engine {
  #worker = null;
  #waiting = new Map();
  #number = 0;

  /** Starts the worker; resolves when Python is ready. */
  start() {
    if (this.started) return this.started;
    this.#worker = new Worker(new URL("./kb-worker.mjs", import.meta.url), { type: "module" });
    this.started = new Promise((resolve, reject) => {
      this.#worker.onmessage = ({ data }) => {
        if (data.ready) resolve();
        else if (data.fatal) reject(new Error(data.fatal));
        else this.#settle(data.id, data.answer);
        if (data.broken) this.#stuck();
      };
      this.#worker.onerror = (event) => reject(new Error(event.message || "worker"));
    });
    return this.started;
  }

  /** Calls a function of kb.integrations.browser, or MODULE.function of another beside it; the answer is its JSON as an object. */
  async call(name, ...given) {
    await this.start();
    const id = ++this.#number;
    return new Promise((resolve) => {
      const timer = setTimeout(() => this.#stuck(), SECONDS * 1000);
      this.#waiting.set(id, { resolve, timer });
      this.#worker.postMessage({ id, call: name, given });
    });
  }

  #settle(id, answer) {
    const waiting = this.#waiting.get(id);
    if (!waiting) return;
    clearTimeout(waiting.timer);
    this.#waiting.delete(id);
    waiting.resolve(answer);
  }

  #stuck() {
    this.#worker.terminate();
    for (const id of [...this.#waiting.keys()]) this.#settle(id, { fault: STUCK });
    this.started = null;
    this.ready = false;
  }
}
