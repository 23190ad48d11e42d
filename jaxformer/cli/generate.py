"""``python -m jaxformer generate DIR`` and ``chat DIR``: text from a trained model."""

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
from rich.console import Console
from rich.progress import track

from jaxformer.config.overrides import given, parse
from jaxformer.errors import ConfigError, DataError
from jaxformer.generation.api import generation_config_for
from jaxformer.generation.chat.template import read_chat_template
from jaxformer.generation.config import GenerationConfig
from jaxformer.generation.text import GenerationOutput, TextGenerator
from jaxformer.nn.cache import Storage
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.model import computed_as_kept


@dataclass(frozen=True)
class Loading:
    """How a model is loaded and run."""

    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Of the weights and the computation (bfloat16 for float16); None: as they are kept."""
    compilation_cache: Path | None = None
    """A folder in which compiled programs are kept for the next time."""
    draft: Path | None = None
    """The folder of a smaller decoder with the same tokens, which proposes some: faster, and the
    same distribution."""
    proposals: int = 4
    """How many tokens it proposes at a time."""
    storage: Storage | None = None
    """Type of the cache; None: that of the computation. int8 takes a quarter of float32."""
    slide: bool = False
    """Where the model's positions are too few, read the last half of the text anew."""


@dataclass(frozen=True)
class Chat(GenerationConfig, Loading):
    """How a chat is held."""

    system: str | None = None
    """What the model is told before the first message."""

    def __post_init__(self):
        pass  # What is given is checked together with what the model's files recommend.


@dataclass(frozen=True)
class Generation(GenerationConfig, Loading):
    """What is continued, and how."""

    prompt: str | None = None
    """The text to continue, or to answer. What follows is shown while it is made."""
    prompts: Path | None = None
    """A file with a prompt on each line."""
    output: Path | None = None
    """The file of JSON lines to write for these; None: the screen."""
    resume: bool = False
    """Go on after the lines that the output has already."""
    batch_size: int = 8
    """Prompts that are continued together."""

    def __post_init__(self):
        pass  # As above.


def add_generate(commands: Any) -> None:
    """Adds ``generate DIR``."""
    parser = commands.add_parser(
        "generate",
        help="text from a trained model: one prompt, or a file of them",
        usage="%(prog)s DIR --prompt TEXT | --prompts FILE [--output FILE.jsonl] [OPTION ...]",
        description="Continues prompts with a model that reads what it writes, or answers them "
        "with one that encodes them. `generate DIR --help` lists the options.",
    )
    _add_folder(parser, generate)


def add_chat(commands: Any) -> None:
    """Adds ``chat DIR``."""
    parser = commands.add_parser(
        "chat",
        help="a conversation with a trained model",
        usage="%(prog)s DIR [--system TEXT] [OPTION ...]",
        description="Answers what you type, with the tokenizer's chat template where it has one; "
        "otherwise the model continues the text so far. An empty line, /quit or Ctrl-D ends it, "
        "/new starts anew, Ctrl-C cuts an answer short. `chat DIR --help` lists the options.",
    )
    _add_folder(parser, chat)


def _add_folder(parser: argparse.ArgumentParser, run: Any) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="a run or transformers' folder")
    parser.add_argument(
        "overrides",
        nargs=argparse.REMAINDER,
        metavar="OPTION",
        help="--max-new-tokens 200 --temperature 0.8 --top-p 0.95 --num-beams 4 ...",
    )
    parser.set_defaults(run=run)


def generate(options: argparse.Namespace) -> None:
    """Shows or writes what a model adds to prompts."""
    wanted, chosen = _parsed(Generation(), options, "generate")
    if (wanted.prompt is None) == (wanted.prompts is None):
        raise ConfigError("generate: give either --prompt TEXT or --prompts FILE")
    prompts = [wanted.prompt] if wanted.prompts is None else _lines(wanted.prompts)
    if wanted.batch_size < 1:
        raise ConfigError(f"--batch-size {wanted.batch_size}: give 1 or more")
    done = _done(wanted, prompts)
    writer = _writer(options.folder, wanted, chosen)
    several = writer.config.num_beams > 1 or writer.config.num_return_sequences > 1
    if wanted.prompts is not None:
        _write_all(writer, prompts, done, wanted)
    elif several:
        for written in writer.generate([writer.tokenize(wanted.prompt)])[0]:
            print(f"[{written.score:.3f}] {written.text}")
    else:
        _show(writer.stream(writer.tokenize(wanted.prompt)))
        print()


