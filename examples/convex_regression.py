"""Progression of diabetes, convex in what is measured and never falling in three of the measurements.

442 patients (scikit-learn's diabetes table): age, sex and blood pressure, body-mass index, six blood serum
measurements, and how far the disease had come a year later. The convex regression never falls in body-mass index, blood
pressure and s5 (the logarithm of triglycerides). The picture has its prediction beside what was found, and what one
standard deviation more of each measurement changes (slopes at the test rows).

    python examples/convex_regression.py
"""

import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import train_test_split

from lightning_lift import ConvexRegressor

INCREASING = ["bmi", "bp", "s5"]


def main(picture: Path) -> None:
    """Fit, compare with a linear model, and save the picture."""
    table = load_diabetes(as_frame=True)
    x, test_x, y, test_y = train_test_split(table.data, table.target, test_size=0.25, random_state=0)
    model = ConvexRegressor(increasing=INCREASING, random_state=0).fit(x, y)
    linear = LinearRegression().fit(x, y)
    ours, straight = model.score(test_x, test_y), linear.score(test_x, test_y)
    print(f"R^2 on {len(test_y)} test rows: convex and increasing {ours:.3f}, linear {straight:.3f}")
    predicted, slopes = model.predict(test_x), model.predict_gradient(test_x) * np.asarray(x.std())

    figure = Figure(figsize=(10.0, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    ends = [float(min(predicted.min(), test_y.min())), float(max(predicted.max(), test_y.max()))]
    left.plot(ends, ends, color="0.7", linewidth=1.0)
    left.scatter(predicted, test_y, s=12, color="#0072B2")
    left.set(title=f"test rows, $R^2$ = {ours:.2f} (linear {straight:.2f})")
    left.set(xlabel="predicted progression", ylabel="progression after a year")
    names = list(x.columns)
    colours = ["#D55E00" if name in INCREASING else "#0072B2" for name in names]
    boxes = right.boxplot(slopes, orientation="horizontal", tick_labels=names, patch_artist=True, showfliers=False)
    for box, colour in zip(boxes["boxes"], colours, strict=True):
        box.set_facecolor(colour)
    right.axvline(0.0, color="0.7", linewidth=1.0)
    right.set(title="slopes (orange: never falling)", xlabel="progression a standard deviation of the input")
    figure.savefig(picture, dpi=100)
    print(f"saved {picture}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("convex_regression.png"))
