"""HTTP for programs, behind `qkv serve --api RUN`: completions and embeddings in the OpenAI layout, and predictions."""

from .served_run import ServedRun as ServedRun
from .server import ApiServer as ApiServer
from .settings import ApiSettings as ApiSettings
