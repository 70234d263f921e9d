"""Registers models with the tracking server of MLFLOW_TRACKING_URI: python mlflow_models.py FOLDER_OF_VERSIONS

Version 1 of `digits` is a run's artifacts, as MLflow 2 registers them; version 2 a model that was logged, as MLflow 3
does. The alias champion names the first.
"""

import sys

from mlflow import MlflowClient


def main(folder: str) -> None:
    client = MlflowClient()
    client.create_registered_model("digits")
    experiment = client.create_experiment("digits")
    run = client.create_run(experiment)
    client.log_artifacts(run.info.run_id, folder, "model")
    first = client.create_model_version("digits", f"{run.info.artifact_uri}/model", run.info.run_id)
    client.set_registered_model_alias("digits", "champion", first.version)
    logged = client.create_logged_model(experiment, name="digits", source_run_id=run.info.run_id)
    client.log_model_artifacts(logged.model_id, folder)
    client.create_model_version("digits", f"models:/{logged.model_id}", model_id=logged.model_id)


if __name__ == "__main__":
    main(sys.argv[1])
