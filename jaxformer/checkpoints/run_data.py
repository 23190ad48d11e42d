"""Local copies of the files in a run's folder other than its checkpoints."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jaxformer.checkpoints.run_dir import KEPT
from jaxformer.data import Data, Datasets
from jaxformer.data.labels import LABEL_FILES
from jaxformer.data.tokenizers.files import TOKENIZER_FILES
from jaxformer.distributed.processes import first_process_only
from jaxformer.errors import ConfigError, DataError, system_message
from jaxformer.io.digests import sha256_of
from jaxformer.io.mirror import pull, push
from jaxformer.io.paths import AnyPath, is_remote
from jaxformer.io.staging import staged


def kept_files(run: AnyPath) -> Path:
    """Returns a local folder with the files that a run's model depends on (`KEPT`)."""
    return staged(run, lambda name: name.partition("/")[0] in KEPT)


def kept_digests(run: AnyPath) -> dict[str, str]:
    """Returns the digests of the tokenizer and label files of a run, by file name."""
    home = kept_files(run)
    names = [*(f"tokenizer/{name}" for name in TOKENIZER_FILES), LABEL_FILES[0]]
    try:
        return {name: sha256_of(home / name) for name in names if (home / name).is_file()}
    except OSError as error:
        raise DataError(f"{run} cannot be read ({system_message(error)})") from error


def prepared_data(data: Data, folder: AnyPath) -> Datasets:
    """Prepares the data of a run, which is kept in its folder, and returns the datasets."""
    if not is_remote(folder):
        return data.prepare(folder)
    prepared = []

    def prepare_first() -> None:
        local = pull(folder, KEPT)
        with _named(folder, local):
            prepared.append(data.prepare(local))
        push(local, folder, KEPT)

    first_process_only(prepare_first)
    if prepared:
        return prepared[0]
    local = pull(folder, KEPT)
    with _named(folder, local):
        return data.prepare(local)


@contextmanager
def _named(folder: AnyPath, mirror: Path) -> Iterator[None]:
    """Makes messages name the run's folder instead of its local mirror."""
    try:
        yield
    except (ConfigError, DataError) as error:
        raise type(error)(str(error).replace(str(mirror), str(folder))) from error
