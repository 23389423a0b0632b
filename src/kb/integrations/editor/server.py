"""The language server: texts in, answers out. It knows no rule, and nothing below it knows the protocol."""

import asyncio
import logging
from typing import Any

from lsprotocol import types
from pygls.exceptions import JsonRpcException
from pygls.lsp.server import LanguageServer
from pygls.uris import to_fs_path
from pygls.workspace import TextDocument

from kb import __version__
from kb.core.text import UserError
from kb.integrations.editor.answers import FIX_ALL, Answers, Completer, Positions, complete
from kb.integrations.editor.session import Checked, Session
from kb.knowledge import KnowledgeError

PAUSE_SECONDS = 0.15  # after the last key pressed
PARSE_ERROR = -32700
log = logging.getLogger(__name__)


class KbServer(LanguageServer):
    """One client, its open texts, and what was last found in each."""

    def __init__(self, session: Session) -> None:
        super().__init__("kb", __version__, text_document_sync_kind=types.TextDocumentSyncKind.Incremental)
        self.session = session
        self.checked: dict[str, tuple[int | None, Checked]] = {}
        self.waiting: dict[str, asyncio.Task[None]] = {}
        self._said: set[str] = set()

    def report_server_error(self, error: Exception, source: Any) -> None:
        """A message that is no JSON gets JSON-RPC's answer; anything else goes to the log, not into a dialogue."""
        log.error("%s: %s", type(error).__name__, error)
        if isinstance(error, ValueError) and source is JsonRpcException:
            answer = {"code": PARSE_ERROR, "message": f"Parse error: {error}"}
            # pygls has no response without a request; this is its own way out
            self.protocol._send_data({"jsonrpc": "2.0", "id": None, "error": answer})

    def look(self, uri: str) -> Answers | None:
        """The answers about a text as it stands; None where it cannot be checked, which is said once."""
        document = self.workspace.get_text_document(uri)
        checked = self._checked(document)
        if checked is None:
            return None
        positions = Positions(document.source, self.workspace.position_encoding or types.PositionEncodingKind.Utf16)
        return Answers(self.session, checked, uri, positions)

    def _checked(self, document: TextDocument) -> Checked | None:
        version, checked = self.checked.get(document.uri, (None, None))
        if checked is not None and version == document.version and checked.text == document.source:
            return checked
        path = to_fs_path(document.uri) or document.uri
        try:
            checked = self.session.check(document.source, path, document.language_id or "")
        except UserError as fault:
            self._say(self.session.said(fault))
            return None
        except KnowledgeError as error:
            self._say("\n".join(self.session.said_of_rules(error)))
            return None
        self.checked[document.uri] = (document.version, checked)
        return checked

    def _say(self, sentence: str) -> None:
        """A fault of the settings, once, until the settings change."""
        if sentence not in self._said:
            self._said.add(sentence)
            self.window_show_message(types.ShowMessageParams(type=types.MessageType.Error, message=f"kb: {sentence}"))

    def publish(self, uri: str) -> None:
        answers = self.look(uri)
        found = answers.diagnostics() if answers else []
        version = self.workspace.get_text_document(uri).version
        self.text_document_publish_diagnostics(
            types.PublishDiagnosticsParams(uri=uri, diagnostics=found, version=version)
        )

    def later(self, uri: str) -> None:
        """Publish once the typing pauses."""
        if uri in self.waiting:
            self.waiting[uri].cancel()

        async def publish() -> None:
            await asyncio.sleep(PAUSE_SECONDS)
            del self.waiting[uri]
            self.publish(uri)

        self.waiting[uri] = asyncio.ensure_future(publish())

    def again(self) -> None:
        """Everything open, after the settings changed."""
        self.session.forget()
        self.checked.clear()
        self._said.clear()
        for uri in list(self.workspace.text_documents):
            self.publish(uri)


def make_server(session: Session) -> KbServer:
    """A server that is ready to be started."""
    server = KbServer(session)

    @server.feature(types.INITIALIZE)
    def begun(server: KbServer, params: types.InitializeParams) -> None:
        server.session.configure(params.initialization_options)

    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    def opened(server: KbServer, params: types.DidOpenTextDocumentParams) -> None:
        server.publish(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    async def changed(server: KbServer, params: types.DidChangeTextDocumentParams) -> None:
        server.later(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_SAVE)
    def saved(server: KbServer, params: types.DidSaveTextDocumentParams) -> None:
        if server.session.decides(to_fs_path(params.text_document.uri) or params.text_document.uri):
            server.again()

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def closed(server: KbServer, params: types.DidCloseTextDocumentParams) -> None:
        uri = params.text_document.uri
        server.checked.pop(uri, None)
        if task := server.waiting.pop(uri, None):
            task.cancel()
        server.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri=uri, diagnostics=[]))

    @server.feature(types.WORKSPACE_DID_CHANGE_CONFIGURATION)
    def configured(server: KbServer, params: types.DidChangeConfigurationParams) -> None:
        server.session.configure(params.settings)
        server.again()

    @server.feature(types.WORKSPACE_DID_CHANGE_WATCHED_FILES)
    def touched(server: KbServer, params: types.DidChangeWatchedFilesParams) -> None:
        server.again()

    @server.feature(types.TEXT_DOCUMENT_HOVER)
    def hover(server: KbServer, params: types.HoverParams) -> types.Hover | None:
        answers = server.look(params.text_document.uri)
        return answers.hover(params.position) if answers else None

    _completes(server)
    kinds = [types.CodeActionKind.QuickFix, FIX_ALL]

    @server.feature(types.TEXT_DOCUMENT_CODE_ACTION, types.CodeActionOptions(code_action_kinds=kinds))
    def actions(server: KbServer, params: types.CodeActionParams) -> list[types.CodeAction]:
        answers = server.look(params.text_document.uri)
        return answers.actions(params.range, params.context.only) if answers else []

    return server


def _completes(server: KbServer) -> None:
    """Add completion."""
    completer = Completer(server.session)

    @server.feature(types.TEXT_DOCUMENT_COMPLETION, types.CompletionOptions(trigger_characters=[" ", "."]))
    def completion(server: KbServer, params: types.CompletionParams) -> types.CompletionList | None:
        document = server.workspace.get_text_document(params.text_document.uri)
        encoding = server.workspace.position_encoding or types.PositionEncodingKind.Utf16
        place = Positions(document.source, encoding).place(params.position)
        path = to_fs_path(document.uri) or document.uri
        return complete(completer, document.source, path, document.language_id or "", place)
