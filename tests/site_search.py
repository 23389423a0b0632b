"""What the site's search finds, asked of its own worker: any number of queries in one load of a page."""

from site_browser import Browser

# setup and query are Material's messages 0 and 2; a group of results is a page with its sections
_ASK_ALL = """
const { base, search } = JSON.parse(document.querySelector("#__config").textContent);
const index = await (await fetch(new URL(`${base}/search/search_index.json`, location))).json();
const worker = new Worker(new URL(search, location));
const tell = (message) => new Promise((done) => {
  worker.onmessage = ({ data }) => done(data.data);
  worker.postMessage(message);
});
await tell({ type: 0, data: { ...index, options: {} } });
const found = [];
for (const query of given[0])
  found.push((await tell({ type: 2, data: query })).items.slice(0, 3).map((group) => group[0].location.split("#")[0]));
worker.terminate();
return found;
"""


def first_pages(browser: Browser, language: str, queries: list[str]) -> list[list[str]]:
    """The first three pages for each query, best first, below the language's part of the site.

    They pass the page's script, which reads a query as a reader means it.
    """
    browser.visit("data/" if language == "ko" else "en/data/")
    found: list[list[str]] = browser.await_answer(_ASK_ALL, queries)
    return found
