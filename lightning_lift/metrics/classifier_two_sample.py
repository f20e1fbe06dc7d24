"""Classifier two-sample test: how well a classifier tells draws from reference draws."""

from typing import Literal, get_args

import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import KFold, cross_val_score
from sklearn.neural_network import MLPClassifier
from torch import Tensor

ClassifierName = Literal["mlp", "forest"]


def classifier_two_sample(
    samples: Tensor, reference: Tensor, classifier: ClassifierName = "mlp", seed: int = 1
) -> float:
    """Accuracy of a classifier between two samples, over five folds: 0.5 where it finds no difference, at most 1.

    C2ST (Lopez-Paz & Oquab, ICLR 2017) as the benchmark of simulation-based inference has it (Lueckmann et al.,
    AISTATS 2021): scikit-learn's MLP with two hidden layers of 10 D units and up to 1000 epochs on columns standardised
    by the reference, with its folds. That classifier hardly sees thin structures; a random forest (100 trees) does.

    Args:
        samples: shape (N, D).
        reference: shape (N, D).
        classifier: ``mlp`` or ``forest``.
        seed: of the classifier and of the folds. Take the largest accuracy of several: a bad start sees nothing.

    Raises:
        ValueError: shapes that do not fit, unequal numbers of rows (0.5 is the accuracy of chance for equal ones only),
            numbers that are not finite, a constant column of the reference, or another classifier.
    """
    if samples.ndim != 2 or samples.shape != reference.shape or len(samples) < 5:
        raise ValueError(
            f"samples of shape {tuple(samples.shape)} and reference of shape {tuple(reference.shape)}: must both be "
            "(N, D), with at least 5 rows; take as many draws as the reference has."
        )
    x, y = samples.detach().cpu().double(), reference.detach().cpu().double()
    if not (x.isfinite().all() and y.isfinite().all()):
        raise ValueError("samples or reference draws are not finite: no classifier can be trained on them.")
    deviation, mean = torch.std_mean(y, dim=0)
    if (deviation == 0.0).any():
        column = int((deviation == 0.0).nonzero()[0])
        raise ValueError(f"column {column} of the reference is constant: leave it out of both.")
    rows = ((torch.cat([y, x]) - mean) / deviation).numpy()
    labels = torch.cat([torch.zeros(len(y)), torch.ones(len(x))]).numpy()
    width = 10 * x.shape[1]
    if classifier == "mlp":
        model = MLPClassifier(hidden_layer_sizes=(width, width), max_iter=1000, random_state=seed)
    elif classifier == "forest":
        model = RandomForestClassifier(random_state=seed)
    else:
        raise ValueError(f"classifier={classifier!r} is not known; choose one of {get_args(ClassifierName)}.")
    folds = KFold(n_splits=5, shuffle=True, random_state=seed)
    return float(cross_val_score(model, rows, labels, cv=folds, scoring="accuracy").mean())
