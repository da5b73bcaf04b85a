"""Run folders: configure, build, save and load."""

from .config import Config as Config
from .config import configure as configure
from .config import preset as preset
from .config import read_config as read_config
from .data_hash import require_same_splits as require_same_splits
from .data_hash import require_unchanged as require_unchanged
from .detect import detect as detect
from .detect import load_detector as load_detector
from .files import require_same_vocabulary as require_same_vocabulary
from .listing import RunStatus as RunStatus
from .listing import list_runs as list_runs
from .listing import run_status as run_status
from .load import build as build
from .load import embed as embed
from .load import load as load
from .load import load_masked_lm as load_masked_lm
from .load import make_objective as make_objective
from .load import save_config as save_config
from .load import validate as validate
from .settings import Setting as Setting
from .settings import count_parameters as count_parameters
from .settings import list_settings as list_settings
from .start import Start as Start
from .start import configure_from as configure_from
from .start import copy_matching as copy_matching
from .start import read_start as read_start
