// Runs kb's own Python in Pyodide, away from the page, so that nothing typed can hang it.
import { loadPyodide } from "../vendor/pyodide/pyodide.mjs";

const FOLDER = "/home/pyodide/kb";
const GZIP = [0x1f, 0x8b];

/** Python's memory as it is once started; null where the browser or the host cannot give it: Python starts anew then. */
async function snapshot() {
  try {
    const answer = await fetch(new URL("../vendor/pyodide/snapshot.bin", import.meta.url));
    if (!answer.ok) return null;
    const packed = new Uint8Array(await answer.arrayBuffer());
    // some hosts say that it is packed, and the browser has unpacked it then
    if (GZIP.some((byte, place) => packed[place] !== byte)) return packed;
    const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Uint8Array(await new Response(unpacked).arrayBuffer());
  } catch {
    return null;
  }
}

async function load() {
  const indexURL = new URL("../vendor/pyodide/", import.meta.url).href;
  const started = await snapshot();
  if (!started) return loadPyodide({ indexURL });
  try {
    return await loadPyodide({ indexURL, _loadSnapshot: started });
  } catch {
    return loadPyodide({ indexURL });
  }
}

async function start() {
  const [python, archive] = await Promise.all([
    load(),
    fetch(new URL("../playground/kb.zip", import.meta.url)).then((answer) => answer.arrayBuffer()),
  ]);
  python.unpackArchive(archive, "zip", { extractDir: FOLDER });
  python.runPython(`import sys; sys.path.insert(0, "${FOLDER}")`);
  modules.set("browser", loadModule(python, "browser")); // what most pages ask
  return python;
}

// What is called, by the module that has it; one that needs more than kb itself names the archive with it.
const ARCHIVES = { contribution: "validator.zip" };
const modules = new Map();

async function loadModule(python, name) {
  if (ARCHIVES[name]) {
    const answer = await fetch(new URL(`../playground/${ARCHIVES[name]}`, import.meta.url));
    python.unpackArchive(await answer.arrayBuffer(), "zip", { extractDir: FOLDER });
    python.runPython("import importlib; importlib.invalidate_caches()");
  }
  return python.pyimport(`kb.integrations.${name}`);
}

const ready = start();
ready.then(
  () => postMessage({ ready: true }),
  (error) => postMessage({ fatal: String(error) }),
);

onmessage = async ({ data: { id, call, given } }) => {
  const python = await ready;
  try {
    const [name, module] = call.split(".").reverse();
    const from = module ?? "browser";
    if (!modules.has(from)) modules.set(from, loadModule(python, from));
    const kb = await modules.get(from);
    postMessage({ id, answer: JSON.parse(kb[name](...given)) });
  } catch (error) {
    // what Python did not raise itself (the browser's stack was too short) leaves it broken: it is started anew
    const broken = !(error instanceof python.ffi.PythonError);
    postMessage({ id, answer: { fault: String(error).trim().split("\n").pop() }, broken });
  }
};