def chat(options: argparse.Namespace) -> None:
    """Answers what is typed, until there is nothing."""
    wanted, chosen = _parsed(Chat(), options, "chat")
    writer = _writer(options.folder, wanted, chosen)
    template = read_chat_template(writer.pretrained.folder)
    start = [] if wanted.system is None else [{"role": "system", "content": wanted.system}]
    if template is None:
        note = "the tokenizer has no chat template: the model continues the text so far"
        print(note, file=sys.stderr)
    messages = list(start)
    while (typed := _typed()) not in ("", "/quit"):
        if typed == "/new":
            messages = list(start)
            continue
        messages.append({"role": "user", "content": typed})
        if template is None:
            text = "\n".join(message["content"] for message in messages) + "\n"
            ids = writer.tokenize(text)
        else:
            ids = writer.encoder.rendered(template.render(messages))
        messages.append({"role": "assistant", "content": _show(writer.stream(ids))})
        print()


def _typed() -> str:
    try:
        return input("> ").strip()
    except (EOFError, KeyboardInterrupt):
        print()
        return ""


def _show(parts: Iterable[str]) -> str:
    """Prints what comes, as it comes; Ctrl-C ends it with what there is."""
    shown = []
    try:
        for part in parts:
            print(part, end="", flush=True)
            shown.append(part)
    except KeyboardInterrupt:
        print(" [interrupted]", end="", file=sys.stderr, flush=True)
    return "".join(shown)


def _parsed(default: Any, options: argparse.Namespace, command: str) -> tuple[Any, dict[str, Any]]:
    """All options, and those of `GenerationConfig` that were given."""
    prog = f"python -m jaxformer {command} {options.folder}"
    wanted = parse(default, options.overrides, prog)
    names = given(options.overrides) & {
        field.name for field in dataclasses.fields(GenerationConfig)
    }
    chosen = {name: getattr(wanted, name) for name in names}
    GenerationConfig.of({}, chosen)  # What cannot be is said before the model is read.
    return wanted, chosen


def _writer(folder: Path, wanted: Loading, chosen: dict[str, Any]) -> TextGenerator:
    if wanted.compilation_cache is not None:
        jax.config.update("jax_compilation_cache_dir", str(wanted.compilation_cache))
    model = computed_as_kept(load(folder, dtype=wanted.dtype))
    draft = (
        None if wanted.draft is None else computed_as_kept(load(wanted.draft, dtype=wanted.dtype))
    )
    options = {"draft": draft, "proposals": wanted.proposals, "storage": wanted.storage}
    return TextGenerator(model, generation_config_for(model, chosen), slide=wanted.slide, **options)


def _lines(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"--prompts {path} cannot be read: {error}") from error
    if not lines:
        raise DataError(f"--prompts {path} is empty: write a prompt on each line")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            raise DataError(f"{path}, line {number}: the prompt is empty")
    return lines


def _done(wanted: Generation, prompts: Sequence[str]) -> int:
    """How many prompts the output has already.

    Raises:
        ConfigError: There is an output that is not to be continued.
        DataError: It is of other prompts.
    """
    path = wanted.output
    if path is None or not path.exists():
        return 0
    if not wanted.resume:
        raise ConfigError(
            f"--output {path} exists: name another file, or --resume to go on after its lines"
        )
    done = 0
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            prompt = json.loads(line)["prompt"]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}, line {done + 1}: no line of this command: {error}") from error
        if done >= len(prompts) or prompt != prompts[done]:
            raise DataError(f"{path}, line {done + 1}: is of another prompt than that file's")
        done += 1
    return done


def _write_all(
    writer: TextGenerator, prompts: Sequence[str], done: int, wanted: Generation
) -> None:
    """Writes a JSON line for every prompt, as soon as its batch is there."""
    rows = [writer.tokenize(prompt) for prompt in prompts[done:]]
    starts = range(0, len(rows), wanted.batch_size)
    out = sys.stdout if wanted.output is None else _appended(wanted.output)
    try:
        for start in track(starts, "prompts", console=Console(stderr=True), transient=True):
            batch = rows[start : start + wanted.batch_size]
            # The last batch is as large as the others, for which the program is compiled.
            missing = wanted.batch_size - len(batch) if len(rows) > wanted.batch_size else 0
            found = writer.generate([*batch, *[batch[-1]] * missing], first=done + start)
            texts = prompts[done + start :]
            for prompt, written in zip(texts, found[: len(batch)], strict=False):
                print(
                    json.dumps(_record(prompt, written), ensure_ascii=False), file=out, flush=True
                )
    finally:
        if out is not sys.stdout:
            out.close()
    if wanted.output is not None:
        print(f"written to {wanted.output}: {len(prompts)} prompts")


def _appended(path: Path) -> Any:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a", encoding="utf-8")
    except OSError as error:
        raise DataError(f"--output {path} cannot be written: {error}") from error


def _record(prompt: str, written: list[GenerationOutput]) -> dict[str, Any]:
    """The line of a prompt; of several texts for it a list of them."""
    if len(written) == 1:
        return {"prompt": prompt, **dataclasses.asdict(written[0])}
    return {"prompt": prompt, "texts": [dataclasses.asdict(each) for each in written]}
