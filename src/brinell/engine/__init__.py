"""The only place that calls the model: slots, counting, best-so-far, refill."""
