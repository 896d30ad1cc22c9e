"""Writes the records of the public leaderboard, as published, for brinell.leaderboard.records.

Run: python benchmarks/published_records.py FOLDER, the folder of robustbench_models.csv.
"""

import csv
import sys
from pathlib import Path

OUT = Path(__file__).resolve().parents[1] / "src" / "brinell" / "leaderboard" / "robustbench.csv"
# Columns of the file and of the leaderboard's table; every value is taken over letter by letter.
COLUMNS = {
    "dataset": "dataset",
    "threat": "threat_model",
    "name": "model_id",
    "architecture": "architecture",
    "eps": "eps",
    "clean": "clean_acc",
    "autoattack": "autoattack_acc",
    "external": "best_known_external",
    "reported": "reported_acc",
    "unreliable": "unreliable_flag",
    "corruptions": "corruptions_acc",
    "corruptions_mce": "corruptions_mce",
    "corruptions_3d": "corruptions_acc_3d",
    "corruptions_mce_3d": "corruptions_mce_3d",
    "extra_data": "extra_data",
    "forward_passes": "n_forward_passes",
    "venue": "venue",
    "link": "link",
}


def main(folder: Path) -> None:
    with open(folder / "robustbench_models.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    with open(OUT, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows({ours: row[theirs] for ours, theirs in COLUMNS.items()} for row in rows)
    print(f"{len(rows)} records in {OUT}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
