"""Files that survive a crash: atomic writes, verified folders, versioned JSON, package data, the cache folder."""

from .atomic import open_file as open_file
from .atomic import remove_stale as remove_stale
from .atomic import write_atomic as write_atomic
from .cache_dir import cache_dir as cache_dir
from .folder import MANIFEST as MANIFEST
from .folder import is_valid_folder as is_valid_folder
from .folder import latest_valid_step as latest_valid_step
from .folder import list_steps as list_steps
from .folder import read_folder as read_folder
from .folder import save_folder as save_folder
from .folder import set_aside as set_aside
from .folder import verify_folder as verify_folder
from .json import FORMAT as FORMAT
from .json import parse_json as parse_json
from .json import read_json as read_json
from .json import to_json as to_json
from .json import write_json as write_json
from .package_data import package_member as package_member
from .seal import is_sealed as is_sealed
from .seal import read_all_sealed as read_all_sealed
from .seal import read_sealed as read_sealed
from .seal import remove_sealed as remove_sealed
from .seal import seal_files as seal_files
from .seal import sealed_names as sealed_names
from .seal import write_sealed as write_sealed
