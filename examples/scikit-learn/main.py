"""Search the parameters of a support vector machine, and save the model, a table of the search and a figure."""

import os
from pathlib import Path

import joblib
import matplotlib as mpl
import pandas as pd
from sklearn.datasets import load_digits
from sklearn.metrics import ConfusionMatrixDisplay
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

OUTPUT = Path(os.environ.get("GRADIENT_ARTIFACTS_DIR", "."))


def main() -> None:
    """Search, and print the accuracy of the best parameters on other data."""
    mpl.use("agg")
    images, targets = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(images, targets, test_size=0.2, random_state=1)
    grid = {"svc__C": [1, 10, 100], "svc__gamma": [0.001, 0.01]}
    search = GridSearchCV(make_pipeline(StandardScaler(), SVC()), grid, n_jobs=-1).fit(train_x, train_y)
    table = pd.DataFrame(search.cv_results_)[["params", "mean_test_score", "mean_fit_time"]]
    print(table.to_string())
    table.to_csv(OUTPUT / "search.csv", index=False)
    ConfusionMatrixDisplay.from_estimator(search, test_x, test_y).figure_.savefig(OUTPUT / "confusion.png")
    joblib.dump(search.best_estimator_, OUTPUT / "model.joblib")
    print(f"accuracy {search.score(test_x, test_y):.4f} with {search.best_params_}")


if __name__ == "__main__":
    main()
