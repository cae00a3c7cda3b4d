"""Sub-words by sentencepiece: text to ids and back, one vocabulary for both sides.

Id 0 pads, 1 ends a line, 2 stands for what the vocabulary cannot write.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from mlperf_tpu.errors import BadInput

PAD, END, UNKNOWN = 0, 1, 2


class Subwords:
    """A sentencepiece model; `size` is the number of its pieces, ids PAD.. included."""

    def __init__(self, model: bytes, source: str = "the model") -> None:
        import sentencepiece

        self.model = model
        try:
            self._pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise BadInput(f"{source} is no sentencepiece model: {error}") from error
        found = (self._pieces.pad_id(), self._pieces.eos_id(), self._pieces.unk_id())
        if found != (PAD, END, UNKNOWN):
            raise BadInput(
                f"{source}: padding, end and unknown have the ids {found}, not "
                f"{(PAD, END, UNKNOWN)}; train it with --pad_id=0 --eos_id=1 "
                "--unk_id=2 --bos_id=-1"
            )
        self.size = self._pieces.get_piece_size()

    @classmethod
    def read(cls, path: Path) -> Subwords:
        """The model in a file."""
        try:
            return cls(path.read_bytes(), str(path))
        except OSError as error:
            raise BadInput(
                f"no sub-word model {path} ({error.strerror}); make one of the "
                "training lines with sentencepiece, or give the folder that has it"
            ) from error

    @classmethod
    def train(cls, lines: Iterable[str], size: int) -> Subwords:
        """Byte-pair pieces of these lines, the same for the same lines."""
        import sentencepiece

        out = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(lines),
                model_writer=out,
                vocab_size=size,
                model_type="bpe",
                character_coverage=1.0,
                pad_id=PAD,
                eos_id=END,
                unk_id=UNKNOWN,
                bos_id=-1,
                num_threads=1,
                minloglevel=2,
            )
        except (RuntimeError, ValueError) as error:
            raise BadInput(
                f"data.vocabulary: no {size} pieces can be made of the training "
                f"lines ({error}); choose fewer"
            ) from error
        return cls(out.getvalue())

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Each line's ids, END last."""
        return [[*ids, END] for ids in self._pieces.encode(list(lines))]

    def decode(self, rows: Iterable[Sequence[int]]) -> list[str]:
        """Each row's text, up to its first END or PAD.

        An id beyond the vocabulary raises BadInput: the weights are of another one.
        """
        lines = []
        for row in rows:
            ids = [int(i) for i in row]
            cut = next((k for k, i in enumerate(ids) if i in (PAD, END)), len(ids))
            if any(i >= self.size for i in ids[:cut]):
                raise BadInput(
                    f"a decoded id is {max(ids)}, but the sub-word model has "
                    f"{self.size} pieces; take the one that the model was trained on"
                )
            lines.append(self._pieces.decode(ids[:cut]))
        return lines
