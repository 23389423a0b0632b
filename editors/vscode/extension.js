// Starts `kb lsp` and hands it the settings. Everything else is the server's.
"use strict";

const vscode = require("vscode");
const { LanguageClient, TransportKind } = require("vscode-languageclient/node");

const LANGUAGES = ["yaml", "json", "jsonc", "python", "shellscript"];
let client;

function settings() {
  const own = vscode.workspace.getConfiguration("kb");
  const names = ["lang", "gpu", "gpus", "hostMemory", "cpus", "transformers"];
  const given = Object.fromEntries(names.map((name) => [name, own.get(name)]));
  return { ...given, lang: given.lang || (vscode.env.language.startsWith("ko") ? "ko" : "en") };
}

async function start() {
  const [command, ...args] = vscode.workspace.getConfiguration("kb").get("command");
  client = new LanguageClient(
    "kb",
    "kb",
    { command, args, transport: TransportKind.stdio },
    {
      documentSelector: LANGUAGES.map((language) => ({ scheme: "file", language })),
      initializationOptions: settings(),
      synchronize: { fileEvents: vscode.workspace.createFileSystemWatcher("**/{kb,pyproject}.toml") },
    },
  );
  try {
    await client.start();
  } catch (error) {
    const how = "pip install 'gpu-memory-kb[lsp]', or name it in kb.command";
    vscode.window.showErrorMessage(`kb: ${[command, ...args].join(" ")} cannot be started (${error.message}). ${how}`);
  }
}

async function activate(context) {
  context.subscriptions.push(
    vscode.commands.registerCommand("kb.restart", async () => {
      await deactivate();
      await start();
    }),
    vscode.workspace.onDidChangeConfiguration((event) => {
      if (event.affectsConfiguration("kb.command")) vscode.commands.executeCommand("kb.restart");
      else if (event.affectsConfiguration("kb") && client)
        client.sendNotification("workspace/didChangeConfiguration", { settings: settings() });
    }),
  );
  await start();
}

async function deactivate() {
  const running = client;
  client = undefined;
  if (running && running.isRunning()) await running.stop();
}

module.exports = { activate, deactivate };
