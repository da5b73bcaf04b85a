"""Data: vocabularies, readers and batches; one file per dataset."""

from .archive import Archive as Archive
from .archive import member_of as member_of
from .buckets import Buckets as Buckets
from .buckets import shard as shard
from .cmudict import cmudict as cmudict
from .cmudict import part_of as part_of
from .idx import read_idx as read_idx
from .labelled import Labelled as Labelled
from .labelled import Shuffled as Shuffled
from .mnist import mnist as mnist
from .noisy_sine import NoisySine as NoisySine
from .padding import Ragged as Ragged
from .padding import pad as pad
from .pairs import BadLine as BadLine
from .pairs import Pair as Pair
from .pairs import Pairs as Pairs
from .pairs import read_pairs as read_pairs
from .pictures import read_npz as read_npz
from .pictures import read_pictures as read_pictures
from .points import Points as Points
from .points import read_points as read_points
from .points import xor as xor
from .recall import Recall as Recall
from .standard_test import in_standard_test as in_standard_test
from .vocabulary import Vocabulary as Vocabulary
