"""What several verbs share: options, loading of models and data, terminal output."""
