"""`gcp_storage_emulator`, with the header by which TensorStore knows what it has read.

Google Cloud Storage says the generation of each object. A client that has read an object without
one cannot ask to replace it only where nobody else has.
"""

import contextlib

from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.handlers import objects

download = objects.download


def download_with_generation(request, response, storage, *args, **kwargs):
    names = (request.params["bucket_name"], request.params["object_id"])
    with contextlib.suppress(NotFound):  # which `download` answers
        response["x-goog-generation"] = storage.get_file_obj(*names)["generation"]
    return download(request, response, storage, *args, **kwargs)


objects.download = download_with_generation  # before the server lists what answers what

if __name__ == "__main__":
    from gcp_storage_emulator.__main__ import main

    main()
