"""BLEU as the MLPerf translation benchmarks score it: sacrebleu's, cased, on text."""

from __future__ import annotations

from collections.abc import Sequence

from mlperf_tpu.errors import BadInput

# Differently tokenised or cased scores differ by tens of points (mteval's is 13a).
TOKENIZE, LOWERCASE = "13a", False


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Corpus BLEU in 0..1, line k against line k; blank lines count as lines.

    >>> round(bleu(["a b c d e"], ["a b c d f"]), 3)
    0.669
    """
    import sacrebleu

    if len(hypotheses) != len(references):
        raise BadInput(
            f"BLEU: {len(hypotheses)} translations of {len(references)} references; "
            "each line needs one"
        )
    score = sacrebleu.corpus_bleu(
        list(hypotheses), [list(references)], tokenize=TOKENIZE, lowercase=LOWERCASE
    )
    return float(score.score) / 100


def signature() -> str:
    """sacrebleu's own description of how `bleu` scores."""
    import sacrebleu

    metric = sacrebleu.metrics.BLEU(tokenize=TOKENIZE, lowercase=LOWERCASE)
    metric.corpus_score(["a"], [["a"]])
    return str(metric.get_signature())
