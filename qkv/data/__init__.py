"""Data: vocabularies, readers and batches; one file per dataset."""

from .buckets import Buckets as Buckets
from .buckets import shard as shard
from .cmudict import cmudict as cmudict
from .cmudict import part_of as part_of
from .padding import pad as pad
from .pairs import BadLine as BadLine
from .pairs import Pair as Pair
from .pairs import Pairs as Pairs
from .pairs import read_pairs as read_pairs
from .recall import Recall as Recall
from .standard_test import in_standard_test as in_standard_test
from .vocabulary import Vocabulary as Vocabulary
