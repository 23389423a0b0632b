// Runs kb's own Python in Pyodide, away from the page, so that nothing typed can hang it.
import { loadPyodide } from "../vendor/pyodide/pyodide.mjs";

const FOLDER = "/home/pyodide/kb";

async function start() {
  const [python, archive] = await Promise.all([
    loadPyodide({ indexURL: new URL("../vendor/pyodide/", import.meta.url).href }),
    fetch(new URL("../playground/kb.zip", import.meta.url)).then((answer) => answer.arrayBuffer()),
  ]);
  python.unpackArchive(archive, "zip", { extractDir: FOLDER });
  python.runPython(`import sys; sys.path.insert(0, "${FOLDER}")`);
  return python.pyimport("kb.browser");
}

const ready = start();
ready.then(
  () => postMessage({ ready: true }),
  (error) => postMessage({ fatal: String(error) }),
);

onmessage = async ({ data: { id, call, given } }) => {
  const kb = await ready;
  try {
    postMessage({ id, answer: JSON.parse(kb[call](...given)) });
  } catch (error) {
    postMessage({ id, answer: { fault: String(error).trim().split("\n").pop() } });
  }
};
