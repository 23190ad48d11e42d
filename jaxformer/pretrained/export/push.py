"""Uploads an exported model to the Hugging Face hub."""

from pathlib import Path

from jaxformer.checks import check_argument
from jaxformer.errors import ConfigError
from jaxformer.hub.peft.config import read_peft_config
from jaxformer.hub.remote.names import hub_name
from jaxformer.hub.remote.selection import ADAPTER
from jaxformer.hub.remote.upload import upload
from jaxformer.hub.weights.tensors import TensorFiles
from jaxformer.io.model_files import is_adapter, is_hf_checkpoint
from jaxformer.io.paths import folder_path
from jaxformer.io.staging import staged
from jaxformer.pretrained.reader import open_folder


def push(
    folder: str | Path,
    name: str,
    *,
    private: bool = False,
    revision: str | None = None,
    message: str = "Upload model",
    token: str | None = None,
) -> str:
    """Uploads a Hugging Face checkpoint to the hub: weights, config.json, tokenizer, templates.

    The folder is checked first: its tensors must fit its config.json. Of other files, only
    README.md, LICENSE and receipt.json are uploaded.

    Args:
        folder: A folder written by `save` or ``jaxformer export``, or an adapter.
        name: "org/name"; it is created if it does not exist.
        private: Whether a newly created repository is private.
        revision: The branch; None: main. It is created if it does not exist.
        message: The message of the commit.
        token: The access token for the hub; None: HF_TOKEN, or the token of `hf auth login`.

    Returns:
        The URL of the model's page.

    Raises:
        ArgumentError: An argument has a wrong value.
        ConfigError: The folder does not contain a model, the token has no write access, or the hub
            cannot be reached.
        DataError: The folder is not complete.
    """
    folder = staged(folder_path(folder, "FOLDER"))
    target = hub_name(name)
    fits = target is not None and target.revision is None
    check_argument("NAME", name, fits, "org/name, a name on the hub")
    text = isinstance(message, str) and bool(message.strip())
    check_argument("message", message, text, "the message of a commit")
    if revision is not None:
        target = hub_name(f"{name}@{revision}")
        fits = target is not None and not target.is_commit
        check_argument("revision", revision, fits, "the name of a branch")
    _check_complete(folder)
    return upload(folder, target, private=private, message=message, token=token)


def _check_complete(folder: Path) -> None:
    """Checks that a folder contains a complete model or PEFT adapter."""
    if not folder.is_dir():
        raise ConfigError(
            f"FOLDER = {folder}: must be the folder of a Hugging Face checkpoint; looked from "
            f"{Path.cwd()}"
        )
    if is_adapter(folder):
        read_peft_config(folder)
        TensorFiles(folder, ADAPTER, None)
    elif is_hf_checkpoint(folder):
        open_folder(folder)
    else:
        raise ConfigError(
            f"FOLDER = {folder}: must be a Hugging Face checkpoint; write one of a run with: "
            f"python -m jaxformer export {folder} OUT_DIR"
        )
