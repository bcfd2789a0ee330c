"""The control row of IMDb that needs no network: logistic regression on words and pairs of neighboring words.

    python -m experiments.front.bigrams dataset/imdb

Trained on the rows that `dataset=imdb` trains on. The strength of the regularization is chosen on its held-out rows; test is read
once. Terms count once a review and weigh log(rows / rows with the term), after Wang and Manning, "Baselines and Bigrams", 2012,
with tf-idf instead of their naive-Bayes ratios.
"""

import argparse
from pathlib import Path

import numpy as np
import sklearn
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from sparsefront.data.imdb import Imdb, ImdbRows
from sparsefront.tasks.outcomes import error_of_proportion

STRENGTHS = (1.0, 4.0, 16.0, 64.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", help="folder with train.jsonl and test.jsonl")
    dataset = Imdb(path=parser.parse_args().path)
    rows, division = ImdbRows(dataset), dataset.division(Path())
    train, test = rows.read("train"), rows.read("test")
    parts = {
        "train": [train[row] for row in division.train],
        "held out": [train[row] for row in division.val],
        "test": test,
    }
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), min_df=3, binary=True, token_pattern=r"\w+")
    vectorizer.fit([review.text for review in parts["train"]])
    x = {name: vectorizer.transform([review.text for review in reviews]) for name, reviews in parts.items()}
    y = {name: np.asarray([review.label for review in reviews]) for name, reviews in parts.items()}
    nets = {c: LogisticRegression(C=c, max_iter=1000).fit(x["train"], y["train"]) for c in STRENGTHS}
    held_out = {c: net.score(x["held out"], y["held out"]) for c, net in nets.items()}
    best = max(held_out, key=lambda c: held_out[c])
    test_accuracy = nets[best].score(x["test"], y["test"])
    error = error_of_proportion(test_accuracy, len(y["test"]))
    print(f"train {len(y['train'])} rows, {x['train'].shape[1]} terms; scikit-learn {sklearn.__version__}")
    print("held out: " + ", ".join(f"C={c:g} {100 * value:.2f} %" for c, value in held_out.items()))
    print(f"C={best:g}: test {100 * test_accuracy:.2f} +- {100 * error:.2f} %")


if __name__ == "__main__":
    main()
