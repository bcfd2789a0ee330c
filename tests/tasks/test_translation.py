"""From translations to BLEU: the numbers of sacreBLEU, and what each sentence adds to them."""

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sacrebleu.metrics import BLEU, CHRF
from torch import nn

from sparsefront.errors import InvalidSetting
from sparsefront.recovery.distillation import prediction_loss, soft_target_loss
from sparsefront.results.statistics import compare_paired
from sparsefront.stages.network import TASKS
from sparsefront.tasks.causal_lm import IGNORED
from sparsefront.tasks.decoding import Decoding
from sparsefront.tasks.outcomes import MOST_WORDS, Outcomes, load_outcomes, save_outcomes
from sparsefront.tasks.translation import BleuEvaluator, Translation

DECODING = Decoding(2, 1.0, 20)


def sentences(count: int, seed: int) -> tuple[list[str], list[str]]:
    """References, and translations with words left out, changed and moved."""
    draw, words = random.Random(seed), "A man, the dog: 3.5 red hats don't run over green-ish grass".split()
    references = [" ".join(draw.choices(words, k=draw.randint(1, 14))) + "." for _ in range(count)]
    found = []
    for text in references:
        tokens = [token for token in text.split() if draw.random() > 0.15]
        found.append(" ".join(draw.choice(words) if draw.random() < 0.15 else token for token in tokens))
    return references, found


def evaluated(references: list[str], found: list[str]) -> BleuEvaluator:
    data = SimpleNamespace(references=lambda split: references, text=lambda tokens: [found[i] for i in tokens[:, 0]])
    evaluator = BleuEvaluator(data, "test")
    for rows in torch.arange(len(found)).split(7):
        evaluator.update(rows[:, None], {"source": rows})
    return evaluator


CASES = {
    "usual": sentences(60, 0),
    "others": sentences(200, 1),
    "too short": (["a b c d e f g h"] * 5, ["a b c d"] * 5),
    "few match": (["a b c d e", "f g h i j"], ["a x c y e", "f g z z j"]),
    "none match": (["a b c d e"], ["v w x y z"]),
    "words alone": (["a", "b c"], ["a", "b d"]),
    "nothing": (["a b c"], [""]),
    "equal": (["a b c d", "e f g h i"], ["a b c d", "e f g h i"]),
}


@pytest.mark.parametrize("case", CASES)
def test_bleu_and_chrf_of_sacrebleu(case: str) -> None:
    references, found = CASES[case]
    evaluator, scorer = evaluated(references, found), BLEU()
    metrics = evaluator.compute()
    assert metrics["bleu"] == pytest.approx(scorer.corpus_score(found, [references]).score / 100, abs=1e-12)
    assert metrics["chrf"] == pytest.approx(CHRF().corpus_score(found, [references]).score / 100)
    assert evaluator.signature == str(scorer.get_signature()) and evaluator.samples == len(found)


def test_outcomes_of_any_sentences(tmp_path: Path) -> None:
    references, found = CASES["usual"]
    outcomes = evaluated(references, found).outcomes("bleu")
    save_outcomes(tmp_path / "outcomes.npz", {"dense": outcomes})
    again = load_outcomes(tmp_path / "outcomes.npz", samples=60)["dense"]
    chosen = np.random.RandomState(0).randint(60, size=60)
    drawn = BLEU().corpus_score([found[i] for i in chosen], [[references[i] for i in chosen]]).score / 100
    assert again.metric_over(chosen) == outcomes.metric_over(chosen) == pytest.approx(drawn)
    error = evaluated(references, found).standard_errors()["bleu"]
    assert 0.01 < error < 0.1
    backwards = evaluated(references, found[::-1]).outcomes("bleu")
    worse = Outcomes("bleu", backwards.values, outcomes.labels, outcomes.samples)
    difference = compare_paired([outcomes], [worse], same_seeds=True)
    assert difference.clear and difference.low > 0


@pytest.mark.parametrize("wrong", [np.array([2**51]), np.array([-1]), np.array([0.5])])
def test_outcomes_without_counts(wrong: np.ndarray, tmp_path: Path) -> None:
    for values, labels in ((wrong, np.array([3])), (np.array([3]), wrong)):
        save_outcomes(tmp_path / "outcomes.npz", {"dense": Outcomes("bleu", values, labels, "abc")})
        with pytest.raises(ValueError, match="no counts of words"):
            load_outcomes(tmp_path / "outcomes.npz")


def test_sentence_of_too_many_words() -> None:
    with pytest.raises(InvalidSetting, match=f"at most {MOST_WORDS} are scored"):
        evaluated(["a"], ["a " * (MOST_WORDS + 1)])


def test_loss_ignores_padding() -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(3, 5, 9), torch.randint(1, 9, (3, 5))
    labels[1, 2:] = IGNORED
    task, real = Translation(nn.Identity(), decoding=DECODING), labels != IGNORED
    batch = {"labels": labels}
    mean = -logits.log_softmax(-1)[real].gather(1, labels[real][:, None]).mean()
    even = -logits.log_softmax(-1)[real].mean()
    assert task.loss(logits, batch) == pytest.approx(float(mean))
    task.label_smoothing = 0.1
    assert task.loss(logits, batch) == pytest.approx(float(mean))
    assert task.label_loss(logits, batch) == pytest.approx(float(0.9 * mean + 0.1 * even))
    teacher = torch.randn(3, 5, 9)
    taught = soft_target_loss(logits[real], teacher[real], 2.0)
    torch.testing.assert_close(prediction_loss(task, logits, teacher, batch, 2.0), taught)
    assert TASKS["translation"] is Translation


def test_network_that_cannot_translate() -> None:
    inputs: dict[str, Any] = {"source": torch.ones(1, 2), "source_mask": torch.ones(1, 2), "target": None}
    with pytest.raises(InvalidSetting, match="net=Identity: cannot translate"):
        Translation(nn.Identity(), decoding=DECODING).predict(nn.Identity(), inputs)
