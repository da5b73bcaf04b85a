"""Batch jobs: predict every line of a large file, in parts, by any number of processes that may be stopped."""

from .batch_job import BatchJob as BatchJob
from .batch_job import JobSummary as JobSummary
from .input_file import InputFile as InputFile
from .input_file import InputLine as InputLine
from .input_file import LineIndex as LineIndex
from .input_file import index_lines as index_lines
from .job_folder import JobFolder as JobFolder
from .job_folder import open_job as open_job
from .job_folder import require_job_or_empty as require_job_or_empty
from .job_settings import JobSettings as JobSettings
from .part_file import FORMATS as FORMATS
from .part_file import PartRecord as PartRecord
