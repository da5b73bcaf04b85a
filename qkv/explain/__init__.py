"""What happened inside a model, as plain data."""

from .alignment import Alignment as Alignment
from .alignment import alignment as alignment
from .copying import Copying as Copying
from .copying import copying as copying
from .gradients import LayerGradient as LayerGradient
from .gradients import gradient_by_depth as gradient_by_depth
from .gradients import gradient_norms as gradient_norms
from .gradients import jacobian_norms as jacobian_norms
from .implied import Implied as Implied
from .implied import OrderError as OrderError
from .implied import compare_kinds as compare_kinds
from .passes import Look as Look
from .passes import Site as Site
from .passes import observe as observe
from .passes import sites as sites
from .search import BothSearches as BothSearches
from .search import Branch as Branch
from .search import next_tokens as next_tokens
from .search import score_whole as score_whole
from .search import search_tree as search_tree
from .steps import TokenSteps as TokenSteps
from .steps import token_steps as token_steps
from .summary import Summary as Summary
from .summary import summarise as summarise
from .watch import Call as Call
from .watch import watch as watch
