// What the playground's editor is made of, bundled into one file (guide/assets.py).
export { EditorState, Compartment } from "@codemirror/state";
export { EditorView, keymap, lineNumbers, highlightActiveLine, drawSelection } from "@codemirror/view";
export { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
export { yaml } from "@codemirror/lang-yaml";
export { syntaxHighlighting, HighlightStyle, indentUnit } from "@codemirror/language";
export { lintGutter, setDiagnostics } from "@codemirror/lint";
