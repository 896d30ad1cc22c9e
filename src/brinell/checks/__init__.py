"""What is refused or warned about before a run: model, gradients, detector, a leaderboard's restrictions."""
