"""Makes the container `models` in Azurite: python azure_container.py ADDRESS, with the key in the environment."""

import os
import sys

from azure.storage.blob import BlobServiceClient

BlobServiceClient(sys.argv[1], os.environ["AZURE_STORAGE_ACCOUNT_KEY"]).create_container("models")
