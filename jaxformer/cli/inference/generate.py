"""``jaxformer generate DIR`` and ``chat DIR``: generate text from prompts or images."""

import dataclasses
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from jaxformer.cli.options import Dtype, ModelChoice
from jaxformer.config.options import given
from jaxformer.config.overrides import parse
from jaxformer.data.chat.dialogue.dialogue import Answer, Dialogue, Tools, checked_tools
from jaxformer.data.chat.template import Message
from jaxformer.data.tasks.images.sources import image_names
from jaxformer.distributed.compiled import keep_compiled
from jaxformer.errors import ArgumentError, ConfigError, DataError
from jaxformer.generation.api import generation_config_for
from jaxformer.generation.config import GenerationConfig
from jaxformer.generation.inputs import reads_images, reads_sound
from jaxformer.generation.text import GenerationOutput, TextGenerator
from jaxformer.io.files import check_store, ordinary_file, read_json
from jaxformer.io.mirror import mirrored
from jaxformer.io.paths import any_path, is_remote
from jaxformer.io.staging import staged
from jaxformer.nn.cache import Storage
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.dialogues import dialogue_of, num_calls
from jaxformer.pretrained.model import KernelDtype, Pretrained, with_stored_compute_dtype


@dataclass(frozen=True)
class Loading(ModelChoice):
    """Options for loading and running a model."""

    dtype: Dtype | None = None
    """The dtype of the weights and the computation, which uses bfloat16 for float16 (None: the
    dtype that the weights are saved in).
    """
    compilation_cache: Path | None = None
    """The folder of compiled programs (None: on an accelerator, one in the user's cache)."""
    draft: str | None = None
    """The folder or hub name of a smaller decoder with the same tokenizer that drafts tokens
    (speculative decoding): faster, with the same distribution.
    """
    proposals: int = 4
    """Number of tokens that the draft model proposes at a time."""
    storage: Storage | None = None
    """The dtype of the KV cache (None: the compute dtype). int8 takes a quarter of float32's space.
    """
    weights: KernelDtype | None = None
    """The dtype of the kernels (None: that of the weights). int8 takes half the memory of bfloat16.
    """
    slide: bool = False
    """When the text exceeds the model's maximum length, prefill its last half again."""


@dataclass(frozen=True)
class Chat(GenerationConfig, Loading):
    """Answers what you type, with the tokenizer's chat template if it has one.

    Without a template the model continues the text so far. An empty line, /quit or Ctrl-D ends the
    chat, /new starts a new one, and Ctrl-C interrupts an answer.
    """

    system: str | None = None
    """The system message, before the first message of the user."""
    tools: Path | None = None
    """A JSON file of functions that the model may call: a list of JSON schemas. Calls are shown,
    and you type the result of the tool.
    """

    def __post_init__(self):
        """Skips validation, since `GenerationConfig.of` validates with the model's settings."""


@dataclass(frozen=True)
class Generation(GenerationConfig, Loading):
    """Generates text: a decoder continues a prompt, an encoder-decoder answers it.

    An image captioning model describes images: --images dog.jpg, several files, or a folder.
    """

    prompt: str | None = None
    """The prompt. Text is streamed as it is generated."""
    prompts: Path | None = None
    """A file with one prompt per line."""
    images: tuple[Path, ...] = ()
    """Images or folders of images, for a model that reads images."""
    output: Path | None = None
    """The JSON Lines file to write for a file of prompts or for images (None: the screen)."""
    resume: bool = False
    """Continue an interrupted output file."""
    batch_size: int = 8
    """Number of prompts or images per batch."""

    def __post_init__(self):
        """Skips validation, since `GenerationConfig.of` validates with the model's settings."""


def generate(arguments: Sequence[str], prog: str) -> None:
    """Prints or writes generated text."""
    options, chosen = _parsed(Generation, arguments, prog)
    given = options.prompt is not None, options.prompts is not None, bool(options.images)
    if sum(given) != 1:
        raise ConfigError(
            "generate: give either --prompt TEXT, --prompts FILE or --images FILE_OR_FOLDER ..."
        )
    prompts = [options.prompt] if options.prompts is None else _lines(options.prompts)
    if options.images:
        prompts = _image_files(options.images)
    if options.batch_size < 1:
        raise ConfigError(f"--batch-size {options.batch_size}: give 1 or more")
    output = _lines_so_far(options)
    done = _done(options, output, prompts)
    model = _model(options)
    if reads_sound(model):
        raise ConfigError(f"generate: {options.folder} reads sound: use jaxformer transcribe")
    if reads_images(model) != bool(options.images):
        reads, option = ("images", "--images") if reads_images(model) else ("text", "--prompt")
        raise ConfigError(f"generate: {options.folder} reads {reads}: give {option}")
    writer = _writer(options, model, generation_config_for(model, chosen))
    several = writer.config.num_beams > 1 or writer.config.num_return_sequences > 1
    if options.prompt is None:
        _write_all(writer, prompts, done, options, output)
    elif several:
        for written in writer.generate([writer.tokenize(options.prompt)])[0]:
            print(f"[{written.score:.3f}] {written.text}")
    else:
        _show(writer.stream(writer.tokenize(options.prompt)))
        print()


