"""A model's ``config.json`` from the hub, through huggingface_hub: cache, endpoint and token are the user's own."""

from kb.core.text import UserError
from kb.session.hub_cache import is_hub_name

TIMEOUT_SECONDS = 10.0


def fetch_config(name: str) -> str:
    """The path of the fetched file, in the Hugging Face cache.

    Raises:
        UserError: huggingface_hub is not installed, the hub cannot be reached or does not answer in time, or it has no
            such model, or not for this user.
    """
    if not is_hub_name(name):
        raise UserError("hub.not_a_name", name=name[:100])
    import logging
    import os

    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # read when it is imported
    try:
        import huggingface_hub
        from huggingface_hub import constants, errors

    except ImportError:
        raise UserError("hub.not_installed") from None
    if constants.HF_HUB_OFFLINE:
        raise UserError("hub.switched_off", name=name)
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    if not _answers(constants.ENDPOINT):
        raise UserError("hub.unreachable", name=name, endpoint=constants.ENDPOINT)
    try:
        return str(huggingface_hub.hf_hub_download(name, "config.json", etag_timeout=TIMEOUT_SECONDS))
    except errors.GatedRepoError:
        raise UserError("hub.gated", name=name) from None
    except (errors.RepositoryNotFoundError, errors.EntryNotFoundError) as error:
        # the last is raised too where the hub cannot be asked and the cache has nothing
        if isinstance(error, errors.LocalEntryNotFoundError):
            raise UserError("hub.unreachable", name=name, endpoint=constants.ENDPOINT) from None
        raise UserError("hub.no_such_model", name=name, endpoint=constants.ENDPOINT) from None
    except (errors.HfHubHTTPError, OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0][:200] or type(error).__name__
        raise UserError("hub.failed", name=name, endpoint=constants.ENDPOINT, reason=reason) from None


def _answers(endpoint: str) -> bool:
    """Whether anything answers there: huggingface_hub itself would try six times, for half a minute."""
    import urllib.error
    import urllib.request

    request = urllib.request.Request(endpoint, method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS):
            return True
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError):
        return False
