"""InferenceServices of KServe -> the models and sections of a YAML file of this gateway.

    server = read_services(Path("service.yaml"), programs="gateway-models", trusted=False)

    services.py     a file of Kubernetes' documents -> models, routes of canaries, ports, the host's processors
    predictors.py   one predictor -> an entry, by its format and by what lies at its storageUri

Every key is mapped, ignored with a reason, or refused with a remedy. Source: KServe, pkg/apis/serving/v1beta1, and the
runtimes of config/runtimes.
"""

from tensorgate.adapters.importers.kserve_config.services import read_services

__all__ = ["read_services"]