def chat(arguments: Sequence[str], prog: str) -> None:
    """Runs an interactive chat."""
    options, chosen = _parsed(Chat, arguments, prog)
    tools = None if options.tools is None else _tools(options.tools)
    model = _model(options)
    dialogue = dialogue_of(model)
    config = generation_config_for(model, chosen)
    if dialogue is not None:
        tools = dialogue.checked(tools)
        config = config.with_end_token(dialogue.end_of_turn, chosen)
    elif tools is not None:
        raise DataError(
            f"--tools {options.tools}: {options.folder} has no chat template to format them"
        )
    else:
        note = "the tokenizer has no chat template: the model continues the text so far"
        print(note, file=sys.stderr)
    writer = _writer(options, model, config)
    start = [] if options.system is None else [{"role": "system", "content": options.system}]
    messages, calls = list(start), []
    while (typed := _read_message(calls)) not in ("", "/quit"):
        if typed == "/new":
            messages, calls = list(start), []
            continue
        if calls:
            call = calls.pop(0)
            known = {"name": call["function"]["name"], "tool_call_id": call["id"]}
            messages.append({"role": "tool", **known, "content": typed})
        else:
            messages.append({"role": "user", "content": typed})
        if not calls:
            messages.append(_reply(writer, dialogue, messages, tools))
            calls = list(messages[-1].get("tool_calls", ()))


def _reply(
    writer: TextGenerator,
    dialogue: Dialogue | None,
    messages: Sequence[Message],
    tools: Tools | None,
) -> dict[str, Any]:
    """Streams the answer to messages to the screen, and returns it as a message."""
    tokens: list[int] = []
    if dialogue is None:
        ids = writer.tokenize("".join(message["content"] + "\n" for message in messages))
    else:
        ids = dialogue.prompt(messages, tools).tolist()
    text = _show(writer.stream(ids, tokens))
    print()
    if dialogue is None:
        return {"role": "assistant", "content": text}
    return dialogue.answers([Answer(ids, tokens, text, num_calls(messages))], tools)[0]


def _tools(path: Path) -> list[dict[str, Any]]:
    """Reads tools from a file: a list of JSON schemas, or an object with such a list as "tools"."""
    found = read_json(staged(path), object)
    if isinstance(found, dict):
        found = found.get("tools", [found])
    try:
        return checked_tools(found) or []
    except ArgumentError as error:
        raise DataError(f"--tools {path}: {error}") from error


def _read_message(calls: Sequence[dict[str, Any]]) -> str:
    """Reads a user message, or the result of the first called tool."""
    label = "> "
    if calls:
        function = calls[0]["function"]
        arguments = json.dumps(function["arguments"], ensure_ascii=False)
        label = f"{function['name']} {arguments} > "
    try:
        return input(label).strip()
    except (EOFError, KeyboardInterrupt):
        print()
        return ""


def _show(parts: Iterable[str]) -> str:
    """Streams text to the screen until it ends or Ctrl-C is pressed; returns the printed text."""
    shown = []
    try:
        for part in parts:
            print(part, end="", flush=True)
            shown.append(part)
    except KeyboardInterrupt:
        print(" [interrupted]", end="", file=sys.stderr, flush=True)
    return "".join(shown)


def _parsed(kind: type, arguments: Sequence[str], prog: str) -> tuple[Any, dict[str, Any]]:
    """Parses all options; also returns the given `GenerationConfig` options."""
    options = parse(kind, arguments, prog)
    names = given(arguments) & {item.name for item in dataclasses.fields(GenerationConfig)}
    chosen = {name: getattr(options, name) for name in names}
    GenerationConfig.of({}, chosen)  # Checked before the model is loaded.
    return options, chosen


def _model(options: Loading) -> Pretrained:
    keep_compiled(options.compilation_cache)
    if options.draft is not None:
        any_path(options.draft, "draft")
    keywords = {"dtype": options.dtype, "weights": options.weights}
    return with_stored_compute_dtype(load(options.folder, **keywords, **options.how))


def _writer(options: Loading, model: Pretrained, config: GenerationConfig) -> TextGenerator:
    draft = None
    if options.draft is not None:
        draft = with_stored_compute_dtype(load(options.draft, dtype=options.dtype))
    keywords = {"draft": draft, "proposals": options.proposals, "storage": options.storage}
    return TextGenerator(model, config, slide=options.slide, **keywords)


def _lines(path: Path) -> list[str]:
    try:
        lines = staged(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"--prompts {path} cannot be read: {error}") from error
    if not lines:
        raise DataError(f"--prompts {path} is empty: write one prompt per line")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            raise DataError(f"{path}, line {number}: the prompt is empty")
    return lines


def _image_files(paths: Sequence[Path]) -> list[str]:
    """Lists image files, including those in folders."""
    files = []
    for path in (any_path(path, "--images") for path in paths):
        names = image_names(path) if path.is_dir() else [None]
        if not names:
            raise DataError(f"--images {path}: the folder contains no images")
        files += [str(path if name is None else path / name) for name in names]
    for file in files:
        ordinary_file(file)
    return files


def _lines_so_far(options: Generation) -> Path | None:
    """Returns the local file that lines are appended to: the output, or a copy that is uploaded.

    It may not exist yet. None is the screen.
    """
    if options.output is None:
        return None
    output = any_path(options.output, "--output")
    if not is_remote(output):
        return output
    check_store(output.parent, "--output")
    local = mirrored(output.parent) / output.name
    if not options.resume:
        local.unlink(missing_ok=True)
    if output.is_file() and not (local.exists() and local.stat().st_size > output.stat().st_size):
        output.get(local)
    return local


def _done(options: Generation, path: Path | None, prompts: Sequence[str]) -> int:
    """Counts the prompts already in the output; raises an error if it cannot be continued."""
    if path is None or not path.exists():
        return 0
    if not options.resume:
        named = any_path(options.output, "--output")
        raise ConfigError(
            f"--output {named} exists: name another file, or --resume to continue after its lines"
        )
    done = 0
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            prompt = json.loads(line)[_kind(options)]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path}, line {done + 1}: not written by this command: {error}"
            ) from error
        if done >= len(prompts) or prompt != prompts[done]:
            given = "those of --images" if options.images else f"that of {options.prompts}"
            raise DataError(
                f"{path}, line {done + 1}: {prompt} does not match {given} at this position"
            )
        done += 1
    return done


def _write_all(
    writer: TextGenerator,
    prompts: Sequence[str],
    done: int,
    options: Generation,
    output: Path | None,
) -> None:
    """Writes a JSON line for each prompt once its batch is done."""
    rows = [writer.tokenize(prompt) for prompt in prompts[done:]]
    starts = range(0, len(rows), options.batch_size)
    out = sys.stdout if output is None else _appended(output)
    try:
        for start in track(
            starts, f"{_kind(options)}s", console=Console(stderr=True), transient=True
        ):
            batch = rows[start : start + options.batch_size]
            # The last batch is padded to the compiled size.
            missing = options.batch_size - len(batch) if len(rows) > options.batch_size else 0
            found = writer.generate([*batch, *[batch[-1]] * missing], first=done + start)
            texts = prompts[done + start :]
            for prompt, written in zip(texts, found[: len(batch)], strict=False):
                record = {_kind(options): prompt, **_record(written)}
                print(json.dumps(record, ensure_ascii=False), file=out, flush=True)
    finally:
        if out is not sys.stdout:
            out.close()
        if output is not None and is_remote(options.output):
            any_path(options.output, "--output").put(output)
    if options.output is not None:
        print(
            f"written to {any_path(options.output, '--output')}: {len(prompts)} {_kind(options)}s"
        )


def _appended(path: Path) -> Any:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a", encoding="utf-8")
    except OSError as error:
        raise DataError(f"--output {path} cannot be written: {error}") from error


def _kind(options: Generation) -> str:
    """Returns what each output line describes, which is also the name of its field."""
    return "image" if options.images else "prompt"


def _record(written: list[GenerationOutput]) -> dict[str, Any]:
    """Returns the generated text for a JSON line, or a list of several."""
    if len(written) == 1:
        return dataclasses.asdict(written[0])
    return {"texts": [dataclasses.asdict(each) for each in written]}
